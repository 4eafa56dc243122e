"""How far a profile's kernels are from measured ones: each row by the kernels of its own source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.attention import attention_s, calls_of, section_of
from sim.calibration.backends import with_backends
from sim.calibration.folds import errors_of
from sim.faults import InputFault, did_you_mean
from sim.hardware import Gemm, HardwareProfile

if TYPE_CHECKING:
    import pandas as pd

OPS = ("gemm", "attention_prefill", "attention_decode", "all_reduce")
_TWINS = {"bf16": "fp16", "fp16": "bf16"}


def check(profile: HardwareProfile, table: pd.DataFrame, source: str | None = None) -> dict[str, Any]:
    """Errors by operation, in all and by source and dtype; rows that the profile cannot predict are skipped.

    With *source* all rows are predicted with that backend's kernels, whatever they are of; InputFault if the
    profile has none. The result is the contract's of `calibrate check --json`.
    """
    rows = with_backends(table)
    if source is not None:
        if not _has(profile, source):
            near = did_you_mean(source, [profile.kernel_source, *profile.kernel_sources])
            raise InputFault(f"{profile.name} has no kernels of {source}{near}")
        rows = rows.assign(backend=source)
    predicted_s, reasons = predict(profile, rows)
    measured_s = rows["time_us"].to_numpy(dtype=float) * 1e-6
    known = np.isfinite(predicted_s)
    names = (rows["source"] + "/" + rows["dtype"]).to_numpy()
    answer: dict[str, Any] = {}
    for op in OPS:
        mine = known & (rows["op"] == op).to_numpy()
        answer[op] = _errors(predicted_s[mine], measured_s[mine])
        answer[op]["by"] = {
            name: _errors(predicted_s[part], measured_s[part])
            for name in sorted(set(names[mine]))
            for part in [mine & (names == name)]
        }
    answer["skipped"] = {
        str(reason): int((reasons == reason).sum()) for reason in dict.fromkeys(reasons[~known])
    }
    hot = len(table) - len(rows)
    if hot:
        answer["skipped"]["a burst or a sustained run"] = hot
    return answer


def predict(profile: HardwareProfile, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each row (NaN where the profile does not know its kernel) and the reason where not.

    *rows* have `backend` and `eager`.
    """
    predicted_s = np.full(len(rows), np.nan)
    reasons = np.full(len(rows), "", dtype=object)
    position = np.arange(len(rows))
    for op, backend in rows[["op", "backend"]].drop_duplicates().itertuples(index=False):
        at = position[((rows["op"] == op) & (rows["backend"] == backend)).to_numpy()]
        part = rows.iloc[at]
        if op not in OPS:
            reasons[at] = f"operation {op} is unknown"
        elif not _has(profile, backend):
            reasons[at] = f"{profile.name} has no kernels of {backend}"
        else:
            predicted_s[at], reasons[at] = _PREDICT[op](profile, backend, part)
    return predicted_s, reasons


def _has(profile: HardwareProfile, backend: str) -> bool:
    return backend == profile.kernel_source or backend in profile.kernel_sources


def _section(profile: HardwareProfile, backend: str, name: str) -> Any:
    """The backend's own section *name*, None if it has none; nothing of another's."""
    if backend == profile.kernel_source:
        return getattr(profile.kernels, name)
    return profile.kernel_sources[backend].get(name)


def _gemm(profile: HardwareProfile, backend: str, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    known: dict[str, Gemm] = _section(profile, backend, "gemm") or {}
    predicted_s, reasons = _nothing(rows)
    for dtype in rows["dtype"].unique():
        mine = (rows["dtype"] == dtype).to_numpy()
        kernel = known.get(dtype, known.get(_TWINS.get(dtype, "")))
        if kernel is None:
            reasons[mine] = f"gemm: {profile.name} has no {dtype} of {backend}"
        else:
            predicted_s[mine] = kernel.looped_s(*(rows[name].to_numpy()[mine] for name in ("m", "n", "k")))
    return predicted_s, reasons


def _all_reduce(profile: HardwareProfile, backend: str, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    predicted_s, reasons = _nothing(rows)
    for eager, gpus in rows[["eager", "n_gpus"]].drop_duplicates().itertuples(index=False):
        mine = ((rows["eager"] == eager) & (rows["n_gpus"] == gpus)).to_numpy()
        known = _section(profile, backend, "all_reduce_eager" if eager else "all_reduce") or {}
        if int(gpus) in known:
            predicted_s[mine] = known[int(gpus)].seconds(rows["bytes"].to_numpy()[mine])
        else:
            launched = "eager" if eager else "replayed"
            reasons[mine] = (
                f"all_reduce: {profile.name} has no {launched} one of {backend} over {int(gpus)} GPUs"
            )
    return predicted_s, reasons


def _nothing(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return np.full(len(rows), np.nan), np.full(len(rows), "", dtype=object)


def _attention(profile: HardwareProfile, backend: str, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    predicted_s, reasons = _nothing(rows)
    for op, dtype, kv_dtype in rows[["op", "dtype", "kv_dtype"]].drop_duplicates().itertuples(index=False):
        mine = ((rows["dtype"] == dtype) & (rows["kv_dtype"] == kv_dtype)).to_numpy()
        name = section_of(op, dtype, kv_dtype)
        kernel = _section(profile, backend, name)
        if kernel is None:
            reasons[mine] = f"{name}: {profile.name} has none of {backend}"
        else:
            predicted_s[mine] = attention_s(kernel, calls_of(rows[mine]))
    return predicted_s, reasons


def _errors(predicted_s: np.ndarray, measured_s: np.ndarray) -> dict[str, Any]:
    if not len(measured_s):
        return {"median_abs_pct": None, "p90_abs_pct": None, "n": 0}
    errors = errors_of(predicted_s, measured_s)
    return {"median_abs_pct": errors.median_pct, "p90_abs_pct": errors.p90_pct, "n": errors.points}


_PREDICT = {
    "gemm": _gemm,
    "all_reduce": _all_reduce,
    "attention_prefill": _attention,
    "attention_decode": _attention,
}
