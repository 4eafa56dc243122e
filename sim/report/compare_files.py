"""A comparison's files: the page, Markdown, JSON, and a table for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from sim.files import write_whole
from sim.planning.compare import Comparison
from sim.report.compare_page import compare_page
from sim.report.compare_text import compare_markdown
from sim.report.compare_words import rows_of

COLUMNS = (
    "scenario",
    "number",
    "first",
    "value",
    "difference",
    "interval_low",
    "interval_high",
    "relative",
    "seen",
    "seeds",
)


def write_comparison(comparison: Comparison, directory: Path) -> list[Path]:
    """Write page.html, compare.md, compare.csv and compare.json, each whole or not at all.

    Raises `InputFault` if the place cannot be written.
    """
    document = json.dumps(comparison.as_dict(), allow_nan=False, indent=1) + "\n"
    return [
        write_whole(directory / "page.html", compare_page(comparison)),
        write_whole(directory / "compare.md", compare_markdown(comparison)),
        write_whole(directory / "compare.csv", compare_csv(comparison)),
        write_whole(directory / "compare.json", document),
    ]


def compare_csv(comparison: Comparison) -> str:
    """One row for each number of each scenario but the first, in s, shares, per second and USD."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(COLUMNS)
    for other in comparison.others:
        for row in rows_of(comparison, other) if other.fault is None else ():
            found = row.difference
            seen = "" if found.seen is None else str(found.seen).lower()
            values = (row.first, row.here, found.mean, found.low, found.high, row.relative)
            writer.writerow([other.name, row.number.path, *values, seen, found.count])
    return target.getvalue()
