"""Compiled step times of shipped profiles, and single iterations of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import sim
from sim.hardware import AttentionShape, HardwareProfile
from sim.model import KV_DTYPE_BYTES, ModelSpec
from sim.scenario import Scenario
from sim.serving.compile import compile_step_time
from sim.serving.step_time import StepTime
from sim.simulation import ledger_of

TABLE_ERROR = 4e-4  # relative, of the tabulated roofline
CORNER_ERROR = 1e-2  # relative, where a table of measured residuals has corners between the roofline's nodes


@cache
def scenario(card: str = "a100-80gb-sxm", **engine: Any) -> Scenario:
    return sim.load(
        {
            "hardware": card,
            "model": "llama-3-8b",
            "engine": {"async_scheduling": False, **engine},
            "workload": "azure-2023-conv",
            "load": {"rate_per_s": 1},
        }
    )


def parts(asked: Scenario) -> tuple[HardwareProfile, ModelSpec]:
    return HardwareProfile.from_mapping(asked.hardware), ModelSpec.from_mapping(asked.model)


@cache
def step_time(card: str = "a100-80gb-sxm", **engine: Any) -> StepTime:
    asked = scenario(card, **engine)
    return compile_step_time(*parts(asked), asked.engine, ledger_of(asked).kv_cache_tokens)


def attention_s(card: str, n: int, context_tokens: np.ndarray, kv_cache_dtype: str = "auto") -> np.ndarray:
    """A layer's decode attention straight from the profile: half a block of 16 more than the tokens."""
    profile, spec = parts(scenario(card))
    dtype = spec.kv_dtype(kv_cache_dtype)
    kernel = profile.decode_attention(dtype)
    shape = AttentionShape(heads=32, kv_heads=8, head_dim=128, kv_element_bytes=KV_DTYPE_BYTES[dtype])
    return kernel.seconds(n, context_tokens + n * 7.5, shape)


def decode_s(model: StepTime, n: int, context_tokens: int) -> float:
    """One iteration of *n* decodes that read *context_tokens*, by the general path."""
    return model.mixed_s(n, context_tokens, 0, 0, 0, 0, n)


def prefill_s(model: StepTime, *chunks: tuple[int, int], sampled: int = 0) -> float:
    """One iteration with *chunks* of (new, cached) tokens in it."""
    tokens = sum(new for new, _ in chunks)
    with_cached, squares = sum(c * k for c, k in chunks), sum(c * c for c, _ in chunks)
    return model.mixed_s(0, 0, len(chunks), tokens, with_cached, squares, sampled)


def table_error(card: str) -> float:
    """How far the tabulated attention of decodes may be off the kernel's own on this card."""
    kernels = parts(scenario(card))[0].kernels
    return TABLE_ERROR if kernels.attention_decode.residual is None else CORNER_ERROR
