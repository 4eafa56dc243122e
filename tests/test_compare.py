"""Comparisons: paired on the same random numbers, exact where nothing differs, told where chance differs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_sweep import SMALL

import sim
from sim.faults import InputFault
from sim.planning.compare import NUMBERS, Compared, Comparison, compare
from sim.planning.differing import changed_keys, not_shared
from sim.planning.paired import difference

TTFT = "ttft_s.p99"
LENGTHS = {"kind": "lognormal", "prompt_mean": 200, "output_mean": 20, "cv": 1}
OTHER = {"weights": [0.5, 0.5], "mu": [4, 5], "sigma": [0.5, 0.5]}
MIXTURE = {"kind": "mixture", "prompt": OTHER, "output": OTHER}
VARIED = {**SMALL, "workload": {"arrivals": {"kind": "poisson"}, "lengths": LENGTHS}}


@pytest.fixture(scope="module")
def small() -> sim.Scenario:
    return sim.load(VARIED)


def numbers(comparison: Comparison, index: int = 1) -> dict[str, Any]:
    return comparison.as_dict()["scenarios"][index]["numbers"]


# --- the difference and its interval ---------------------------------------------------------------------


def test_pairs_vary_less_than_runs_of_their_own(small: sim.Scenario) -> None:
    """On common random numbers a rate 5 % higher is told from chance by far fewer seeds.

    Var(B - A) of pairs against Var(A) + Var(B) of runs that share nothing: theory only promises less than
    one; here E2E's mean is a smooth function of the same draws, and the pairs save nine tenths of it.
    """
    found = compare([small, small.replace({"load.rate_per_s": 4.2})], seeds=12, workers=1)
    a, b = (np.array([s["e2e_s"]["mean"] for s in one.summaries]) for one in found.scenarios)
    assert (b - a).var(ddof=1) < 0.1 * (a.var(ddof=1) + b.var(ddof=1))


def test_the_interval_is_students() -> None:
    """1, 2 and 3: mean 2 +- t(0.975, 2) / sqrt(3), with t from tables."""
    found = difference([0.0, 0.0, 0.0], [1.0, 2.0, 3.0], 0.95)
    half = 4.302653 / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - half, 2 + half), rel=1e-6)
    assert found.seen is False


def test_what_one_side_does_not_have_is_left_out_and_counted() -> None:
    """A percentile of nobody has no difference to anything."""
    found = difference([1.0, None, 3.0], [2.0, 5.0, 4.0], 0.95)
    assert (found.mean, found.low, found.count, found.asked) == (1.0, 1.0, 2, 3)
    assert difference([None], [1.0], 0.95).as_dict()["reason"] == "undefined on one side in every seed"
    assert difference([1.0], [3.0], 0.95).as_dict() == {
        "mean": 2.0, "interval": None, "seen": None, "seeds": 1, "reason": "one seed has no interval",
    }  # fmt: skip


def test_a_scenario_against_itself_differs_by_exactly_nothing(small: sim.Scenario) -> None:
    """Also where the same is written otherwise and runs again; then there is nothing to see in any number."""
    again = small.replace({"name": "again", "run.precision": 0.03})  # no part of a run
    found = numbers(compare([small, again], seeds=3, workers=1))
    gaps = [entry["difference"] for entry in found.values()]
    assert {tuple(gap["interval"]) for gap in gaps if gap["seeds"]} == {(0.0, 0.0)}
    assert not any(gap["seen"] for gap in gaps)


def test_a_difference_that_is_there_is_seen_and_has_its_sign(small: sim.Scenario) -> None:
    """Half the speed of memory: slower tokens in every seed."""
    slow = small.replace({"hardware.memory_bandwidth_bytes_per_s": 1e12, "hardware.kernels.gemm.bf16": {
        "flops_per_s": 1e14, "bytes_per_s": 8e11, "exponent": 1.5, "overhead_s": 5e-6}})  # fmt: skip
    gap = numbers(compare([small, slow], seeds=3, workers=1))["tpot_s.p50"]["difference"]
    assert gap["seen"]
    assert gap["interval"][0] > 0


# --- what differs, and which chance is shared ------------------------------------------------------------


def test_what_differs_is_the_keys_with_the_place_of_each(small: sim.Scenario, tmp_path: Path) -> None:
    """Resolved: a default that moves with another key is told as well; another card is its name."""
    below = tmp_path / "below.yaml"
    below.write_text(json.dumps(VARIED))
    (tmp_path / "own.yaml").write_text("base: below.yaml\nload: {rate_per_s: 9}\nhardware: h100-80gb-sxm\n")
    found = {x.key: x for x in changed_keys(sim.load(below), sim.load(tmp_path / "own.yaml"))}
    assert (found["load.rate_per_s"].first, found["load.rate_per_s"].here) == (4, 9)
    assert found["load.rate_per_s"].source == "own.yaml:2"
    assert found["hardware.name"].here == "h100-80gb-sxm"
    assert not any(key.startswith("hardware.") and key != "hardware.name" for key in found)
    assert "engine.max_num_batched_tokens" in found
    assert found["engine.max_num_batched_tokens"].source == "preset vllm-v1@0.32"
    assert changed_keys(small, small.replace({"run.seed": 7})) == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ()),
        ({"load.rate_per_s": 9}, ()),
        ({"workload.lengths.prompt_mean": 900}, ()),
        ({"workload.lengths": {"kind": "fixed", "prompt_tokens": 9, "output_tokens": 9}}, ()),
        ({"workload.lengths": MIXTURE}, ("prompt lengths", "answer lengths")),
        ({"workload.arrivals.kind": "constant"}, ()),
        ({"load": {"concurrency": 4}}, ("arrivals",)),
        ({"workload.patience": {"kind": "exponential", "mean_s": 9}}, ()),
        ({"workload.arrivals": {"kind": "gamma", "cv": 3}}, ("arrivals",)),
    ],
)  # fmt: skip
def test_which_draws_are_not_shared_is_told(
    small: sim.Scenario, changes: dict[str, Any], told: tuple[str, ...]
) -> None:
    """Scaled ones are shared, constants need none; another distribution, or users who wait, are others."""
    assert not_shared(small, small.replace(changes)) == told


def test_chance_that_does_not_cancel_is_a_warning(small: sim.Scenario) -> None:
    """With the names of both."""
    other = small.replace({"name": "mixed", "workload.lengths": MIXTURE})
    warnings = compare([small, other], seeds=2, workers=1).warnings
    assert any("small and mixed do not share prompt lengths and answer lengths" in x for x in warnings)


# --- running, keeping, refusing --------------------------------------------------------------------------


def test_neither_workers_nor_a_journal_change_a_byte(small: sim.Scenario, tmp_path: Path) -> None:
    """And more seeds in the same folder run those alone."""
    pair = [small, small.replace({"name": "fast", "load.rate_per_s": 8})]
    alone = compare(pair, seeds=2, workers=1)
    pooled = compare(pair, seeds=2, workers=2, out=tmp_path)
    assert json.dumps(pooled.as_dict()) == json.dumps(alone.as_dict())
    more = compare(pair, seeds=3, workers=1, out=tmp_path)
    assert more.notes == (f"4 of 6 runs were in {tmp_path / 'journal.jsonl'} already",)
    assert numbers(more)[TTFT]["values"][:2] == numbers(alone)[TTFT]["values"]


def test_runs_of_a_comparison_are_those_of_run(small: sim.Scenario) -> None:
    """Each seed's value is what the scenario's own run says with that seed."""
    found = compare([small, small.replace({"load.rate_per_s": 8})], seeds=2, workers=1)
    own = sim.simulate(small.replace({"load.rate_per_s": 8, "run.seed": 2})).summary()
    assert numbers(found)[TTFT]["values"][1] == own["ttft_s"]["p99"]
    assert set(numbers(found)) == {number.path for number in NUMBERS}


def test_one_that_does_not_fit_is_told_and_the_others_are_compared(small: sim.Scenario) -> None:
    """Unless it is the first: then there is nothing to compare with."""
    large = small.replace({"name": "large", "model": "llama-3.1-70b"})
    entry = compare([small, large, small], seeds=2, workers=1).as_dict()["scenarios"]
    assert "fit" in entry[1]["fault"]
    assert "numbers" not in entry[1]
    assert entry[2]["name"] == "small (2)"
    with pytest.raises(InputFault, match="large, to which the others are compared, cannot run"):
        compare([large, small], seeds=2, workers=1)


@pytest.mark.parametrize(
    ("count", "options", "sentence"),
    [
        (1, {}, r"compare needs two scenarios or more \(got small\); a file with `base: small`"),
        (0, {}, r"compare needs two scenarios or more \(got none\)"),
        (2, {"seeds": 0}, r"seeds must be a whole number >= 1 \(got 0\)"),
        (2, {"seeds": 6000}, r"a comparison may have 10,000 runs \(these are 12,000\)"),
        (2, {"workers": 0}, "workers must be a whole number >= 1"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(
    small: sim.Scenario, count: int, options: dict[str, Any], sentence: str
) -> None:
    """Before the first run."""
    with pytest.raises(InputFault, match=sentence):
        compare([small] * count, **options)


def test_an_interrupt_leaves_whole_seeds(small: sim.Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scenario has as many runs, so that the differences still are pairs."""
    from sim.planning import runs
    from sim.planning.compare import CompareInterrupted

    made: list[Any] = []

    def interrupted(job: Any) -> str:
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append(job)
        return original(job)

    original = runs.answer_of
    monkeypatch.setattr(runs, "answer_of", interrupted)
    with pytest.raises(CompareInterrupted) as caught:
        compare([small, small.replace({"load.rate_per_s": 8})], seeds=4, workers=1)
    found = caught.value.comparison
    assert (found.seeds, found.missing) == ((1, 2), 3)
    assert {len(one.points) for one in found.scenarios} == {2}
    assert all(isinstance(one, Compared) for one in found.scenarios)


def test_a_tenant_beside_another_is_compared_class_by_class(small: sim.Scenario) -> None:
    """At the first's own rate all its draws are shared; its latencies stand beside those of everybody."""
    chat = {"chat": {"share": 4}}
    one = small.replace({"workload.classes": chat})
    heavy = {"share": 1, "lengths": {**LENGTHS, "prompt_mean": 4000}}
    two = small.replace({"workload.classes": {**chat, "heavy": heavy}, "load.rate_per_s": 5})
    assert not_shared(one, two) == ()
    found = numbers(compare([one, two], seeds=2, workers=1))
    assert "by_class.heavy.ttft_s.p99" not in found
    gap = found["by_class.chat.ttft_s.p99"]
    own = sim.simulate(two).summary()["by_class"]["chat"]["ttft_s"]["p99"]
    assert gap["values"][0] == own != found[TTFT]["values"][0]
    assert gap["difference"]["mean"] > 0


def test_draws_of_any_class_may_differ(small: sim.Scenario) -> None:
    """Not of the first alone; the other classes' are shared."""
    chat, mail = {"share": 2}, {"share": 1}
    one = small.replace({"workload.classes": {"chat": chat, "mail": mail}})
    for name in ("chat", "mail"):
        classes = {
            "chat": chat,
            "mail": mail,
            name: {"share": {"chat": 2, "mail": 1}[name], "lengths": MIXTURE},
        }
        other = small.replace({"workload.classes": classes})
        assert not_shared(one, other) == ("prompt lengths", "answer lengths")
    assert not_shared(one, one) == ()


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("total", "patience"),
        ("first_token", "patience for a first token"),
        ("queue", "patience in the queue"),
        ("stop_after", "tokens read"),
    ],
)
def test_every_kind_of_patience_is_compared(small: sim.Scenario, limit: str, words: str) -> None:
    """Another mean is the same draw scaled, another kind is other draws; so for the share that has it."""
    lengths = {"kind": "fixed", "prompt_tokens": 9, "output_tokens": 1000}
    mean = "mean" if limit == "stop_after" else "mean_s"

    def with_patience(kind: str, value: float, **more: float) -> sim.Scenario:
        part = {"kind": kind, mean: value, "share": 0.5, **more}
        return small.replace({"workload.lengths": lengths, "workload.patience": {limit: part}})

    first = with_patience("exponential", 60.0)
    assert not_shared(first, with_patience("exponential", 90.0)) == ()
    assert not_shared(first, with_patience("lognormal", 60.0, cv=1.0)) == (words,)
