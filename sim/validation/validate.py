"""A table of measured points in, the document of ``kneesim validate`` out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.validation.points import Point, Points, read_points
from sim.validation.predict import Advance, Case, Metrics, Predictor, cases_of
from sim.validation.score import Row, grouped, rows_of, summary_of

GROUPS = ("kernels", "gpu", "model", "engine", "engine version", "load", "set")


@dataclass(frozen=True)
class Validation:
    """All comparisons of a table; *skipped* tells by id why a row is not among them."""

    points: Sequence[Point]
    cases: Sequence[Case]
    predictions: Mapping[str, Metrics]
    rows: Sequence[Row]
    skipped: Mapping[str, str]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def counted(self) -> list[Row]:
        """The comparisons that the summary rests on: fit, and with enough context."""
        return [row for row in self.rows if row.counts]

    def as_dict(self) -> dict[str, Any]:
        """The document of ``validate --json``."""
        counted = self.counted
        return {
            "rows": [row.as_dict() for row in self.rows],
            "summary": summary_of(counted),
            "by": {
                by: {name: summary_of(rows) for name, rows in grouped(counted, by).items()} for by in GROUPS
            },
            "not_counted": _not_counted(self.rows),
            "skipped": [{"id": name, "reason": reason} for name, reason in self.skipped.items()],
            "parameters": dict(self.parameters),
        }


def validate(path: str | Path, progress: Advance | None = None) -> Validation:
    """Compare every row of the table *path* with what is simulated. Raises `InputFault` if it is no table."""
    return validation_of(read_points(path), Predictor(), progress)


def validation_of(points: Points, predictor: Predictor, progress: Advance | None = None) -> Validation:
    """Compare *points* with what *predictor* says of them."""
    cases, skipped = cases_of(points.rows)
    predictions, failed = predictions_of(cases, predictor, progress)
    rows = rows_of(cases, predictions, points.rows)
    compared = {row.id for row in rows}
    for case in cases:
        if case.point.id not in compared and case.point.id not in failed:
            failed[case.point.id] = _nothing_compared(case.point)
    skipped = {**points.unreadable, **skipped, **failed}
    return Validation(points.rows, cases, predictions, rows, skipped, parameters_of(cases))


def predictions_of(
    cases: Sequence[Case], predict: Callable[[Case], Metrics | str], progress: Advance | None = None
) -> tuple[dict[str, Metrics], dict[str, str]]:
    """The predictions of *cases* by id, and why some have none."""
    made: dict[str, Metrics] = {}
    failed: dict[str, str] = {}
    for number, case in enumerate(cases):
        if progress:
            progress(number, len(cases), case.point.setup)
        metrics = predict(case)
        if isinstance(metrics, str):
            failed[case.point.id] = metrics
        else:
            made[case.point.id] = metrics
    return made, failed


HOST_KEYS = (
    "host_step_s",
    "host_sequence_s",
    "eager_layer_s",
    "front_end_latency_s",
    "front_end_service_s",
    "front_end_prompt_token_s",
)


def parameters_of(cases: Sequence[Case]) -> dict[str, Any]:
    """How many constants the predictions rest on beside the kernels': of engines, of cards; none of a row."""
    engines: dict[str, dict[str, Any]] = {}
    cards: dict[str, dict[str, Any]] = {}
    for case in cases:
        scenario = case.setup.scenario
        host = {key: scenario.engine[key] for key in HOST_KEYS if scenario.engine.get(key)}
        words = " ".join(f"{value:g}" for value in host.values())
        engines.setdefault(f"{scenario.engine['preset']} ({words})", host)
        if shares := scenario.hardware.get("efficiency"):
            cards.setdefault(scenario.hardware["name"], dict(shares))
    count = sum(map(len, engines.values())) + sum(map(len, cards.values()))
    return {"count": count, "per_row": 0, "engines": engines, "cards": cards}


def _nothing_compared(point: Point) -> str:
    if point.load_kind == "rate" and point.out_tok_s is not None:
        return "below capacity the throughput only echoes the rate, and the row has no latency"
    return "the row has no measured value that is compared"


def _not_counted(rows: Sequence[Row]) -> dict[str, Any]:
    """The scores of what the summary leaves out, by reason."""
    left = [row for row in rows if not row.counts]
    by_reason = grouped(left, lambda row: row.unfit or "grade below B+")
    return {reason: summary_of(found) for reason, found in by_reason.items()}
