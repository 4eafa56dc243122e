"""How uncertain a class of kernels is in a scenario: its held-out error, and what its fit leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import hypot, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.hardware import AttentionShape

if TYPE_CHECKING:
    from sim.hardware import HardwareProfile
    from sim.model import ModelSpec
    from sim.scenario import Scenario

ESTIMATED_KERNELS = 0.2
"""One standard deviation, relative, of coefficients that are an estimate."""
_NUDGE = 1e-3
_Seconds = Callable[[Any], np.ndarray]


def kernel_error(scenario: Scenario, kind: str) -> tuple[float, str]:
    """The relative standard deviation of the class *kind* as one scale, and where it is from.

    Shapes that were not in the fit are missed by the median held-out error; the coefficients' covariance
    adds what the fit itself leaves open, at the batch size where that is most.
    """
    from sim.hardware import HardwareProfile
    from sim.model import ModelSpec

    profile, model = HardwareProfile.from_mapping(scenario.hardware), ModelSpec.from_mapping(scenario.model)
    key, kernel, seconds = _class(profile, model, scenario.engine, kind)
    origin = profile.provenance(key)
    if origin.error_median_pct is None:
        return ESTIMATED_KERNELS, f"{key} is {origin.kind}, without a held-out error"
    fitted = 0.0 if origin.covariance is None else coefficient_spread(kernel, origin.covariance, seconds)
    held_out = origin.error_median_pct / 100.0
    words = f"median held-out error of {key}" + (" and the spread of its coefficients" if fitted else "")
    return hypot(held_out, fitted), words


def coefficient_spread(kernel: Any, covariance: Mapping[str, tuple[float, ...]], seconds: _Seconds) -> float:
    """The relative standard deviation of *seconds* of *kernel*, the largest of its entries.

    `sqrt(g C g)`: C is the covariance of the coefficients' logarithms, in the order of its names, and g how
    the logarithm of the time moves with theirs, by forward differences.
    """
    at = np.log(seconds(kernel))
    slopes = np.array([(np.log(seconds(_nudged(kernel, name))) - at) / _NUDGE for name in covariance])
    variance = np.einsum("ij,ik,kj->j", slopes, np.array(list(covariance.values())), slopes)
    return sqrt(max(0.0, float(variance.max())))


def _nudged(kernel: Any, name: str) -> Any:
    """*kernel* with one coefficient, its own or its roofline's, a thousandth larger."""
    if not hasattr(kernel, name):
        return replace(kernel, roofline=_nudged(kernel.roofline, name))
    return replace(kernel, **{name: getattr(kernel, name) * (1.0 + _NUDGE)})


def _class(
    profile: HardwareProfile, model: ModelSpec, engine: Mapping[str, Any], kind: str
) -> tuple[str, Any, _Seconds]:
    """Its key in the profile, its kernel, and seconds of it from small batches to full ones."""
    gpus, kv_dtype = engine["tensor_parallel_size"], model.kv_dtype(engine["kv_cache_dtype"])
    tokens = np.geomspace(1.0, engine["max_num_batched_tokens"], 12)
    if kind == "gemm":
        dtype = model.weight_dtype(engine["weight_dtype"])
        named = dtype if dtype in profile.kernels.gemm else next(iter(profile.kernels.gemm))
        shapes = model.layer_gemms(gpus)
        return (
            f"kernels.gemm.{named}",
            profile.gemm(dtype),
            lambda gemm: np.sum([gemm.seconds(tokens, n, k) for n, k in shapes], axis=0),
        )
    if kind == "all_reduce":
        moved = 2.0 * tokens * model.hidden_size
        return f"kernels.all_reduce.{gpus}", profile.all_reduce(gpus), lambda link: link.seconds(moved)
    if kind == "elementwise":
        return f"kernels.{kind}", profile.kernels.elementwise, lambda own: own.seconds(tokens)
    shape = AttentionShape.of(model, kv_dtype, gpus)
    if kind == "attention_prefill":
        prefill = profile.prefill_attention(kv_dtype)
        key = _of_cache(kind, prefill is profile.kernels.attention_prefill_fp8)
        return key, prefill, lambda own: own.seconds(tokens, 0.0, tokens * tokens, shape)
    decode = profile.decode_attention(kv_dtype)
    sequences = np.geomspace(1.0, engine["max_num_seqs"], 12)
    key = _of_cache(kind, decode is profile.kernels.attention_decode_fp8)
    return key, decode, lambda own: own.seconds(sequences, 1000.0 * sequences, shape)


def _of_cache(kind: str, eight_bit: bool) -> str:
    return f"kernels.{kind}{'_fp8' if eight_bit else ''}"
