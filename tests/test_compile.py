"""Step times against adding up the profile's rooflines by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from step_times import decode_s, parts, prefill_s, scenario, step_time, table_error

from sim.hardware import AttentionShape, HardwareProfile
from sim.scenario import Scenario
from sim.serving.compile import captured_sizes, compile_step_time, padded_tokens
from sim.serving.step_time import Composition, StepTime
from sim.simulation import ledger_of


def begun(model: StepTime, n: int, context_tokens: int, start_s: float = 0.0) -> Composition:
    batch = model.composition()
    batch.begin(start_s, n, context_tokens)
    return batch


# -- against adding up the profile's rooflines -------------------------------------------------------


def token_wise_s(asked: Scenario, computed: int, sampled: int) -> float:
    """Linear layers, norms and collectives of *computed* tokens and the LM head of *sampled*, by hand."""
    profile, spec = parts(asked)
    gpus = asked.engine["tensor_parallel_size"]
    gemm = profile.gemm(spec.dtype)
    layer_s = sum(gemm.seconds(computed, n, k) for n, k in spec.layer_gemms(gpus))
    layer_s += profile.kernels.elementwise.seconds(computed * spec.elementwise_bytes_per_token(gpus))
    if gpus > 1:
        layer_s += 2 * profile.all_reduce(gpus).seconds(2 * computed * spec.hidden_size)
    head_s = 0.0
    if sampled:
        head_s = gemm.seconds(sampled, spec.vocab_size // gpus, spec.hidden_size)
        head_s += profile.kernels.elementwise.seconds(3 * 4 * spec.vocab_size * sampled)
    return spec.layers * layer_s + head_s


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("card", ["a100-80gb-sxm", "h100-80gb-sxm"])
def test_a_decode_step_is_the_sum_of_its_operations(card: str, gpus: int) -> None:
    """32 sequences of 1000 tokens: a captured batch size, each sequence's last block read whole."""
    asked = scenario(card, tensor_parallel_size=gpus)
    profile, spec = parts(asked)
    n, context = 32, 1000
    shape = AttentionShape(32 // gpus, 8 // gpus, 128, 2.0)
    attention_s = profile.decode_attention("bf16").seconds(n, n * (context + 15 / 2), shape)
    by_hand_s = (
        token_wise_s(asked, n, n)
        + spec.layers * attention_s
        + asked.engine["host_step_s"]
        + n * asked.engine["host_sequence_s"]
    )
    model = step_time(card, tensor_parallel_size=gpus)
    assert decode_s(model, n, n * context) == pytest.approx(by_hand_s, rel=table_error(card))


@pytest.mark.parametrize("block_size", [16, 32])
def test_the_last_block_of_a_sequence_is_read_whole(block_size: int) -> None:
    """64 sequences of 200 tokens read half a block more each: 2 % of what blocks of 16 take, 5 of 32."""
    profile, spec = parts(scenario(block_size=block_size))
    read = 64 * (200 + (block_size - 1) / 2)
    kernel, shape = profile.decode_attention("bf16"), AttentionShape.of(spec, "bf16", 1)
    in_table_s = step_time(block_size=block_size).attention.at(64, 64 * 200)
    assert in_table_s == pytest.approx(float(kernel.seconds(64, read, shape)), rel=0.003)


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("card", ["a100-80gb-sxm", "h100-80gb-sxm"])
def test_a_prefill_chunk_is_the_sum_of_its_operations(card: str, gpus: int) -> None:
    """1024 new tokens after 3000 cached ones, the last of the prompt: one token is sampled."""
    asked = scenario(card, tensor_parallel_size=gpus)
    profile, spec = parts(asked)
    new, cached = 1024, 3000
    shape = AttentionShape(32 // gpus, 8 // gpus, 128, 2.0)
    attention_s = profile.prefill_attention("bf16").seconds(new, new * cached, new * new, shape)
    host_s = asked.engine["host_step_s"] + asked.engine["host_sequence_s"]
    by_hand_s = token_wise_s(asked, new, 1) + spec.layers * attention_s + host_s
    model = step_time(card, tensor_parallel_size=gpus)
    assert prefill_s(model, (new, cached), sampled=1) == pytest.approx(by_hand_s, rel=1e-6)


def test_two_gpus_share_the_work_and_pay_for_the_collectives() -> None:
    """Large batches gain almost half; beside the halved linear layers the all-reduces are what is added."""
    one, two = step_time("h100-80gb-sxm"), step_time("h100-80gb-sxm", tensor_parallel_size=2)
    assert 0.5 < two.tokens_s[2048] / one.tokens_s[2048] < 0.8
    assert two.attention.at(64, 2e5) < 0.6 * one.attention.at(64, 2e5)
    assert two.prefill.seconds(8192, 0, 8192**2) < 0.6 * one.prefill.seconds(8192, 0, 8192**2)
    assert two.sampled_s[64] < one.sampled_s[64]

    asked = scenario("h100-80gb-sxm", tensor_parallel_size=2)
    profile, spec = parts(asked)
    free = replace(profile.all_reduce(2), latency_s=0.0, bytes_per_s=inf)
    without = replace(profile, kernels=replace(profile.kernels, all_reduce={2: free}))
    gemms_only = compile_step_time(without, spec, asked.engine, ledger_of(asked).kv_cache_tokens)
    each_s = profile.all_reduce(2).seconds(2.0 * 64 * spec.hidden_size)
    assert two.tokens_s[64] - gemms_only.tokens_s[64] == pytest.approx(2 * spec.layers * each_s)


def test_the_lm_head_is_paid_for_tokens_that_come_out_only() -> None:
    """A chunk in the middle of a prompt samples nothing; its end samples one token, whatever its length."""
    model = step_time()
    for new in (100, 2000):
        saved_s = prefill_s(model, (new, 0), sampled=1) - prefill_s(model, (new, 0))
        assert saved_s == pytest.approx(token_wise_s(scenario(), 0, 1) - token_wise_s(scenario(), 0, 0))
    assert model.sampled_s[0] == 0.0
    sampled_s = np.array(model.sampled_s)
    # As measured: where a larger tile begins, a little more can take a little less.
    assert (sampled_s >= 0.94 * np.maximum.accumulate(sampled_s)).all()


# -- CUDA graphs, host, quantised cache --------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "computed"),
    [
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 4),
        (4, 4),
        (5, 8),
        (9, 16),
        (250, 256),
        (256, 256),
        (257, 272),
        (512, 512),
        (513, 513),
    ],
)
def test_batches_are_padded_to_the_next_captured_graph(tokens: int, computed: int) -> None:
    """1, 2, 4, eights to 256, sixteens to 512, and as they are beyond; nothing is padded without graphs."""
    assert padded_tokens(2048, 512)[tokens] == computed
    assert padded_tokens(2048, 0)[tokens] == tokens


@pytest.mark.parametrize("largest", [1, 2, 3, 8, 100, 256, 300, 1024])
def test_no_graph_is_larger_than_the_largest(largest: int) -> None:
    """Padding never goes beyond the largest captured size, nor below the batch."""
    assert captured_sizes(largest)[-1] <= largest
    padded = padded_tokens(2000, largest)
    assert (padded >= np.arange(2001)).all()
    assert (padded[largest + 1 :] == np.arange(largest + 1, 2001)).all()
    assert set(padded[1 : captured_sizes(largest)[-1] + 1]) == set(captured_sizes(largest))


def test_padding_costs_time_only_with_cuda_graphs() -> None:
    """250 tokens take as long as 256 in a graph, and less without; 513 are not padded."""
    padded, exact = step_time(), step_time(cuda_graphs=False)
    assert padded.tokens_s[250] == padded.tokens_s[256] == exact.tokens_s[256] > exact.tokens_s[250]
    assert padded.tokens_s[513] == exact.tokens_s[513]
    assert padded.tokens_s[3] == padded.tokens_s[4] == exact.tokens_s[4] > exact.tokens_s[3]


def test_the_host_is_paid_per_step_and_per_sequence() -> None:
    """A millisecond more a step and 10 us more a sequence: 1 ms + 0.32 ms at 32 sequences, either way."""
    usual = step_time(host_step_s=1e-4, host_sequence_s=1e-6)
    slow = step_time(host_step_s=1.1e-3, host_sequence_s=1.1e-5)
    n, context = 32, 32_000
    assert decode_s(slow, n, context) - decode_s(usual, n, context) == pytest.approx(1.32e-3, abs=1e-9)
    later_s = begun(slow, n, context).elapsed_s(10) - begun(usual, n, context).elapsed_s(10)
    assert later_s == pytest.approx(10 * 1.32e-3, abs=1e-9)
    chunks = ((100, 0), (50, 30))
    assert prefill_s(slow, *chunks) - prefill_s(usual, *chunks) == pytest.approx(1.02e-3, abs=1e-9)


def test_an_eight_bit_cache_halves_the_traffic_of_attention() -> None:
    """Where the profile has no 8-bit kernel of its own, half the bytes in about half the time."""
    assert HardwareProfile.from_mapping(scenario().hardware).kernels.attention_decode_fp8 is None
    full, half = step_time(), step_time(kv_cache_dtype="fp8")
    assert 0.45 < half.attention.at(64, 3e5) / full.attention.at(64, 3e5) < 0.65
    assert decode_s(half, 64, 64_000) < decode_s(full, 64, 64_000)
    assert half.tokens_s == full.tokens_s


# -- what no graph covers ------------------------------------------------------------------------------


def test_a_prompt_without_a_graph_takes_its_launches_at_least() -> None:
    """32 layers of 1 ms: 32 ms and the host's step for a short prompt, nothing more for a long one."""
    eager = {"cudagraph_prefill": False, "eager_layer_s": 1e-3}
    model, covered = step_time(**eager), step_time(eager_layer_s=1e-3)
    host_s = model.host_step_s + model.host_sequence_s
    assert prefill_s(model, (100, 0)) == pytest.approx(32e-3 + host_s, abs=1e-9)
    assert prefill_s(covered, (100, 0)) == prefill_s(step_time(), (100, 0)) < 32e-3
    assert prefill_s(model, (2000, 0)) == prefill_s(step_time(), (2000, 0)) > 40e-3
    assert decode_s(model, 8, 8000) == decode_s(step_time(), 8, 8000)


def test_more_tokens_than_the_largest_graph_are_launched_too() -> None:
    """The largest graph holds 512 tokens: 512 are replayed, 513 launched."""
    model, free = step_time(eager_layer_s=5e-3), step_time()
    assert prefill_s(model, (512, 0)) == prefill_s(free, (512, 0))
    assert prefill_s(model, (513, 0)) > 0.160 > prefill_s(free, (513, 0))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_graphs_decodes_are_launched_as_well(asynchronous: bool) -> None:
    """Single steps, closed sums and sums over arrays agree, before and after attention outgrows launches."""
    engine = {"cuda_graphs": False, "eager_layer_s": 7e-4, "async_scheduling": asynchronous}
    model, free = step_time(**engine), step_time(**{**engine, "eager_layer_s": 0.0})
    host_s = model.host_step_s + 100 * model.host_sequence_s
    assert decode_s(model, 100, 1000) == pytest.approx(22.4e-3 + host_s, abs=1e-9)
    assert decode_s(model, 100, 400_000) == decode_s(free, 100, 400_000) > 25e-3
    for context in (100_000, 200_000, 380_000):
        batch = begun(model, 100, context)
        single_s = sum(decode_s(model, 100, context + 100 * done) for done in range(200))
        assert batch.elapsed_s(200) == pytest.approx(single_s, rel=1e-5)
        many = model.elapsed_s(np.array([100]), np.array([context]), np.array([200]))
        assert many[0] == batch.elapsed_s(200)


def test_attention_outgrows_the_launches_where_it_is_said_to() -> None:
    """A step of 64 decodes is its launches up to the context that `host` names, and more from there."""
    model = step_time(cuda_graphs=False, eager_layer_s=7e-4)
    host_s, most_context = model.host(64)
    reached = round(most_context + 64 / 2)
    assert decode_s(model, 64, reached - 2) == pytest.approx(host_s, abs=1e-9)
    assert decode_s(model, 64, reached + 2) > host_s + 1e-8
    assert begun(model, 64, reached - 2).elapsed_s(1) == pytest.approx(host_s, abs=1e-9)
    assert begun(model, 64, reached + 2).elapsed_s(1) > host_s + 1e-8
