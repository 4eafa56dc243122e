"""Measured against predicted: which metrics of a row are compared, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.validation.bounds import impossible
from sim.validation.points import LATENCIES, Point
from sim.validation.predict import Case, Metrics
from sim.validation.setups import below_capacity
from sim.validation.unfit import unfit_of

METRICS = ("out_tok_s", "ttft_ms", "ttft_saturated_ms", "tpot_ms", "e2e_ms", "capacity", "knee")
HEADLINE_GRADES = ("A", "A-", "B+", "")
"""How complete a row's context must be for the summary; a table without grades counts whole."""


@dataclass(frozen=True)
class Measured:
    """One value to be compared: *column* is where predictions have it, *unfit* why it is not used."""

    metric: str
    column: str
    value: float
    unfit: str = ""
    derived: bool = False


@dataclass(frozen=True)
class Row:
    """One comparison. *setup* names the load series, *error_pct* is signed, *group* what it is counted by."""

    id: str
    setup: str
    metric: str
    measured: float
    predicted: float
    statistic: str
    unfit: str
    counts: bool
    group: Mapping[str, str]

    @property
    def error_pct(self) -> float:
        """Predicted over measured less 1, in percent."""
        return 100.0 * (self.predicted / self.measured - 1.0)

    def as_dict(self) -> dict[str, Any]:
        """The row of ``validate --json``."""
        told = {
            "id": self.id,
            "setup": self.setup,
            "metric": self.metric,
            "measured": self.measured,
            "predicted": self.predicted,
            "error_pct": self.error_pct,
            "statistic": self.statistic,
            "counts": self.counts,
        }
        return {**told, "unfit": self.unfit} if self.unfit else told


def offline_rates(points: Iterable[Point]) -> dict[tuple[str, ...], float]:
    """By server, the requests per second of its best offline row."""
    best: dict[tuple[str, ...], float] = {}
    for point in points:
        rate = point.req_per_s
        if rate is None and point.out_tok_s is not None and point.osl_mean is not None:
            rate = point.out_tok_s / point.osl_mean
        if point.load_kind == "offline" and rate is not None:
            best[server_of(point)] = max(rate, best.get(server_of(point), 0.0))
    return best


def server_of(point: Point) -> tuple[str, ...]:
    """What tells one server from another: set, card, GPUs, model, types, engine and flags."""
    return (point.set, point.gpu, str(point.n_gpu), str(point.tp), point.model, point.weight_dtype,
            point.engine, point.engine_version, point.flags)  # fmt: skip


def measured_of(point: Point, offline_req_per_s: float | None = None) -> list[Measured]:
    """What of *point* is compared; see contract: no throughput below capacity, TTFT by state of load."""
    below, unfit = below_capacity(point, offline_req_per_s), unfit_of(point)
    found = []
    if point.out_tok_s is not None and not (below and point.load_kind == "rate"):
        found.append(Measured("out_tok_s", "out_tok_s", point.out_tok_s, unfit.get("out_tok_s", "")))
    for latency in LATENCIES:
        metric = "ttft_saturated_ms" if latency == "ttft" and not below else f"{latency}_ms"
        if told := point.latency_ms(latency):
            column = f"{latency}_{told[0]}_ms"
            found.append(Measured(metric, column, told[1], unfit.get(latency, "")))
    if derived := _derived_e2e(point):
        reason = unfit.get("e2e") or unfit.get("ttft") or unfit.get("tpot") or ""
        found.append(Measured("e2e_ms", "e2e_mean_ms", derived, reason, True))
    return found


def case_measured(case: Case, offline: Mapping[tuple[str, ...], float]) -> list[Measured]:
    """`measured_of` the case's point; what the card cannot do is unfit."""
    found = measured_of(case.point, offline.get(server_of(case.point)))
    ruled = [replace(one, unfit=one.unfit or impossible(case, one.column, one.value)) for one in found]
    own = {one.column.partition("_")[0]: one.unfit for one in ruled if one.unfit and not one.derived}
    return [
        replace(one, unfit=one.unfit or own.get("ttft") or own.get("tpot") or "") if one.derived else one
        for one in ruled
    ]


def _derived_e2e(point: Point) -> float | None:
    """Mean E2E of a closed loop of equal answers, TTFT + TPOT x (output - 1), where the row has none."""
    ttft, tpot = point.times_ms.get("ttft_mean_ms"), point.times_ms.get("tpot_mean_ms")
    equal = any(word in point.osl_dist for word in ("nominal", "fixed"))
    if point.load_kind != "concurrency" or point.latency_ms("e2e") or not equal:
        return None
    if ttft is None or tpot is None or point.osl_mean is None:
        return None
    return ttft + tpot * (point.osl_mean - 1)


def rows_of(
    cases: Sequence[Case],
    predictions: Mapping[str, Metrics],
    points: Iterable[Point] | None = None,
) -> list[Row]:
    """The comparisons of all *cases* that have predictions (by id of their point), series among them.

    *points* are those that may tell what a server can do at most (default: those of the cases).
    """
    from sim.validation.series import series_rows

    best = offline_rates(points if points is not None else (case.point for case in cases))
    rows: list[Row] = []
    for case in cases:
        metrics = predictions.get(case.point.id)
        for measured in case_measured(case, best):
            if metrics is not None and measured.column in metrics:
                rows.append(_row(case, measured, metrics[measured.column]))
    return rows + series_rows(cases, predictions, rows)


def _row(case: Case, measured: Measured, predicted: float) -> Row:
    statistic = measured.column.split("_")[1] if measured.metric != "out_tok_s" else "total"
    return Row(
        id=case.point.id,
        setup=case.point.setup,
        metric=measured.metric,
        measured=measured.value,
        predicted=predicted,
        statistic="derived mean" if measured.derived else statistic,
        unfit=measured.unfit,
        counts=not measured.unfit and case.point.grade in HEADLINE_GRADES,
        group=group_of(case),
    )


def group_of(case: Case) -> dict[str, str]:
    """What rows are counted by, beside their metric."""
    point, scenario = case.point, case.setup.scenario
    version = ".".join(str(part) for part in point.version[:3]) or "not told"
    engine = point.engine.partition(" ")[0]
    return {
        "gpu": scenario.hardware["name"],
        "kernels": "estimated" if case.setup.estimated else "measured",
        "model": scenario.model["name"],
        "engine": engine,
        "engine version": f"{engine} {version}",
        "load": point.load_kind,
        "set": point.set or "(none)",
        "setup": point.setup,
    }


def summary_of(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """By metric: median and 90th percentile of absolute errors, signed median, rows and set-ups."""
    by_metric: dict[str, list[Row]] = {}
    for row in rows:
        by_metric.setdefault(row.metric, []).append(row)
    return {metric: _errors(by_metric[metric]) for metric in METRICS if metric in by_metric}


def _errors(rows: Sequence[Row]) -> dict[str, Any]:
    errors = np.array([row.error_pct for row in rows])
    return {
        "median_abs_pct": float(np.median(np.abs(errors))),
        "p90_abs_pct": float(np.percentile(np.abs(errors), 90)),
        "bias_pct": float(np.median(errors)),
        "n": len(rows),
        "setups": len({row.setup for row in rows}),
    }


def grouped(rows: Iterable[Row], by: str | Callable[[Row], str]) -> dict[str, list[Row]]:
    """*rows* by one of `group_of`'s names, or by a function of them, in order of the alphabet."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group[by] if isinstance(by, str) else by(row), []).append(row)
    return dict(sorted(found.items()))


def scaled(row: Row, factor: float) -> Row:
    """*row* with its prediction *factor* times as large."""
    return replace(row, predicted=row.predicted * factor)
