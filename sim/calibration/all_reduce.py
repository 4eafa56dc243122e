"""All-reduce fitted to its measured times, for each group of GPUs: a smooth form, and residuals by size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.fitted import Fitted, residual_section, rounded
from sim.calibration.folds import errors_of, held_out, shapes_of
from sim.calibration.residual_fit import Smoothing, fit_residuals, spread_nodes
from sim.calibration.smooth import Coefficient, Smooth, fit_logs
from sim.faults import InputFault
from sim.hardware import AllReduce, HardwareProfile
from sim.hardware.residuals import Residuals

if TYPE_CHECKING:
    import pandas as pd

LEAST_SIZES = 6
_NODES = 32
_SMOOTHING = Smoothing(length=8.0, noise=0.002)


def fit_all_reduce(rows: pd.DataFrame, n_gpus: int, section: str, card: HardwareProfile) -> Fitted:
    """The collective over *n_gpus* of one backend, all in graphs or all eager; *section* names which.

    Repeats of one size count as one time, their lower median: what disturbs a collective only ever slows it.
    Raises InputFault for too few sizes.
    """
    bytes_ = rows["bytes"].to_numpy(dtype=float)
    measured_s = rows["time_us"].to_numpy(dtype=float) * 1e-6
    sizes = shapes_of([bytes_])
    count = int(sizes.max()) + 1
    if count < LEAST_SIZES:
        raise InputFault(
            f"{section} over {n_gpus} GPUs: {count} sizes are too few for a fit; it needs {LEAST_SIZES}"
        )
    typical_s = _lower_medians(measured_s, sizes)
    smooth, kernel = _fit(bytes_, typical_s, sizes)
    predict = partial(_predict, bytes_, typical_s, sizes)
    plain_s = held_out(sizes, partial(predict, residual=False))
    carried_s = held_out(sizes, partial(predict, residual=True))
    better = errors_of(carried_s, measured_s).median_pct < errors_of(plain_s, measured_s).median_pct
    if better:
        kernel = replace(kernel, residual=_residuals(kernel, bytes_, typical_s))
    return Fitted(
        key=f"{section}.{n_gpus}",
        section=_section(kernel),
        covariance=smooth.covariance,
        measured_s=measured_s,
        predicted_s=carried_s if better else plain_s,
        datasheet_s=2.0 * bytes_ * (n_gpus - 1) / n_gpus / (card.link.bandwidth_bytes_per_s / 2),
        shapes=count,
        what=f"{'eager' if section.endswith('eager') else 'replayed'} all-reduce: {count} sizes",
    )


def _predict(
    bytes_: np.ndarray,
    typical_s: np.ndarray,
    sizes: np.ndarray,
    known: np.ndarray,
    away: np.ndarray,
    residual: bool,
) -> np.ndarray:
    _, kernel = _fit(bytes_[known], typical_s[known], shapes_of([sizes[known]]))
    if residual:
        kernel = replace(kernel, residual=_residuals(kernel, bytes_[known], typical_s[known]))
    return kernel.seconds(bytes_[away])


def _fit(bytes_: np.ndarray, typical_s: np.ndarray, sizes: np.ndarray) -> tuple[Smooth, AllReduce]:
    least_s = float(typical_s.min())
    fastest = float((bytes_ / typical_s).max())
    coefficients = [
        Coefficient("latency_s", least_s, 0.2 * least_s, 2.0 * least_s),
        Coefficient("bytes_per_s", fastest, 0.2 * fastest, 5.0 * fastest),
        Coefficient("exponent", 1.0, 0.3, 20.0),
    ]

    def kernel(values: Mapping[str, float]) -> AllReduce:
        return AllReduce(values["latency_s"], values["bytes_per_s"], values["exponent"])

    def seconds(values: Mapping[str, float]) -> np.ndarray:
        return kernel(values).smooth_s(bytes_)

    smooth = fit_logs(seconds, typical_s, coefficients, sizes)
    return smooth, kernel(smooth.values)


def _residuals(kernel: AllReduce, bytes_: np.ndarray, typical_s: np.ndarray) -> Residuals:
    log_ratio = np.log(typical_s / kernel.smooth_s(bytes_))
    return fit_residuals(
        {"bytes": bytes_}, log_ratio, {}, {"bytes": spread_nodes(bytes_, _NODES)}, _SMOOTHING
    )


def _lower_medians(measured_s: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    medians = [
        np.quantile(measured_s[sizes == size], 0.5, method="lower") for size in range(int(sizes.max()) + 1)
    ]
    return np.array(medians)[sizes]


def _section(kernel: AllReduce) -> dict[str, object]:
    section: dict[str, object] = {
        name: rounded(getattr(kernel, name)) for name in ("latency_s", "bytes_per_s", "exponent")
    }
    if kernel.residual is not None:
        section["residual"] = residual_section(kernel.residual)
    return section
