"""The laws every operation's time obeys, and hand values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.hardware import (
    AllReduce,
    AttentionShape,
    DecodeAttention,
    Elementwise,
    Gemm,
    PrefillAttention,
    Roofline,
)
from sim.hardware.residuals import Residuals

work = st.floats(min_value=1.0, max_value=1e18)
exponents = st.floats(min_value=0.5, max_value=5.0)


@given(flops=work, moved=work, more=st.floats(min_value=1.0, max_value=1e3), exponent=exponents)
def test_more_work_never_takes_less_time(flops: float, moved: float, more: float, exponent: float) -> None:
    """The roofline is monotone in flops and in bytes (to the last bits of a power)."""
    roof = Roofline(1e15, 3e12, exponent, 4e-6)
    base = roof.seconds(flops, moved) * (1 - 1e-12)
    assert roof.seconds(flops * more, moved) >= base
    assert roof.seconds(flops, moved * more) >= base


@given(flops=work, moved=work, exponent=exponents)
def test_no_operation_beats_either_limit(flops: float, moved: float, exponent: float) -> None:
    """The time is at least the larger of compute and memory time, and at most their sum for p >= 1."""
    compute_s, memory_s = flops / 1e15, moved / 3e12
    seconds = Roofline(1e15, 3e12, exponent, 4e-6).seconds(flops, moved) - 4e-6
    slack = 1e-9 * seconds + 1e-18
    assert seconds >= max(compute_s, memory_s) - slack
    if exponent >= 1:
        assert seconds <= compute_s + memory_s + slack


def test_a_large_exponent_is_the_hard_roofline() -> None:
    """p = 20 is max(flops / F, bytes / B) + overhead but for 1e-7: 2e12 / 1e15 = 2 ms, 3e9 / 3e12 = 1 ms."""
    assert Roofline(1e15, 3e12, 20, 1e-6).seconds(2e12, 3e9) == pytest.approx(2.001e-3, rel=1e-6)


def test_arrays_and_numbers_agree() -> None:
    """One expression serves both, so a compiled table is the model itself."""
    tokens = np.arange(1, 300.0)
    gemm = Gemm(Roofline(8e14, 3e12, 2.6, 4e-6), 2.0, 2.0)
    prefill = PrefillAttention(6e14, 3e-10, 0.7, 1.2e-5)
    decode = DecodeAttention(3e12, 2e-8, 1.0, 1.2e-5)
    operations = [
        lambda t: gemm.seconds(t, 6144, 4096),
        lambda t: prefill.smooth_s(prefill.flops(32, 128, t, 64), 32 * t),
        lambda t: decode.smooth_s(decode.load_s(4096.0 * t, 8 * t)),
        AllReduce(4e-6, 2e11, 0.6).seconds,
        Elementwise(2.8e12, 2.5e-6).seconds,
    ]
    for seconds in operations:
        np.testing.assert_allclose(seconds(tokens), [seconds(float(t)) for t in tokens], rtol=1e-13)


def test_a_linear_layer_counts_its_flops_and_bytes() -> None:
    """m = 2, n = 3, k = 5: 60 flops; bf16 weights 30 B, activations 20 B in, 12 B out; fp8 15 + 40 + 12."""
    bytes_alone = Roofline(1e30, 1.0, 20, 0.0)
    assert Gemm(bytes_alone, 2.0, 2.0).seconds(2.0, 3, 5) == pytest.approx(62)
    assert Gemm(bytes_alone, 1.0, 4.0).seconds(2.0, 3, 5) == pytest.approx(67)
    assert Gemm(Roofline(1.0, 1e30, 20, 0.0), 2.0, 2.0).seconds(2.0, 3, 5) == pytest.approx(60)


def test_a_step_that_quantises_comes_on_top() -> None:
    """m = 2, k = 5: ten inputs at three bytes each, at 10 B/s 3 s beside what the product takes."""
    product = Gemm(Roofline(1.0, 1e30, 20, 0.0), 1.0, 1.0)
    both = replace(product, quantise_bytes_per_s=10.0)
    assert both.seconds(2.0, 3, 5) == pytest.approx(product.seconds(2.0, 3, 5) + 3.0)


@given(
    chunks=st.lists(st.integers(min_value=1, max_value=4096), min_size=2, max_size=6),
    cached=st.integers(min_value=0, max_value=10_000),
)
def test_chunking_a_prompt_does_not_change_its_attention_flops(chunks: list[int], cached: int) -> None:
    """With causal weight 1/2 the pairs of tokens add up: c k + c^2 / 2 telescopes to the whole prompt's."""
    kernel = PrefillAttention(6e14, 3e-10, 0.7, 1.2e-5)
    before = cached + np.cumsum([0, *chunks[:-1]])
    parts = sum(kernel.flops(32, 128, float(c), float(k)) for c, k in zip(chunks, before, strict=True))
    assert parts == pytest.approx(kernel.flops(32, 128, float(sum(chunks)), float(cached)))


@given(load=st.lists(st.floats(min_value=0, max_value=1e12), min_size=2, max_size=5))
def test_decode_load_adds_up_over_sequences(load: list[float]) -> None:
    """y is one number for a batch, which lets decode steps be integrated over a growing context."""
    kernel = DecodeAttention(3e12, 2e-8, 0.98, 1.2e-5)
    alone = sum(kernel.load_s(kv_bytes, 8.0) for kv_bytes in load)
    assert alone == pytest.approx(kernel.load_s(sum(load), 8.0 * len(load)))


def test_small_messages_and_short_contexts_cost_the_floor() -> None:
    """Nothing to move still takes the latency of the call."""
    assert AllReduce(4e-6, 2e11, 0.6).seconds(0.0) == pytest.approx(4e-6)
    assert DecodeAttention(3e12, 2e-8, 0.98, 1.2e-5).smooth_s(0.0) == pytest.approx(1.2e-5)
    assert PrefillAttention(6e14, 3e-10, 0.7, 1.1e-5).smooth_s(0.0, 0.0) == pytest.approx(1.1e-5)
    assert Elementwise(2.8e12, 2.5e-6).seconds(2.8e6) == pytest.approx(3.5e-6)


SHAPE = AttentionShape(heads=32, kv_heads=8, head_dim=128, kv_element_bytes=2.0)


def test_attention_of_a_batch_counts_its_kv_bytes_and_pairs() -> None:
    """4 sequences of 1000 tokens read 4000 x 2 x 8 x 128 x 2 bytes; chunks are charged their pairs."""
    decode, prefill = DecodeAttention(3e12, 2e-8, 0.98, 1.2e-5), PrefillAttention(6e14, 3e-10, 0.7, 1.1e-5)
    assert decode.seconds(4, 4000, SHAPE) == pytest.approx(decode.smooth_s(decode.load_s(4000 * 4096.0, 32)))
    by_chunk = prefill.smooth_s(prefill.flops(32, 128, 512.0, 1000.0), 32 * 512.0)
    assert prefill.seconds(512, 512 * 1000, 512 * 512, SHAPE) == pytest.approx(by_chunk)


def test_a_residual_is_read_where_the_thread_blocks_are_as_many_and_as_long() -> None:
    """Half the KV heads at twice the sequences is the same work to decode; a cached token counts as seen."""
    nodes = {"head_sequences": np.array([1.0, 64.0]), "context_tokens": np.array([16.0, 4096.0])}
    table = Residuals(nodes, np.array([[1.0, 1.5], [0.7, 2.0]]))
    decode = DecodeAttention(3e12, 2e-8, 1.0, 1.2e-5, residual=table)
    halved = AttentionShape(heads=16, kv_heads=4, head_dim=128, kv_element_bytes=2.0)
    assert decode.seconds(4, 4 * 300, SHAPE) == pytest.approx(decode.seconds(8, 8 * 300, halved))
    assert decode.seconds(8, 8 * 4096, SHAPE) == pytest.approx(2.0 * without_residual_s(decode, 8, 8 * 4096))

    spans = Residuals({"span_tokens": np.array([256.0, 4096.0])}, np.array([1.0, 3.0]))
    prefill = PrefillAttention(6e14, 0.0, 1.0, 0.0, 0.5, residual=spans)
    pairs = 256 * (1920 + 256 / 2)
    assert prefill.seconds(256, 256 * 1920, 256**2, SHAPE) == pytest.approx(3 * 4 * 32 * 128 * pairs / 6e14)


def without_residual_s(kernel: DecodeAttention, sequences: int, context_tokens: int) -> float:
    """The kernel's time without its residual."""
    return float(replace(kernel, residual=None).seconds(sequences, context_tokens, SHAPE))


def test_a_server_reads_its_kv_from_memory_where_a_loop_found_it_cached() -> None:
    """A loop reads a KV well below the cache's size at the cache's rate, one well above it at memory's."""
    kernel = DecodeAttention(1e12, 0.0, 1.0, 0.0, cached_below_bytes=128e6, cached_bytes_per_s=4e12)
    small, large = 4096, 1_000_000  # tokens of 4096 bytes: 16.8 MB and 4.1 GB
    assert kernel.seconds(4, small, SHAPE) == pytest.approx(4096.0 * small / 1e12)
    assert kernel.looped_s(4, small, SHAPE) == pytest.approx(4096.0 * small / 4e12, rel=1e-3)
    assert kernel.looped_s(4, large, SHAPE) == pytest.approx(kernel.seconds(4, large, SHAPE), rel=1e-3)


@pytest.mark.parametrize(
    ("sequences", "heads", "kv_heads", "regrouped"),
    [(2, 8, 2, True), (1, 8, 2, False), (2, 8, 1, False), (2, 2, 2, False)],
)
def test_queries_are_regrouped_where_they_lie_apart(
    sequences: int, heads: int, kv_heads: int, regrouped: bool
) -> None:
    """One sequence, one KV head or one query a KV head: those that belong together are neighbours already."""
    kernel = DecodeAttention(1e12, 0.0, 1.0, 1e-5, regroup_s=4e-6)
    shape = AttentionShape(heads, kv_heads, 128, 2.0)
    plain_s = replace(kernel, regroup_s=0.0).seconds(sequences, 1000, shape)
    assert kernel.seconds(sequences, 1000, shape) - plain_s == pytest.approx(4e-6 if regrouped else 0.0)


def test_the_table_of_a_shape_is_all_its_residuals() -> None:
    """What a simulation asks once an iteration is what the kernel says, on and between the nodes of both."""
    blocks = {"head_tokens": np.array([512.0, 65536.0]), "span_tokens": np.array([64.0, 4096.0])}
    both = PrefillAttention(
        *(6e14, 3e-10, 0.8, 1e-5),
        residual=Residuals(blocks, np.array([[1.0, 1.5], [0.7, 2.0]])),
        kv_residual=Residuals({"new_tokens": np.array([100.0, 1000.0]), "kv_heads": np.array([1.0, 8.0])},
                              np.array([[1.0, 1.2], [0.9, 0.6]])),
    )  # fmt: skip
    table, new = both.table(SHAPE), np.array([10, 70, 100, 333, 1000, 4000])
    assert table is not None
    plain_s = replace(both, residual=None, kv_residual=None).seconds(new, 0, new**2, SHAPE)
    factor = table.factor(head_tokens=32 * new, span_tokens=new)
    np.testing.assert_allclose(both.seconds(new, 0, new**2, SHAPE), plain_s * factor)
    assert replace(both, residual=None, kv_residual=None).table(SHAPE) is None
