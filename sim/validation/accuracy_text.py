"""A validation in words: errors by metric, then by what they may depend on; misses as plainly as hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.report.text import table
from sim.validation.score import METRICS, Row, grouped, summary_of
from sim.validation.validate import GROUPS, Validation

WORDS = {
    "out_tok_s": "output tokens/s",
    "ttft_ms": "TTFT below capacity",
    "ttft_saturated_ms": "TTFT saturated",
    "tpot_ms": "TPOT",
    "e2e_ms": "E2E",
    "capacity": "capacity of a series",
    "knee": "knee of a series",
}
HEADER = ("median %", "p90 %", "bias %", "rows", "set-ups")
_WORST = 8


def accuracy_text(validation: Validation) -> str:
    """The scores of *validation* for a terminal."""
    counted = validation.counted
    blocks = [_summary(validation)]
    for by in GROUPS:
        parts = grouped(counted, by)
        if len(parts) > 1:
            blocks.append([f"by {by}:", *_rows_by(parts)])
    blocks += [_worst(counted), _left_out(validation), _skipped(validation.skipped)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def cells(errors: Mapping[str, Any]) -> list[str]:
    """One summary's columns, as `HEADER` names them."""
    return [
        f"{errors['median_abs_pct']:.1f}",
        f"{errors['p90_abs_pct']:.1f}",
        f"{errors['bias_pct']:+.1f}",
        str(errors["n"]),
        str(errors["setups"]),
    ]


def _summary(validation: Validation) -> list[str]:
    found = summary_of(validation.counted)
    count = validation.parameters["count"]
    rows = len(validation.points)
    head = (
        f"{len(validation.cases)} of {rows} rows simulated; {count} constants of engines and cards, none of "
        "a row; errors are predicted over measured less 1"
    )
    if not found:
        return [head, "no row of grade B+ or better that is fit for it was compared"]
    return [head, "", *table(("", *HEADER), [[WORDS[name], *cells(found[name])] for name in found])]


def _rows_by(parts: Mapping[str, Sequence[Row]]) -> list[str]:
    lines = []
    for name, rows in parts.items():
        for metric, errors in summary_of(rows).items():
            lines.append([name, WORDS[metric], *cells(errors)])
    return table(("", "", *HEADER), lines)


def _worst(rows: Iterable[Row]) -> list[str]:
    """The largest misses of each metric's rows, one a set-up."""
    chosen: list[Row] = []
    for metric in METRICS:
        mine = sorted((row for row in rows if row.metric == metric), key=lambda row: -abs(row.error_pct))
        seen: set[str] = set()
        for row in mine:
            if row.setup not in seen and len(seen) < _WORST // 2:
                seen.add(row.setup)
                chosen.append(row)
    if not chosen:
        return []
    lines = [[row.id, WORDS[row.metric], f"{row.measured:.4g}", f"{row.predicted:.4g}",
              f"{row.error_pct:+.0f}"] for row in chosen]  # fmt: skip
    return ["largest misses, one a set-up:", *table(("", "", "measured", "predicted", "%"), lines)]


def _left_out(validation: Validation) -> list[str]:
    left = [row for row in validation.rows if not row.counts]
    if not left:
        return []
    parts = grouped(left, lambda row: row.unfit or "grade below B+")
    return ["shown, but not counted:", *_rows_by(parts)]


def _skipped(skipped: Mapping[str, str]) -> list[str]:
    if not skipped:
        return []
    counts = Counter(skipped.values())
    lines = [[str(count), reason] for reason, count in counts.most_common()]
    return [f"{len(skipped)} rows not simulated:", *table(("rows", "reason"), lines)]
