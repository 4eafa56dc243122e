"""Load series: one server under several loads, and how far along the load axis it is misjudged.

Capacity is the largest output throughput of the series. The knee is the load at which TPOT reaches a limit
half way (in the logarithm) between its values at the lightest and the heaviest load, both curves read as
straight lines between loads on logarithmic axes: where predicted and measured reach it tells the error in
requests or users, which is what a planner asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.validation.points import Point
from sim.validation.predict import Case, Metrics
from sim.validation.score import HEADLINE_GRADES, Row, group_of
from sim.validation.unfit import unfit_of

LEAST_LOADS = 4
_FURTHEST = 2.0  # times the last load: how far a curve that does not reach the limit is carried on


@dataclass(frozen=True)
class Series:
    """One set-up under rising loads; curves by load, None where a value is not known."""

    setup: str
    cases: tuple[Case, ...]
    loads: np.ndarray
    measured_tok_s: np.ndarray
    predicted_tok_s: np.ndarray
    measured_tpot_ms: np.ndarray
    predicted_tpot_ms: np.ndarray


def series_of(cases: Iterable[Case], predictions: Mapping[str, Metrics]) -> list[Series]:
    """The set-ups with `LEAST_LOADS` loads or more whose requests are alike."""
    by_setup: dict[tuple[str, str, str, str], list[Case]] = {}
    for case in cases:
        point = case.point
        if point.id in predictions and point.load_value is not None and not _is_label(point):
            key = (point.setup, point.load_kind, f"{point.isl_mean}", _shape(point))
            by_setup.setdefault(key, []).append(case)
    found = []
    for key, members in by_setup.items():
        ordered = tuple(sorted(members, key=lambda case: case.point.load_value or 0.0))
        if len({case.point.load_value for case in ordered}) == len(ordered) >= LEAST_LOADS:
            found.append(_series(key[0], ordered, predictions))
    return found


def _is_label(point: Point) -> bool:
    """Whether the load of an offline batch is a label of the harness, not how many requests there were."""
    return point.load_kind == "offline" and point.load_value != point.n_requests


def _shape(point: Point) -> str:
    """The answers of a series are equally long, up to what a run happened to generate."""
    if point.osl_mean is not None and any(word in point.osl_dist for word in ("fixed", "nominal")):
        return f"{point.osl_mean:.0f}"
    return point.osl_dist.partition(";")[0]


def _series(setup: str, cases: tuple[Case, ...], predictions: Mapping[str, Metrics]) -> Series:
    columns = [(_measured(case.point), predictions[case.point.id], case.point) for case in cases]
    return Series(
        setup=setup,
        cases=cases,
        loads=np.array([point.load_value for *_, point in columns], dtype=float),
        measured_tok_s=np.array([measured[0] for measured, *_ in columns]),
        predicted_tok_s=np.array([metrics["out_tok_s"] for _, metrics, _ in columns]),
        measured_tpot_ms=np.array([measured[1] for measured, *_ in columns]),
        predicted_tpot_ms=np.array([_predicted_tpot(metrics, point) for _, metrics, point in columns]),
    )


def _measured(point: Point) -> tuple[float, float]:
    """Output throughput (of a closed loop also by Little's law from E2E) and TPOT; NaN if unknown."""
    tpot = point.latency_ms("tpot")
    tok_s = point.out_tok_s
    ttft = point.times_ms.get("ttft_mean_ms")
    if tok_s is None and point.load_kind == "concurrency" and tpot and ttft and point.osl_mean:
        e2e_s = 1e-3 * (ttft + tpot[1] * (point.osl_mean - 1))
        tok_s = (point.load_value or 0.0) * point.osl_mean / e2e_s
    return (np.nan if tok_s is None else tok_s), (np.nan if tpot is None else tpot[1])


def _predicted_tpot(metrics: Metrics, point: Point) -> float:
    told = point.latency_ms("tpot")
    return metrics.get(f"tpot_{told[0]}_ms", np.nan) if told else np.nan


def series_rows(cases: Sequence[Case], predictions: Mapping[str, Metrics], rows: Sequence[Row]) -> list[Row]:
    """Capacity and knee of every series among *cases*."""
    found = []
    for series in series_of(cases, predictions):
        for metric, pair in (("capacity", capacity_of(series)), ("knee", knee_of(series))):
            if pair is not None:
                found.append(_row(series, metric, *pair))
    return found


def capacity_of(series: Series) -> tuple[float, float] | None:
    """Measured and predicted capacity, output tokens/s; None where a load's throughput is unknown."""
    if np.isnan(series.measured_tok_s).any():
        return None
    return float(series.measured_tok_s.max()), float(series.predicted_tok_s.max())


def knee_of(series: Series) -> tuple[float, float] | None:
    """Measured and predicted load at the TPOT limit half way up; None without a rise to cross."""
    measured, predicted = series.measured_tpot_ms, series.predicted_tpot_ms
    if np.isnan(measured).any() or np.isnan(predicted).any() or measured[-1] < 1.1 * measured[0]:
        return None
    limit = float(np.sqrt(measured[0] * measured[-1]))
    at = [_load_at(series.loads, curve, limit) for curve in (measured, predicted)]
    return at[0], at[1]


def _load_at(loads: np.ndarray, curve: np.ndarray, limit: float) -> float:
    """The load at which *curve* (made to rise) reaches *limit*; beyond its ends by their slopes."""
    x, y = np.log(loads), np.log(np.maximum.accumulate(curve))
    i = int(np.clip(np.searchsorted(y, np.log(limit)), 1, len(y) - 1))
    rise = max(float(y[i] - y[i - 1]), 1e-9)
    at = x[i - 1] + (np.log(limit) - y[i - 1]) / rise * (x[i] - x[i - 1])
    return float(np.exp(np.clip(at, x[0] - np.log(_FURTHEST), x[-1] + np.log(_FURTHEST))))


def _row(series: Series, metric: str, measured: float, predicted: float) -> Row:
    point = series.cases[0].point
    needed = ("out_tok_s", "ttft", "tpot") if metric == "capacity" else ("tpot",)
    reasons = [reason for case in series.cases for reason in map(unfit_of(case.point).get, needed) if reason]
    return Row(
        id=series.setup,
        setup=series.setup,
        metric=metric,
        measured=measured,
        predicted=predicted,
        statistic="output tokens/s" if metric == "capacity" else "load at the TPOT limit",
        unfit=reasons[0] if reasons else "",
        counts=not reasons and point.grade in HEADLINE_GRADES,
        group=group_of(series.cases[0]),
    )
