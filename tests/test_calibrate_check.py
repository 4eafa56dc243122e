"""A profile against measured rows: each row is asked of the kernels it timed, and nothing is left unsaid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sim.calibration.attention import section_of
from sim.calibration.check import check
from sim.calibration.table import COLUMNS, profile_of
from sim.hardware import AllReduce, AttentionShape, DecodeAttention, HardwareProfile, PrefillAttention

_GRAPH, _EAGER = (f"aiconfigurator-custom_allreduce-vllm_custom_{how}" for how in ("graph", "eager"))
_VLLM = "aiconfigurator-vllm"
_DECODE = {"attention_decode": 9e-6, "attention_decode_fp8": 18e-6}
_PREFILL = {
    "attention_prefill": 10e-6,
    "attention_prefill_fp8": 30e-6,
    "attention_prefill_fp8_compute": 90e-6,
}
_KINDS = [("bf16", "bf16"), ("bf16", "fp8"), ("fp8", "fp8")]
_REDUCED = {(2, False): 4e-6, (4, False): 8e-6, (4, True): 32e-6}


def card() -> HardwareProfile:
    """An H100 whose kernels differ by their overheads, so that no one passes for another."""
    known = profile_of("h100-80gb-sxm")
    decode = {name: DecodeAttention(2.5e12, 1e-8, 1.0, start_s) for name, start_s in _DECODE.items()}
    prefill = {name: PrefillAttention(5e14, 4e-10, 1.0, start_s) for name, start_s in _PREFILL.items()}
    reduce = {of: AllReduce(start_s, 2e11, 1.0) for of, start_s in _REDUCED.items()}
    kernels = replace(
        known.kernels,
        **decode,
        **prefill,
        all_reduce={gpus: kernel for (gpus, eager), kernel in reduce.items() if not eager},
        all_reduce_eager={gpus: kernel for (gpus, eager), kernel in reduce.items() if eager},
    )
    return replace(known, kernels=kernels)


def tidy(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """*rows* as `read_tables` gives them."""
    absent = {name: "" if name == "kv_dtype" else np.nan for name in COLUMNS}
    named = {"gpu": "h100-80gb-sxm", "source": _VLLM, "dtype": "bf16"}
    return pd.DataFrame([{**absent, **named, **row} for row in rows])


def attention_rows(sizes: dict[str, int]) -> list[dict[str, Any]]:
    """One call of each kind, decoding and prefill, as long as its own section says."""
    rows = []
    for dtype, kv_dtype in _KINDS:
        shape = AttentionShape(32.0, 8.0, 128.0, 2.0 if kv_dtype == "bf16" else 1.0)
        common = {**sizes, "heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": dtype, "kv_dtype": kv_dtype}
        kernels = card().kernels
        decode = getattr(kernels, section_of("attention_decode", dtype, kv_dtype))
        taken_s = decode.seconds(4.0, 4.0 * 1024.0, shape)
        rows.append({**common, "op": "attention_decode", "q_len": 1, "time_us": 1e6 * float(taken_s)})
        prefill = getattr(kernels, section_of("attention_prefill", dtype, kv_dtype))
        taken_s = prefill.seconds(4 * 256.0, 4 * 256.0 * 1023.0, 4 * 256.0**2, shape)
        rows.append({**common, "op": "attention_prefill", "q_len": 256, "time_us": 1e6 * float(taken_s)})
    return rows


def test_a_row_is_asked_of_the_kernels_of_its_own_types() -> None:
    """Products and caches in 16 and 8 bits: each section says exactly what its own rows took."""
    assert [section_of("attention_prefill", *kind) for kind in _KINDS] == list(_PREFILL)
    assert [section_of("attention_decode", *kind) for kind in _KINDS] == [*_DECODE, "attention_decode_fp8"]
    answer = check(card(), tidy(attention_rows({"batch": 4, "kv_len": 1023})))
    for op in ("attention_decode", "attention_prefill"):
        assert answer[op]["n"] == len(_KINDS)
        assert answer[op]["p90_abs_pct"] == pytest.approx(0.0, abs=1e-6)


def test_a_collective_is_asked_of_its_own_group_and_launch() -> None:
    """Two and four GPUs, in a graph and eager; of an eager one that was not measured nothing is said."""
    rows = [
        {"op": "all_reduce", "source": _EAGER if eager else _GRAPH, "n_gpus": float(gpus), "bytes": 1e6,
         "time_us": 1e6 * (start_s + 1e6 / 2e11)}
        for (gpus, eager), start_s in (*_REDUCED.items(), ((2, True), 99e-6))
    ]  # fmt: skip
    answer = check(card(), tidy(rows))
    assert answer["all_reduce"]["n"] == 3
    assert answer["all_reduce"]["p90_abs_pct"] == pytest.approx(0.0, abs=1e-6)
    assert list(answer["skipped"].values()) == [1]
    assert "no eager one of vllm over 2 GPUs" in next(iter(answer["skipped"]))


def test_rows_of_a_card_getting_hot_are_no_kernel_times() -> None:
    """A sustained run and its bursts are left out, whosever kernels are asked, and counted."""
    row = {"op": "gemm", "m": 64.0, "n": 4096.0, "k": 4096.0, "time_us": 20.0}
    sources = ("kneesim-torch", "kneesim-torch-sustained", "kneesim-torch-burst")
    answer = check(card(), tidy([{**row, "source": source} for source in sources]), source="vllm")
    assert answer["gemm"]["n"] == 1
    assert answer["skipped"] == {"a burst or a sustained run": 2}
