"""The memory ledger against hand arithmetic and against what engines printed when they started."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import sim.model
from sim.hardware import HardwareProfile, MemoryLedger, memory_ledger
from sim.model import ModelSpec

GIB = 2**30
PROFILES = Path(__file__).parents[1] / "hardware_profiles"
CATALOGUE = Path(sim.model.__file__).parent / "catalogue"


def profile(name: str = "a100-80gb-sxm", **changes: Any) -> HardwareProfile:
    mapping = yaml.safe_load((PROFILES / f"{name}.yaml").read_text(encoding="utf-8"))
    return HardwareProfile.from_mapping({**mapping, **changes})


def model(name: str = "llama-3-8b") -> ModelSpec:
    return ModelSpec.from_mapping(yaml.safe_load((CATALOGUE / f"{name}.yaml").read_text(encoding="utf-8")))


def engine(**changes: Any) -> dict[str, Any]:
    settings = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "gpu_memory_utilization": 0.92,
        "block_size": 16,
        "kv_cache_dtype": "auto",
        "weight_dtype": "auto",
        "tensor_parallel_size": 1,
        "max_model_len": 8192,
    }
    return {**settings, **changes}


CARD = profile()
LLAMA = model()


@pytest.mark.parametrize(
    ("kv_dtype", "blocks", "concurrency"), [("auto", 28581, 111.64), ("fp8", 57162, 223.29)]
)
def test_llama_on_80_decimal_gigabytes_by_hand(kv_dtype: str, blocks: int, concurrency: float) -> None:
    """80e9 B - 8,030,261,248 x 2 B - 4e9 B = 59,939,477,504 B of KV cache.

    A block of 16 tokens is 16 x 131,072 B = 2 MiB: 28,581 blocks, 457,296 tokens, / 4096 = 111.6. In fp8 it
    is 1 MiB (and 256 B of scales): 57,162 blocks, 223.3.
    """
    settings = engine(
        gpu_memory_utilization=1.0,
        overhead_bytes=4_000_000_000,
        activation_bytes=0,
        max_model_len=4096,
        kv_cache_dtype=kv_dtype,
    )
    ledger = memory_ledger(profile(memory_bytes=80e9), LLAMA, settings, 1000.0)
    assert (ledger.num_gpu_blocks, ledger.kv_cache_tokens) == (blocks, 16 * blocks)
    assert ledger.max_concurrency == pytest.approx(concurrency, abs=0.005)
    assert ledger.mean_concurrency == 16 * blocks / 1008
    assert ledger.fits
    assert ledger.reason is None


# Pools and tokens that start-up logs print, on shapes known from the models' published configurations:
# (KV GiB to two decimals, model, what differs from it in the shape, tokens).
LOGGED_POOLS = {
    "vllm#12330 Llama-3-8B": (11.12, "llama-3-8b", {}, 5691 * 16),
    "vllm#10517 Llama-3.1-8B": (2.89, "llama-3.1-8b", {}, 23648),
    "LMCache#1739 Qwen3-14B": (6.51, "qwen3-32b", {"layers": 40, "kv_heads": 8, "heads": 40}, 42656),
    "vllm#24577 Qwen3-0.6B": (69.66, "qwen3-32b", {"layers": 28, "kv_heads": 8, "heads": 16}, 652144),
    "vllm 0.31 Llama-3.1-8B on A100-80GB": (56.21, "llama-3.1-8b", {}, 460496),
}


@pytest.mark.parametrize("log", LOGGED_POOLS, ids=str)
def test_tokens_of_a_logged_pool(log: str) -> None:
    """blocks = floor(pool / (block_size x bytes a token)): exact to the two decimals of the printed pool."""
    gib, name, shape, tokens = LOGGED_POOLS[log]
    spec = dataclasses.replace(model(name), **shape)
    low, high = (
        memory_ledger(CARD, spec, engine(kv_cache_memory_bytes=int((gib + off) * GIB))).kv_cache_tokens
        for off in (-0.005, 0.005)
    )
    assert low <= tokens <= high


# Whole ledgers: (card, log's total GiB, model, settings, tokens printed). The estimates were set on these
# logs; others, of older versions and other samplers, come out between -6 % and +3 % on large cards.
LOGGED_STARTS = {
    "vLLM 0.31, Llama-3.1-8B, A100-80GB, defaults": ("a100-80gb-sxm", 79.25, "llama-3.1-8b", {}, 460496),
    "vLLM 0.11, Llama-3.1-8B, H100, 0.9, 1024 sequences": (
        "h100-80gb-sxm",
        79.18,
        "llama-3.1-8b",
        {"gpu_memory_utilization": 0.9, "max_num_seqs": 1024, "max_num_batched_tokens": 8192},
        int(51.38 * GIB / 131072),
    ),
    "vLLM 0.11, Llama-3.3-70B-FP8 on 2 H100, 0.9": (
        "h100-80gb-sxm",
        79.18,
        "llama-3.1-70b",
        {
            "gpu_memory_utilization": 0.9,
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 8192,
            "weight_dtype": "fp8",
            "tensor_parallel_size": 2,
        },
        int(32.00 * GIB / 163840),
    ),
    "vLLM 0.11, Qwen3-32B on 2 H100, 0.9": (
        "h100-80gb-sxm",
        79.18,
        "qwen3-32b",
        {
            "gpu_memory_utilization": 0.9,
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 8192,
            "tensor_parallel_size": 2,
        },
        int(34.49 * GIB / 131072),
    ),
}


@pytest.mark.parametrize("log", LOGGED_STARTS, ids=str)
def test_estimated_ledgers_meet_start_up_logs(log: str) -> None:
    """Nothing but the card's memory and the engine's settings goes in; the tokens come out within 2.5 %.

    CUDA graphs are left out where the version did not take them off the pool (before 0.21).
    """
    card, total_gib, name, changes, tokens = LOGGED_STARTS[log]
    settings = engine(cuda_graphs="0.11" not in log, **changes)
    ledger = memory_ledger(profile(card, memory_bytes=total_gib * GIB), model(name), settings)
    assert ledger.kv_cache_tokens == pytest.approx(tokens, rel=0.025)


def test_activations_of_a_long_prompt_batch() -> None:
    """vllm#10517, Llama-3.1-8B, 29,000 batched tokens: a peak of 17.98 GiB over 14.99 of weights."""
    ledger = memory_ledger(CARD, model("llama-3.1-8b"), engine(max_num_batched_tokens=29000))
    assert ledger.activation_bytes / GIB == pytest.approx(17.98 - 14.99, abs=0.01)


@given(tokens=st.integers(256, 65536), more=st.integers(0, 65536), tp=st.sampled_from([1, 2, 4, 8]))
def test_a_larger_token_budget_never_leaves_more_cache(tokens: int, more: int, tp: int) -> None:
    """Activations grow with max_num_batched_tokens, so the pool shrinks."""
    small, large = (
        memory_ledger(CARD, LLAMA, engine(max_num_batched_tokens=n, tensor_parallel_size=tp))
        for n in (tokens, tokens + more)
    )
    assert large.activation_bytes >= small.activation_bytes
    assert large.kv_cache_bytes <= small.kv_cache_bytes


@given(utilization=st.floats(0.05, 1.0), tp=st.sampled_from([1, 2, 4, 8]), length=st.integers(1, 500_000))
def test_the_ledger_adds_up(utilization: float, tp: int, length: int) -> None:
    """What is left of the budget is the pool; blocks fill it to less than one; fits means a request does."""
    settings = engine(gpu_memory_utilization=utilization, tensor_parallel_size=tp, max_model_len=length)
    ledger = memory_ledger(CARD, LLAMA, settings)
    held = ledger.weights_bytes + ledger.activation_bytes + ledger.overhead_bytes + ledger.fragmentation_bytes
    assert ledger.kv_cache_bytes == max(0, int(utilization * CARD.memory_bytes) - held)
    block_bytes = ledger.block_size * ledger.kv_bytes_per_token
    assert 0 <= ledger.kv_cache_bytes - ledger.num_gpu_blocks * block_bytes < block_bytes
    assert ledger.fits == (0 < ledger.num_gpu_blocks >= -(-length // ledger.block_size))
    assert (ledger.reason is None) == ledger.fits


def test_a_model_too_large_says_what_is_missing() -> None:
    """Llama-3-70B in bf16 is 131.4 GiB: one A100 lacks that, the others and the cache."""
    ledger = memory_ledger(CARD, model("llama-3-70b"), engine())
    assert not ledger.fits
    assert (ledger.num_gpu_blocks, ledger.kv_cache_bytes, ledger.max_concurrency) == (0, 0, 0.0)
    missing = (
        ledger.weights_bytes + ledger.activation_bytes + ledger.overhead_bytes - 0.92 * CARD.memory_bytes
    )
    assert ledger.reason is not None
    assert f"{missing / GIB:.2f} GiB are missing" in ledger.reason
    assert "weights 131.42 GiB" in ledger.reason


def test_a_context_longer_than_the_pool_is_refused_with_the_longest_that_fits() -> None:
    """3090 and Llama-3.1-8B at 29,000 (vllm#10517): pool 2.89 GiB, 23,648 tokens or so, refused as there."""
    ledger = memory_ledger(CARD, LLAMA, engine(kv_cache_memory_bytes=int(2.89 * GIB), max_model_len=29000))
    assert not ledger.fits
    assert ledger.reason == (
        "one request of max_model_len 29000 needs 3.54 GiB of KV cache, 2.89 GiB are there: "
        f"lower max_model_len to at most {ledger.kv_cache_tokens}, or make room for the KV cache"
    )
    shorter = engine(kv_cache_memory_bytes=int(2.89 * GIB), max_model_len=ledger.kv_cache_tokens)
    assert memory_ledger(CARD, LLAMA, shorter).fits


def test_given_pools_and_blocks_ignore_the_utilization() -> None:
    """kv_cache_memory_bytes sets the bytes, num_gpu_blocks_override the blocks; both must fit the card."""
    pool = memory_ledger(CARD, LLAMA, engine(kv_cache_memory_bytes=2**31, gpu_memory_utilization=0.1))
    assert (pool.num_gpu_blocks, pool.fits) == (1024, True)
    blocks = memory_ledger(CARD, LLAMA, engine(num_gpu_blocks_override=1000, gpu_memory_utilization=0.1))
    assert (blocks.kv_cache_tokens, blocks.kv_cache_bytes) == (16000, 1000 * 2**21)
    too_much = memory_ledger(CARD, LLAMA, engine(num_gpu_blocks_override=100_000))
    assert not too_much.fits
    assert "exceed the GPU's 79.15 GiB" in str(too_much.reason)


def test_tensor_parallelism_costs_buffers_and_graphs_cost_a_pool() -> None:
    """The overhead is larger with NCCL, and smaller without CUDA graphs."""

    def overhead(**changes: Any) -> int:
        return memory_ledger(CARD, LLAMA, engine(**changes)).overhead_bytes

    assert overhead() < overhead(tensor_parallel_size=2) < overhead(tensor_parallel_size=8)
    assert overhead(cuda_graphs=False) < overhead(max_cudagraph_capture_size=64) < overhead()
    assert overhead(reserve_cudagraph_memory=False) == overhead(cuda_graphs=False)
    assert overhead(non_torch_bytes=0) == overhead() - 2**28


def test_an_eight_bit_cache_has_scales_beside_the_weights() -> None:
    """A factor of four bytes for keys and one for values in each of 32 layers."""
    plain, eight = (memory_ledger(CARD, LLAMA, engine(kv_cache_dtype=name)) for name in ("auto", "fp8"))
    assert eight.weights_bytes - plain.weights_bytes == 32 * 2 * 4


def test_what_an_engine_leaves_free_or_cannot_use_is_no_cache() -> None:
    """Of a pool a tenth stays free, of the rest a twentieth is lost between blocks; a given pool is given."""
    whole = memory_ledger(CARD, LLAMA, engine())
    free = memory_ledger(CARD, LLAMA, engine(free_gpu_memory_fraction=0.9))
    both = memory_ledger(CARD, LLAMA, engine(free_gpu_memory_fraction=0.9, kv_fragmentation=0.05))
    assert free.kv_cache_bytes == int(0.9 * whole.kv_cache_bytes)
    assert both.fragmentation_bytes == int(0.05 * free.kv_cache_bytes)
    assert both.kv_cache_bytes + both.fragmentation_bytes == free.kv_cache_bytes
    assert both.kv_cache_tokens < free.kv_cache_tokens < whole.kv_cache_tokens
    given = memory_ledger(CARD, LLAMA, engine(free_gpu_memory_fraction=0.5, kv_cache_memory_bytes=GIB))
    assert given.kv_cache_bytes == GIB


def test_activations_are_those_of_the_batch_that_the_engine_profiled() -> None:
    """A budget of 16,384 tokens profiled with 2,048 of them holds back what a budget of 2,048 does."""
    profiled = memory_ledger(CARD, LLAMA, engine(max_num_batched_tokens=16384, profiled_tokens=2048))
    assert profiled.activation_bytes == memory_ledger(CARD, LLAMA, engine()).activation_bytes
    larger = memory_ledger(CARD, LLAMA, engine(max_num_batched_tokens=16384)).activation_bytes
    assert larger > profiled.activation_bytes


def test_the_ledger_as_a_document_has_the_promised_keys() -> None:
    """`memory --json` prints these, in this order."""
    ledger = memory_ledger(CARD, LLAMA, engine())
    assert list(ledger.as_dict()) == [field.name for field in dataclasses.fields(MemoryLedger)]
    assert list(ledger.as_dict())[-6:] == [
        "kv_cache_tokens",
        "max_model_len",
        "max_concurrency",
        "mean_concurrency",
        "fits",
        "reason",
    ]
