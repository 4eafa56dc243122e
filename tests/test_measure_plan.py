"""Which points `calibrate measure` takes, and in which order."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from sim.calibration.measure.grids import DEFAULT_MODELS, all_classes, head_shapes, model_shapes
from sim.calibration.measure.plan import Pace, Queue, farthest_first, ordered
from sim.calibration.measure.points import Point, backend_of, lengths, small, work
from sim.model import ModelSpec
from sim.scenario import entry


def models(*names: str) -> list[ModelSpec]:
    return [ModelSpec.from_mapping(entry("models", name)) for name in names or DEFAULT_MODELS]


def gemms() -> list[Point]:
    return [
        Point("gemm", "bf16", m=m, n=n, k=k)
        for m in (1, 3, 16, 100, 2048)
        for n in (512, 1000, 8192)
        for k in (256, 4096)
    ]


def distance(a: Point, b: Point) -> float:
    return float(np.hypot.reduce([np.log2((1 + getattr(a, s)) / (1 + getattr(b, s))) for s in "mnk"]))


def test_wherever_it_stops_nothing_is_farther_than_what_was_measured_is_apart() -> None:
    """After each point, no point left lies farther from the measured ones than any two of those lie apart."""
    order = farthest_first(gemms())
    assert sorted(map(str, order)) == sorted(map(str, gemms()))
    for made in range(2, len(order)):
        done, left = order[:made], order[made:]
        hole = max(min(distance(point, one) for one in done) for point in left)
        assert hole <= min(distance(a, b) for a, b in combinations(done, 2)) + 1e-9


def test_every_class_has_its_turn_early() -> None:
    """Stopped after a tenth of its points, a session has seen every class, launches to all-reduces."""
    classes = all_classes(models("llama-3.1-8b"), n_gpus=2)
    order = ordered(classes)
    assert len(order) == len(set(order))
    assert set(order) == {point for _, points in classes.values() for point in points}
    early = set(order[: len(order) // 10])
    for name, (_, points) in classes.items():
        assert early & set(points), name


def test_linear_layers_have_the_largest_share() -> None:
    """What a step spends its time on is measured most: bf16 linear layers, attention, then the rest."""
    early = ordered(all_classes(models(), n_gpus=1))[:1000]
    bf16 = sum(point.op == "gemm" and point.dtype == "bf16" for point in early)
    attention = sum(point.op in ("attention_prefill", "attention_decode") for point in early)
    rest = sum(
        point.op in ("copy", "launch", "elementwise", "layer_mixed", "attention_mixed") for point in early
    )
    assert bf16 > 200
    assert attention > 200
    assert rest < 150


def test_fused_and_summed_stay_together() -> None:
    """A mixed batch in one go is compared with its parts: the two are measured one after the other."""
    mixed = farthest_first(list(all_classes(models(), 1)["mixed"][1]))
    for first, second in zip(mixed[::2], mixed[1::2], strict=True):
        assert {first.variant, second.variant} == {"fused", "summed"}
        assert (first.op, first.q_len, first.batch) == (second.op, second.q_len, second.batch)


def test_shapes_are_those_of_the_models() -> None:
    """The four linear layers and the LM head of a model, alone and over eight GPUs; heads likewise."""
    shapes = model_shapes(models("llama-3.1-70b"))
    assert {(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (128256, 8192)} <= set(shapes)
    assert {(1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (16032, 8192)} <= set(shapes)
    assert set(head_shapes(models("llama-3.1-70b"))) == {
        (64, 8, 128),
        (32, 4, 128),
        (16, 2, 128),
        (8, 1, 128),
    }
    assert (128256, 8192) not in model_shapes(models("llama-3.1-70b"), lm_head=False)


def test_gpus_that_cannot_share_a_model_are_left_out() -> None:
    """Twenty-eight heads go over four GPUs and not over eight."""
    assert set(head_shapes(models("qwen2.5-7b"))) == {(28, 4, 128), (14, 2, 128), (7, 1, 128)}


def test_all_reduces_are_over_the_gpus_present() -> None:
    """Two and four ranks on a machine with five GPUs, none on a machine with one."""
    points = all_classes(models("llama-3.1-8b"), n_gpus=5)["all_reduce"][1]
    assert {point.n_gpus for point in points} == {2, 4}
    assert "all_reduce" not in all_classes(models("llama-3.1-8b"), n_gpus=1)


@pytest.mark.parametrize(("batch", "mean"), [(4, 127), (7, 1000), (512, 127), (64, 16383)])
def test_ragged_lengths_have_the_mean_that_the_row_says(batch: int, mean: int) -> None:
    """Lengths differ, and their sum is batch x kv_len to the token; each call gives the same ones."""
    point = Point(
        "attention_decode", "bf16", batch=batch, q_len=1, kv_len=mean, heads=8, kv_heads=2, head_dim=64,
        kv_dtype="bf16", variant="ragged",
    )  # fmt: skip
    new, total = lengths(point)
    assert new == [1] * batch
    assert sum(total) == batch * (mean + 1)  # the new token's own key and value, too
    assert max(total) > 1.5 * mean > 3 * min(total)
    assert lengths(point) == (new, total)


def test_the_work_of_a_chunk_is_that_of_its_pairs() -> None:
    """Three new tokens after 10 cached ones look at 11, 12 and 13: 36 pairs of 4 x heads x dim flops."""
    point = Point(
        "attention_prefill",
        "bf16",
        batch=2,
        q_len=3,
        kv_len=10,
        heads=4,
        kv_heads=2,
        head_dim=8,
        kv_dtype="bf16",
    )
    assert work(point)[0] == 2 * 36 * 4 * 4 * 8


def test_a_source_names_the_kernel_and_the_variant() -> None:
    """`kneesim-BACKEND-VARIANT`; launched eagerly for want of a graph, it is still that backend's."""
    ragged = Point("attention_decode", "bf16", variant="ragged")
    assert ragged.source("flashinfer") == "kneesim-flashinfer-ragged"
    assert Point("gemm", "bf16").source("torch") == "kneesim-torch"
    assert backend_of(ragged.source("flashinfer_eager")) == "flashinfer"


def test_points_that_take_long_wait_until_guesses_improve() -> None:
    """A point whose guess is too long is passed over, and comes first again once a like one was fast."""
    large, small_one = (
        Point("gemm", "bf16", m=4096, n=8192, k=8192),
        Point("gemm", "bf16", m=16, n=512, k=512),
    )
    pace = Pace()
    pace.learn(small_one, 1e-3)
    queue = Queue([large, small_one], pace)
    assert queue.next(0.1) == small_one
    assert queue.next(0.1) is None
    pace.learn(small_one, 5e-6)
    assert queue.next(7.0) == large
    assert len(queue) == 0


def test_what_is_put_back_keeps_its_place() -> None:
    """A point taken out to try its kind comes first again; a kind that cannot run leaves as a whole."""
    first, second = gemms()[:2]
    eight_bits = [replace(first, dtype="int8"), replace(second, dtype="int8")]
    queue = Queue([first, eight_bits[0], second, eight_bits[1]], Pace())
    assert queue.next(7.0) == first
    queue.put_back(first)
    assert queue.drop(eight_bits[0].kind) == eight_bits
    assert [queue.next(7.0), queue.next(7.0), queue.next(7.0)] == [first, second, None]


def test_guesses_are_of_one_kind_each() -> None:
    """The fastest seen of a kind counts; of bf16 it says nothing about int8, which may be emulated."""
    pace, large = Pace(), Point("gemm", "bf16", m=4096, n=8192, k=8192)
    pace.learn(large, 1e-3)
    pace.learn(Point("gemm", "bf16", m=1, n=512, k=512), 1e-3)
    pace.learn(Point("gemm", "int8", m=1, n=512, k=512), 1e-3)
    assert 0.025 < pace.cost_s(large) < 0.1
    assert pace.cost_s(replace(large, dtype="int8")) > 1000


def test_a_small_point_is_small_and_of_the_same_kind() -> None:
    """What a kind is tried out with: each class's has all sizes of its points, and next to no work."""
    for _, points in all_classes(models(), n_gpus=2).values():
        for point in points:
            tried = small(point)
            assert tried.kind == point.kind
            assert {f for f, v in vars(tried).items() if v is None} == {
                f for f, v in vars(point).items() if v is None
            }
            assert work(tried)[0] <= 1e8
            assert work(tried)[1] <= 1e7
