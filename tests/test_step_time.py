"""The cost of an iteration: against quadrature, step by step, and its laws."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_times import attention_s, decode_s, parts, prefill_s, scenario, step_time, table_error

from sim.clock import TICK_S
from sim.hardware import AttentionShape, HardwareProfile
from sim.hardware import PrefillAttention as Kernel
from sim.hardware.residuals import Residuals
from sim.serving.compile import compile_step_time
from sim.serving.decode_attention import DecodeAttention
from sim.serving.prefill_attention import PrefillAttention
from sim.serving.step_time import Composition, StepTime
from sim.simulation import ledger_of

CARDS = ("a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm", "l40s-48gb-pcie")
LLAMA_3_8B = AttentionShape(heads=32, kv_heads=8, head_dim=128, kv_element_bytes=2.0)
MIDPOINT_ERROR = 1e-6  # relative, of an integral between midpoints against the sum over iterations


def smooth_prefill() -> Kernel:
    """The A100's form of prefill attention, without the table of what it misses."""
    return replace(parts(scenario())[0].prefill_attention("bf16"), residual=None, kv_residual=None)


def begun(model: StepTime, n: int, context_tokens: int, start_s: float = 0.0) -> Composition:
    batch = model.composition()
    batch.begin(start_s, n, context_tokens)
    return batch


# -- the tabulated roofline --------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.7, 0.9113, 1.0, 1.5, 2.0, 3.0])
def test_the_integral_is_that_of_the_smooth_roofline(exponent: float) -> None:
    """Against adaptive quadrature, for a millisecond of traffic a layer over 12 us of overhead.

    The table is good to 8e-4 relatively from exponent 0.9 on, and to 6e-3 at 0.7, where the roofline is
    steepest at no work.
    """
    from scipy.integrate import quad

    overhead_s, most = 1.2e-5, 100_000

    def roofline(tokens: np.ndarray | float) -> np.ndarray | float:
        return (overhead_s**exponent + (tokens * 1e-8) ** exponent) ** (1 / exponent)

    table = DecodeAttention(lambda n, tokens: roofline(tokens) + 0.0 * n, 8, most, most)
    edges = np.concatenate([[0.0], np.geomspace(most * 1e-9, most, 60)])
    pieces = [quad(roofline, a, b, epsabs=0, epsrel=1e-12)[0] for a, b in pairwise(edges)]
    bound = 8e-4 if exponent > 0.9 else 6e-3
    eight = np.full(60, 8)
    np.testing.assert_allclose(table.upto(eight, edges[1:]), np.cumsum(pieces), rtol=bound)
    np.testing.assert_allclose([table.at(8, c) for c in edges], [roofline(c) for c in edges], rtol=bound)


def test_a_time_that_falls_is_held() -> None:
    """More context never makes attention faster, whatever a measured table says between two of its nodes."""
    table = DecodeAttention(lambda n, tokens: 2.0 + np.cos(tokens / 300.0) + 0.0 * n, 1, 1000, 1000)
    assert [table.at(1, c) for c in (0.0, 300.0, 900.0)] == pytest.approx([3.0, 3.0, 3.0])
    assert table.reaching(1, 2.5) == -np.inf
    assert table.reaching(1, 3.1) == np.inf


def test_the_context_that_takes_so_long_is_found_again() -> None:
    """`reaching` undoes `at`, for any number of sequences."""
    model = step_time()
    for n, context in ((1, 900.0), (16, 16_000.0), (256, 300_000.0)):
        seconds = model.attention.at(n, context)
        assert model.attention.reaching(n, seconds) == pytest.approx(context, rel=1e-9)
    assert model.attention.reaching(16, 1.0) == np.inf


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("card", CARDS)
def test_the_table_is_within_its_stated_error_on_every_shipped_profile(
    card: str, kv_cache_dtype: str
) -> None:
    """From a token a sequence to a full pool, against the profile's own kernel, held where it would fall."""
    model = step_time(card, kv_cache_dtype=kv_cache_dtype)
    tokens = ledger_of(scenario(card, kv_cache_dtype=kv_cache_dtype)).kv_cache_tokens
    for n in (1, 3, 32, 256):
        contexts = np.geomspace(n, min(tokens, n * 8192), 200)
        below = np.linspace(0.0, n, 20)
        exact_s = attention_s(card, n, np.concatenate([below, contexts]), kv_cache_dtype)
        exact_s = np.maximum.accumulate(exact_s)[20:]
        table_s = [model.attention.at(n, context) for context in contexts.tolist()]
        np.testing.assert_allclose(table_s, exact_s, rtol=table_error(card))


# -- compositions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", ["a100-80gb-sxm", "h100-80gb-sxm"])
@pytest.mark.parametrize("n", [1, 2, 7, 16, 64, 255, 256])
@pytest.mark.parametrize("context", [1, 40, 1000])
def test_a_composition_lasts_as_long_as_its_iterations_together(card: str, n: int, context: int) -> None:
    """The closed sum against adding up every iteration's own cost at its own context.

    The model sums by the integral between midpoints, so that the two differ: by less than 1e-6 where a form
    is smooth, by less than 2e-5 across the corners of a table of residuals.
    """
    model = step_time(card)
    base_s = model.tokens_s[n] + model.sampled_s[n] + model.host_step_s + n * model.host_sequence_s
    batch, total_s = begun(model, n, n * context), 0.0
    for done in range(300):
        total_s += base_s + model.layers * model.attention.at(n, n * (context + done))
        assert batch.elapsed_s(done + 1) == pytest.approx(total_s, rel=20 * MIDPOINT_ERROR)


@pytest.mark.parametrize("n", [1, 3, 32, 256])
@pytest.mark.parametrize("context", [1, 40, 1000])
def test_a_composition_and_single_steps_agree_on_what_an_iteration_costs(n: int, context: int) -> None:
    """A decode costs the same whether it is stepped through as a mixed step or counted in a composition."""
    model = step_time()
    batch, total_s = begun(model, n, n * context), 0.0
    for done in range(300):
        total_s += decode_s(model, n, n * (context + done))
        assert batch.elapsed_s(done + 1) == pytest.approx(total_s, rel=20 * MIDPOINT_ERROR)


POOL_TOKENS = 300_000  # all pools below are larger
batches = st.tuples(
    st.sampled_from([("a100-80gb-sxm", "auto"), ("h100-80gb-sxm", "auto"), ("h100-80gb-sxm", "fp8")]),
    st.integers(1, 256),
    st.integers(1, 1000),
)


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(1, 400))
def test_ends_rise_and_lie_on_the_grid(batch: tuple[tuple[str, str], int, int], iterations: int) -> None:
    """Every iteration takes time, an iteration is never shorter than the one before, all on 2^-32 s."""
    (card, kv_cache_dtype), n, context = batch
    composition = begun(step_time(card, kv_cache_dtype=kv_cache_dtype), n, n * context)
    ends_s = np.array([composition.elapsed_s(i) for i in range(iterations + 1)])
    assert ends_s[0] == 0.0
    np.testing.assert_array_equal(ends_s / TICK_S, np.rint(ends_s / TICK_S))
    assert (np.diff(ends_s) > 0.0).all()
    assert (np.diff(ends_s, 2) >= -3 * TICK_S).all()  # rounding


@settings(max_examples=60, deadline=None)
@given(batches, st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_scalar_and_array_agree_bit_for_bit(
    batch: tuple[tuple[str, str], int, int], counts: list[int]
) -> None:
    """What the event loop sleeps and what the results regenerate from the log are the same numbers."""
    (card, kv_cache_dtype), n, context = batch
    model = step_time(card, kv_cache_dtype=kv_cache_dtype)
    composition = begun(model, n, n * context)
    counts = [min(count, POOL_TOKENS // n - context) for count in counts]
    many = np.full(len(counts), n)
    together = model.elapsed_s(many, many * context, np.array(counts))
    assert together.tolist() == [composition.elapsed_s(count) for count in counts]


@settings(max_examples=150, deadline=None)
@given(
    batches,
    st.integers(1, 3000),
    st.floats(0.0, 1.0),
    st.sampled_from([-1, 0, 1]),
)
def test_reaches_finds_the_first_end_at_or_after_a_time(
    batch: tuple[tuple[str, str], int, int], iterations: int, share: float, ticks: int
) -> None:
    """Asked about an end, a tick before it and a tick after it: an exact tie is reached, a tick later is not.

    Plain search over all ends says which iteration it is.
    """
    (card, kv_cache_dtype), n, context = batch
    model = step_time(card, kv_cache_dtype=kv_cache_dtype)
    composition = begun(model, n, n * context)
    iterations = min(iterations, POOL_TOKENS // n - context)
    numbers = np.arange(1, iterations + 1)
    many = np.full(iterations, n)
    ends_s = model.elapsed_s(many, many * context, numbers)
    asked_s = float(ends_s[ceil(share * iterations) - 1 if share else 0]) + ticks * TICK_S
    asked_s = min(asked_s, float(ends_s[-1]))
    first = int(np.searchsorted(ends_s, asked_s))
    assert composition.reaches(asked_s, iterations) == (first + 1, ends_s[first])


@settings(max_examples=100, deadline=None)
@given(batches, st.integers(1, 3000), st.floats(0.0, 1.0))
def test_reaches_finds_the_iteration_in_progress(
    batch: tuple[tuple[str, str], int, int], iterations: int, share: float
) -> None:
    """The same at any time in between, the very start included."""
    (card, kv_cache_dtype), n, context = batch
    composition = begun(step_time(card, kv_cache_dtype=kv_cache_dtype), n, n * context)
    iterations = min(iterations, POOL_TOKENS // n - context)
    total_s = composition.elapsed_s(iterations)
    count, end_s = composition.reaches(share * total_s, iterations)
    assert 1 <= count <= iterations
    assert end_s == composition.elapsed_s(count) >= share * total_s
    assert count == 1 or composition.elapsed_s(count - 1) < share * total_s


def test_a_composition_can_run_until_the_pool_is_full() -> None:
    """The look-up table covers every context that the pool can hold, whatever the block size.

    One-token blocks and a kernel without a cost a sequence leave the table no slack.
    """
    profile, spec = parts(scenario())
    kernel = replace(profile.kernels.attention_decode, head_sequence_s=0.0)
    profile = replace(profile, kernels=replace(profile.kernels, attention_decode=kernel))
    engine = {**scenario().engine, "block_size": 1}
    tokens, n = 2560, 256
    model = compile_step_time(profile, spec, engine, tokens)
    assert begun(model, n, tokens).elapsed_s(1) > begun(model, n, tokens - n).elapsed_s(1)


# -- laws of prefill ---------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 2048), st.integers(1, 6000))
def test_cached_context_makes_a_chunk_dearer(new: int, cached: int) -> None:
    """c tokens after k cached ones attend to k more each: never cheaper than alone, clearly so for long k."""
    kernel = smooth_prefill()
    attention = PrefillAttention(kernel, LLAMA_3_8B)
    alone_s, after_s = attention.seconds(new, 0, new * new), attention.seconds(new, new * cached, new * new)
    pairs_s = 4 * 32 * 128 * new * cached / kernel.flops_per_s
    assert after_s > alone_s
    if kernel.exponent <= 1.0:
        assert after_s - alone_s >= 0.999 * pairs_s


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=8))
def test_chunks_of_a_prompt_hold_all_its_pairs(chunks: list[int]) -> None:
    """Query-key pairs are conserved: chunk by chunk, c k + c^2 / 2 adds up to that of the whole prompt.

    So chunking saves nothing: every step more costs its weights and overheads again.
    """
    kernel = replace(smooth_prefill(), overhead_s=0.0, causal_weight=0.5)
    attention = PrefillAttention(kernel, LLAMA_3_8B)
    cached = np.concatenate([[0], np.cumsum(chunks)[:-1]]).tolist()
    whole = sum(chunks)
    pieces_s = sum(attention.seconds(c, c * k, c * c) for c, k in zip(chunks, cached, strict=True))
    assert pieces_s == pytest.approx(attention.seconds(whole, 0, whole * whole), rel=1e-9)
    if whole <= 2048:
        dear_s = sum(prefill_s(step_time(), (c, k)) for c, k in zip(chunks, cached, strict=True))
        assert dear_s >= 0.97 * prefill_s(step_time(), (whole, 0))


# -- with what the smooth forms miss -----------------------------------------------------------------


def bent(card: str = "a100-80gb-sxm") -> HardwareProfile:
    """The card with tables of what its forms miss that no neighbouring entries agree on."""
    rng = np.random.default_rng(5)
    nodes, ratios = np.array([1.0, 100.0, 1e5]), np.array([1.0, 4.0, 8.0])
    decode = Residuals(
        {"head_sequences": nodes, "context_tokens": nodes, "heads_per_kv_head": ratios},
        np.sort(rng.uniform(0.7, 1.4, (3, 3, 3)), axis=1),
    )
    prefill = Residuals(
        {"head_tokens": nodes, "span_tokens": nodes, "heads_per_kv_head": ratios},
        rng.uniform(0.7, 1.4, (3, 3, 3)),
    )
    profile = parts(scenario(card))[0]
    kernels = replace(
        profile.kernels,
        attention_decode=replace(profile.kernels.attention_decode, residual=decode),
        attention_prefill=replace(profile.kernels.attention_prefill, residual=prefill),
    )
    return replace(profile, kernels=kernels)


def test_what_the_forms_miss_reaches_the_iteration() -> None:
    """Of decodes and of chunks, at contexts between the nodes, as the profile itself says it."""
    profile, (_, spec) = bent(), parts(scenario())
    model = compile_step_time(profile, spec, scenario().engine, 200_000)
    none = {"sampled_s": [0.0] * len(model.sampled_s), "host_step_s": 0.0, "host_sequence_s": 0.0}
    bare = replace(model, tokens_s=[0.0] * 6000, **none)
    for n, context in ((1, 700), (12, 9000), (200, 150_000)):
        exact_s = profile.decode_attention("bf16").seconds(n, context + n * 7.5, LLAMA_3_8B)
        assert decode_s(bare, n, context) == pytest.approx(32 * float(exact_s), rel=5e-3)
    for chunks in (((300, 0),), ((512, 4000),), ((7, 0), (600, 90), (1, 3000))):
        new, cached = (np.array(column) for column in zip(*chunks, strict=True))
        exact_s = profile.prefill_attention("bf16").seconds(
            new.sum(), (new * cached).sum(), (new * new).sum(), LLAMA_3_8B
        )
        assert prefill_s(bare, *chunks) == pytest.approx(32 * float(exact_s), rel=1e-6)


def test_a_closed_sum_holds_what_the_forms_miss() -> None:
    """300 iterations at once are 300 single ones, also where the table bends."""
    profile, (_, spec) = bent(), parts(scenario())
    model = compile_step_time(profile, spec, scenario().engine, 200_000)
    for n, context in ((1, 40), (16, 20_000), (200, 60_000)):
        single_s = sum(decode_s(model, n, context + n * done) for done in range(300))
        assert begun(model, n, context).elapsed_s(300) == pytest.approx(single_s, rel=2 * MIDPOINT_ERROR)


def test_chunks_in_one_step_are_the_chunks_one_by_one_without_the_shared_costs() -> None:
    """Two prompts in a step share the overheads: cheaper than two steps, dearer than the larger alone."""
    model = step_time()
    both_s = prefill_s(model, (600, 0), (400, 1000))
    assert both_s < prefill_s(model, (600, 0)) + prefill_s(model, (400, 1000))
    assert both_s > max(prefill_s(model, (600, 0)), prefill_s(model, (400, 1000)))


def test_a_short_chunk_after_a_long_prefix_reads_it_at_least() -> None:
    """16 new tokens after 30,000 cached ones cannot be quicker than one new token that reads as many."""
    asked = scenario("h100-80gb-sxm").replace({"model": "llama-3.1-8b", "engine.max_model_len": 32768})
    model = compile_step_time(*parts(asked), asked.engine, ledger_of(asked).kv_cache_tokens)
    for cached in (1000, 8000, 30_000):
        read_s = model.layers * model.attention.at(1, cached)
        chunk_s = prefill_s(model, (16, cached)) - model.tokens_s[16] - model.host_s[1]
        assert chunk_s >= read_s - 2 * TICK_S


def test_a_context_that_no_batch_can_have_can_be_asked_for() -> None:
    """Beyond the longest permitted context the last piece goes on, in single steps and in sums."""
    model = step_time(max_model_len=256)
    longest, beyond = np.array([512.0]), np.array([2000.0])
    one = np.array([1])
    rise_s = model.attention.upto(one, beyond)[0] - model.attention.upto(one, longest)[0]
    assert model.attention.at(1, 2000.0) > model.attention.at(1, 512.0)
    assert 0.9 < rise_s / (1488.0 * (model.attention.at(1, 512.0) + model.attention.at(1, 2000.0)) / 2) < 1.1
