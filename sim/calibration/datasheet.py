"""A table's times against the card's datasheet: what cannot be, and which unit or card would explain it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.hardware import HardwareProfile
from sim.model import KV_DTYPE_BYTES, WEIGHT_DTYPE_BYTES

if TYPE_CHECKING:
    import pandas as pd

_HALF_BYTES = 2
_TWINS = {"fp16": "bf16", "bf16": "fp16"}
# Boards run a little above the clock that their datasheet computes the peak with; memory clocks are fixed.
_FLOPS_TOLERANCE, _BYTES_TOLERANCE = 1.15, 1.05
_L2_SHARE = 4  # a timing loop finds operands of up to so many times the L2 partly in it
_SHORTEST_US = 0.5  # no kernel of any card starts and ends faster

_WHOLE_GROUP = 0.1  # of a group's rows: more impossible ones, and its times are not what they say
_SLOW = 1 / 500  # of the datasheet's rates, by rows that are large enough to reach them
_LARGE_S = 50e-6
_SHOWN = 20


def flops(rows: pd.DataFrame) -> np.ndarray:
    """Multiplications and additions of each row; 0 for an all-reduce. A prompt's own pairs count half."""
    is_prefill = rows["op"] == "attention_prefill"
    new = rows["q_len"].where(is_prefill, 1)
    pairs = new * rows["kv_len"] + (new**2 / 2).where(is_prefill, 0)
    attention = 4 * rows["batch"] * rows["heads"] * rows["head_dim"] * pairs
    return (2 * rows["m"] * rows["n"] * rows["k"]).fillna(attention).fillna(0).to_numpy()


def bytes_moved(rows: pd.DataFrame) -> np.ndarray:
    """Bytes each row must at least move: operands and result once, the KV cache once, or a rank's own."""
    width = _looked_up(rows["dtype"], WEIGHT_DTYPE_BYTES)
    kv_width = _looked_up(rows["kv_dtype"], KV_DTYPE_BYTES)
    gemm = width * rows["n"] * rows["k"] + np.maximum(width, 1) * rows["m"] * rows["k"]
    gemm += _HALF_BYTES * rows["m"] * rows["n"]
    tokens = rows["kv_len"] + rows["q_len"].where(rows["op"] == "attention_prefill", 0)
    cache = 2 * rows["batch"] * tokens * rows["kv_heads"] * rows["head_dim"] * kv_width
    return gemm.fillna(cache).fillna(rows["bytes"]).to_numpy()


def rates_over_peak(rows: pd.DataFrame, card: HardwareProfile) -> tuple[np.ndarray, np.ndarray]:
    """(flops, bytes) a second of each row over the datasheet's; an all-reduce's bytes over half the link's.

    Such a reduction may happen in the switch, where each rank sends and receives its bytes once: the least.
    """
    time_s = rows["time_us"].to_numpy() * 1e-6
    known = card.peak_flops_per_s
    peaks = {
        dtype: known.get(dtype) or known.get(_TWINS.get(dtype, "")) or max(known.values())
        for dtype in rows["dtype"].unique()
    }
    link = card.link.bandwidth_bytes_per_s / 2
    path = np.where(rows["op"] == "all_reduce", link, card.memory_bandwidth_bytes_per_s)
    return flops(rows) / time_s / _looked_up(rows["dtype"], peaks), bytes_moved(rows) / time_s / path


def judge_speeds(
    rows: pd.DataFrame, card: HardwareProfile, path: Path
) -> tuple[np.ndarray, list[str], list[str]]:
    """Which rows are faster than the card's peak, faults where the times' unit is wrong, notes elsewhere.

    Bytes are judged only beyond the L2 cache, of which a loop over small operands takes its speed. Where more
    than a tenth of the rows of one operation, dtype and source are impossible, all of them are suspect.
    """
    of_flops, of_bytes = rates_over_peak(rows, card)
    beyond = bytes_moved(rows) > _L2_SHARE * card.l2_bytes
    too_fast = (of_flops > _FLOPS_TOLERANCE) | (beyond & (of_bytes > _BYTES_TOLERANCE))
    judged = rows[["source", "op", "dtype", "time_us"]].assign(
        of_flops=of_flops, of_bytes=of_bytes, too_fast=too_fast | (rows["time_us"] < _SHORTEST_US)
    )
    faults, notes = [], []
    for (source, op, dtype), group in judged.groupby(["source", "op", "dtype"], sort=False):
        place = f"{path}: {op} {dtype} of {source}"
        if sentence := _unit_fault(group, card):
            faults.append(f"{place}: {sentence}")
        elif group["too_fast"].any():
            notes.append(f"{place}: {_named(group, card)}")
    return judged["too_fast"].to_numpy(), faults, notes


def _unit_fault(group: pd.DataFrame, card: HardwareProfile) -> str:
    """Why the group's times cannot be microseconds on this card; empty where they can."""
    of_peak = group[["of_flops", "of_bytes"]].max(axis=1)
    if group["too_fast"].mean() > _WHOLE_GROUP:
        over = of_peak.quantile(0.9)
        hint = "is it another card's table?"
        if over > 20:
            hint = f"is time_us in {'milliseconds' if over < 2e4 else 'seconds'}?"
        return f"{_count(group, card)}; {hint}"
    typical = of_peak[of_peak * group["time_us"] > 1e6 * _LARGE_S].median()
    if typical < _SLOW:
        return f"large rows reach {typical:.2g} of {card.name}'s peak; is time_us in nanoseconds?"
    return ""


def _count(group: pd.DataFrame, card: HardwareProfile) -> str:
    """How many rows are too fast, and the fastest of them."""
    fast = group[group["too_fast"]]
    at = int(fast[["of_flops", "of_bytes"]].max(axis=1).argmax())
    row = fast.iloc[at]
    bandwidth = "link bandwidth" if row["op"] == "all_reduce" else "memory bandwidth"
    what = "FLOP/s" if row["of_flops"] >= row["of_bytes"] else bandwidth
    times = max(row["of_flops"], row["of_bytes"])
    how = f"{times:.3g} times its {what}" if times > 1 else "which no kernel does"
    return (
        f"{len(fast)} of {len(group)} rows are faster than {card.name}'s peak (line {fast.index[at]} takes "
        f"{row['time_us']:g} us, {how})"
    )


def _named(group: pd.DataFrame, card: HardwareProfile) -> str:
    lines = group.index[group["too_fast"]]
    shown = ", ".join(map(str, lines[:_SHOWN])) + (", ..." if len(lines) > _SHOWN else "")
    return f"{_count(group, card)} and are left out: lines {shown}"


def _looked_up(names: pd.Series, values: Mapping[str, float]) -> np.ndarray:
    """*values* of each name, NaN where there is none."""
    import pandas as pd

    codes, unique = pd.factorize(names)
    return np.array([float(values.get(name, np.nan)) for name in unique])[codes]
