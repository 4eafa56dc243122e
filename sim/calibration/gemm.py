"""Linear layers fitted to their measured times, by dtype: a smooth roofline and a table of residuals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.fitted import Fitted, residual_section, rounded
from sim.calibration.folds import errors_of, held_out, shapes_of
from sim.calibration.residual_fit import Columns, Smoothing, choose_nodes, fit_residuals, spread_nodes
from sim.calibration.smooth import Coefficient, Smooth, fit_logs, restarted
from sim.faults import InputFault
from sim.hardware import Gemm, HardwareProfile, Roofline
from sim.hardware.residuals import Residuals
from sim.model import WEIGHT_DTYPE_BYTES

if TYPE_CHECKING:
    import pandas as pd

LEAST_ROWS, LEAST_SHAPES = 24, 6
_M_NODES, _NK_NODES = 24, 22
_WILD = 0.5  # of a logarithm: a shape so far off is another kernel, and no sign of a step
_SERVED = 256  # n and k of the layers that the smooth form is for; smaller ones have the residuals alone
_MOST_SMOOTH_ROWS = 6000
_COMPUTED_AS = {"bf16": ("fp16",), "fp16": ("bf16",), "int4": ("bf16", "fp16")}
_SMOOTHINGS = (Smoothing(), Smoothing(noise=0.02, robust=True))
# A loop over weights of up to a third more than the L2 cache finds part of them in it; the smallest ones
# are bound by the launch, not by either memory.
_CACHE_REACH, _CACHE_FLOOR_BYTES = 4 / 3, 2 * 2**20
_FASTER_THAN_MEMORY, _CACHED_SHARE = 1.05, 0.01


def fit_gemm(rows: pd.DataFrame, dtype: str, card: HardwareProfile) -> Fitted:
    """The linear layers of one backend in *dtype*. Raises InputFault for too few rows or shapes (n, k)."""
    at = {name: rows[name].to_numpy(dtype=float) for name in ("m", "n", "k")}
    measured_s = rows["time_us"].to_numpy(dtype=float) * 1e-6
    shapes = shapes_of([at["n"], at["k"]])
    count = int(shapes.max()) + 1
    if len(rows) < LEAST_ROWS or count < LEAST_SHAPES:
        raise InputFault(
            f"gemm {dtype}: {len(rows)} rows of {count} shapes (n, k) are too few for a fit; "
            f"it needs {LEAST_ROWS} of {LEAST_SHAPES}"
        )
    cached_below = _cached_below(at, measured_s, dtype, card)
    fit = _Fitting(at, measured_s, shapes, dtype, card, cached_below)
    everything = np.arange(len(measured_s))
    smooth = fit.smooth(everything)
    smoothing, predicted_s = fit.best(smooth.values)
    kernel = fit.kernel(smooth.values)
    if smoothing is not None:
        kernel = replace(kernel, residual=fit.residuals(kernel, everything, smoothing))
    return Fitted(
        key=f"gemm.{dtype}",
        section=_section(kernel),
        covariance=smooth.covariance,
        measured_s=measured_s,
        predicted_s=predicted_s,
        datasheet_s=_datasheet_s(at, dtype, card),
        shapes=count,
        what=f"{dtype} rows: {count} shapes (n, k)",
    )


class _Fitting:
    """The rows of one table, and the fits of a part of them that cross-validation asks for."""

    def __init__(
        self,
        at: Columns,
        measured_s: np.ndarray,
        shapes: np.ndarray,
        dtype: str,
        card: HardwareProfile,
        cached_below: float,
    ) -> None:
        self.at, self.measured_s, self.shapes = at, measured_s, shapes
        self.dtype, self.card, self.cached_below = dtype, card, cached_below
        self.for_smooth = _for_smooth(at, dtype, cached_below)
        self.m_nodes: np.ndarray | None = None

    def smooth(self, known: np.ndarray, start: Mapping[str, float] | None = None) -> Smooth:
        """The smooth form's coefficients through the rows *known*."""
        used = known[self.for_smooth[known]]
        if len(used) > _MOST_SMOOTH_ROWS:
            used = np.random.default_rng(1).choice(used, _MOST_SMOOTH_ROWS, replace=False)
        at = {name: values[used] for name, values in self.at.items()}
        coefficients = _coefficients(self.measured_s[used], self.dtype, self.card)
        if start is not None:
            coefficients = restarted(coefficients, start)

        def seconds(values: Mapping[str, float]) -> np.ndarray:
            return self.kernel(values).smooth_s(**at)

        return fit_logs(seconds, self.measured_s[used], coefficients, shapes_of([self.shapes[used]]))

    def kernel(self, values: Mapping[str, float]) -> Gemm:
        """The smooth form with these coefficients."""
        width = WEIGHT_DTYPE_BYTES[self.dtype]
        roofline = Roofline(**{name: values[name] for name in Roofline.__dataclass_fields__})
        quantise = values.get("quantise_bytes_per_s")
        return Gemm(roofline, width, 1.0 if width == 1 else 2.0, quantise, self.cached_below)

    def residuals(self, kernel: Gemm, known: np.ndarray, smoothing: Smoothing) -> Residuals:
        """The residual table of *kernel* through the rows *known*."""
        log_ratio = np.log(self.measured_s / kernel.smooth_s(**self.at))
        if self.m_nodes is None:
            tame = np.clip(log_ratio, -_WILD, _WILD)
            self.m_nodes = choose_nodes(self.at["m"], tame, self.shapes, _M_NODES)
        at = {name: values[known] for name, values in self.at.items()}
        across = {name: spread_nodes(self.at[name], _NK_NODES) for name in ("n", "k")}
        return fit_residuals(at, log_ratio[known], {"m": self.m_nodes}, across, smoothing)

    def best(self, start: Mapping[str, float]) -> tuple[Smoothing | None, np.ndarray]:
        """The kind of residuals (None: none) that holds out best, and its held-out predictions."""
        kernels: dict[bytes, Gemm] = {}

        def kernel_of(known: np.ndarray) -> Gemm:
            rows = known.tobytes()
            if rows not in kernels:
                kernels[rows] = self.kernel(self.smooth(known, start).values)
            return kernels[rows]

        def predict(known: np.ndarray, away: np.ndarray, smoothing: Smoothing | None) -> np.ndarray:
            kernel = kernel_of(known)
            if smoothing is not None:
                kernel = replace(kernel, residual=self.residuals(kernel, known, smoothing))
            return kernel.looped_s(**{name: values[away] for name, values in self.at.items()})

        tried = [
            (smoothing, held_out(self.shapes, partial(predict, smoothing=smoothing)))
            for smoothing in (None, *_SMOOTHINGS)
        ]
        return min(tried, key=lambda attempt: _score(attempt[1], self.measured_s))


def _score(predicted_s: np.ndarray, measured_s: np.ndarray) -> float:
    """What residuals are chosen by: the median error, and a quarter of the 90th percentile."""
    errors = errors_of(predicted_s, measured_s)
    return errors.median_pct + errors.p90_pct / 4


def _coefficients(measured_s: np.ndarray, dtype: str, card: HardwareProfile) -> list[Coefficient]:
    """Rates are below the datasheet's; quantised inputs may come from the L2 cache, and faster."""
    flops_per_s = _peak(card, dtype)
    bytes_per_s = card.memory_bandwidth_bytes_per_s
    least_s = float(measured_s.min())
    found = [
        Coefficient("flops_per_s", 0.75 * flops_per_s, 0.02 * flops_per_s, 0.995 * flops_per_s),
        Coefficient("bytes_per_s", 0.85 * bytes_per_s, 0.02 * bytes_per_s, 0.995 * bytes_per_s),
        Coefficient("exponent", 2.0, 0.5, 20.0),
        Coefficient("overhead_s", 0.8 * least_s, 0.05 * least_s, 1.5 * least_s),
    ]
    if WEIGHT_DTYPE_BYTES[dtype] == 1:
        rate = Coefficient("quantise_bytes_per_s", 0.5 * bytes_per_s, 0.02 * bytes_per_s, 4.0 * bytes_per_s)
        found.append(rate)
    return found


def peak_of(card: HardwareProfile, dtype: str) -> float | None:
    """The datasheet's flops a second of layers in *dtype*; None where the card does not compute so."""
    names = (dtype, *_COMPUTED_AS.get(dtype, ()))
    return next((card.peak_flops_per_s[name] for name in names if name in card.peak_flops_per_s), None)


def _peak(card: HardwareProfile, dtype: str) -> float:
    peak = peak_of(card, dtype)
    if peak is None:
        known = ", ".join(card.peak_flops_per_s)
        raise InputFault(f"gemm {dtype}: {card.name} does not compute in {dtype}; its dtypes are {known}")
    return peak


def _cached_below(at: Columns, measured_s: np.ndarray, dtype: str, card: HardwareProfile) -> float:
    """Up to how many bytes of weights the loop found in the L2 cache; 0 where memory explains every time."""
    weights = at["n"] * at["k"] * WEIGHT_DTYPE_BYTES[dtype]
    small = (weights < _CACHE_REACH * card.l2_bytes) & (weights > _CACHE_FLOOR_BYTES)
    if not small.any():
        return 0.0
    of_memory = weights[small] / measured_s[small] / card.memory_bandwidth_bytes_per_s
    cached = np.mean(of_memory > _FASTER_THAN_MEMORY) > _CACHED_SHARE
    return rounded(_CACHE_REACH * card.l2_bytes) if cached else 0.0


def _for_smooth(at: Columns, dtype: str, cached_below: float) -> np.ndarray:
    """Rows that the smooth form is fitted to: layers as models have them, weights from memory."""
    weights = at["n"] * at["k"] * WEIGHT_DTYPE_BYTES[dtype]
    from_memory = (weights >= cached_below) | (weights <= _CACHE_FLOOR_BYTES)
    served = np.minimum(at["n"], at["k"]) >= _SERVED
    for rows in (from_memory & served, from_memory, np.ones(len(weights), dtype=bool)):
        if rows.sum() >= LEAST_ROWS:
            return rows
    return np.ones(len(weights), dtype=bool)


def _datasheet_s(at: Columns, dtype: str, card: HardwareProfile) -> np.ndarray:
    """The hard roofline of the datasheet's rates."""
    moved = WEIGHT_DTYPE_BYTES[dtype] * at["n"] * at["k"] + at["m"] * 2.0 * (at["k"] + at["n"])
    compute_s = 2.0 * at["m"] * at["n"] * at["k"] / _peak(card, dtype)
    return np.maximum(compute_s, moved / card.memory_bandwidth_bytes_per_s)


def _section(kernel: Gemm) -> dict[str, object]:
    section: dict[str, object] = {name: rounded(value) for name, value in vars(kernel.roofline).items()}
    if kernel.quantise_bytes_per_s is not None:
        section["quantise_bytes_per_s"] = rounded(kernel.quantise_bytes_per_s)
    if kernel.cached_below_bytes:
        section["cached_below_bytes"] = kernel.cached_below_bytes
    if kernel.residual is not None:
        section["residual"] = residual_section(kernel.residual)
    return section
