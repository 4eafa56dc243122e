"""Windows as a picture: each limited statistic over time, its limit, and the worst window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.files import write_whole
from sim.planning.limits import Limit, limits_of
from sim.planning.wording import duration, number
from sim.report.page_charts import Chart, Scale, legend, linear_scale, log_scale, panel
from sim.report.page_html import Html, document, joined, paragraph, section, tag
from sim.report.page_story import Story
from sim.report.windows_text import missed_words, served_words, within_words, worst_words

NAME = "windows.html"
Run = tuple[str, Mapping[str, Any]]
"""Where a load lies, and a run's summary there."""


def windows_section(story: Story) -> Html:
    """How the windows fared at the knee and at the first load that fails; nothing where others decide."""
    knee = story.knee
    if knee.at is None or knee.windows is None:
        return Html("")
    beyond = next((p for p in knee.points if p.load > knee.at.load and not p.passes), None)
    shown = [("at the knee", knee.at)]
    if beyond is not None and "windows" in beyond.summary:
        shown.append(("at the first load that fails", beyond))
    runs = [(f"{place}, {number(point.rate_per_s)}/s", point.summary) for place, point in shown]
    served = served_words(knee, "").rstrip(",")
    words = (
        f"This traffic has no steady state. Served is {served}, {within_words(knee)}. "
        "A window holds the requests that were sent in it, each followed to its end."
    )
    return section("windows", "Window by window", paragraph(words), *_told(runs, story.limits))


def write_windows(summary: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write windows.html in *directory*, if the run of *summary* has windows."""
    if "windows" not in summary:
        return []
    runs = [("", summary)]
    name = summary["scenario"]["name"]
    body = tag("main", section("windows", name, *_told(runs, limits_of(summary["scenario"]["slo"]))))
    return [write_whole(directory / NAME, document(f"{name}: window by window", body))]


def _told(runs: Sequence[Run], limits: Sequence[Limit]) -> list[Html]:
    lines = []
    for place, summary in runs:
        found = summary["windows"]
        told = f"{missed_words(summary)} windows of {duration(found['length_s'])} miss a limit"
        worst = f"; the worst: {worst_words(found['worst'])}" if found["worst"] else ""
        where = f"{place[:1].upper()}{place[1:]}: " if place else ""
        lines.append(paragraph(f"{where}{told}{worst}."))
    return [*lines, windows_figure(runs, limits)]


def windows_figure(runs: Sequence[Run], limits: Sequence[Limit]) -> Html:
    """A row a limit, a column a run: the statistic of each window, and the worst window in grey."""
    panels = [drawn for limit in limits for run in runs if (drawn := _over_time(run, limit, runs))]
    entries = [
        ("dot s-good", "limit holds"),
        ("dot s-bad", "limit missed"),
        ("limit", "limit"),
        ("shade", "the worst window"),
    ]
    grid = tag("div", joined(panels), class_="grid two")
    return tag("div", Html(legend(entries) + grid), class_="figures")


def _over_time(run: Run, limit: Limit, runs: Sequence[Run]) -> Html | None:
    place, summary = run
    rows = [row for row in summary["windows"]["by_window"] if row["values"].get(limit.name) is not None]
    if not rows:
        return None
    last_min = summary["window"]["end_s"] / 60
    says = f"{limit.label} of each window over time, {place}; limit {limit}"
    chart = Chart(says, Scale(0.0, last_min, number), _scale(limit, runs))
    worst = max(rows, key=lambda row: row["values"][limit.name])
    chart.shade(worst["start_s"] / 60, worst["end_s"] / 60, "shade")
    edges = [(row[end] / 60, row["values"][limit.name]) for row in rows for end in ("start_s", "end_s")]
    chart.line(edges, "s-knee")
    for kind, missed in (("s-good", False), ("s-bad", True)):
        dots = [_dot(row, limit) for row in rows if (row["values"][limit.name] > limit.bound_s) is missed]
        chart.dots(dots, kind)
    chart.level(limit.bound_s, "limit", f"limit {duration(limit.bound_s)}")
    return panel(limit.label, chart.svg("minutes since the run began"), place)


def _dot(row: Mapping[str, Any], limit: Limit) -> tuple[float, float, str]:
    value_s = row["values"][limit.name]
    span = f"{duration(row['start_s'])} to {duration(row['end_s'])}"
    words = f"{span}: {limit.label} {duration(value_s)}, {row['requests']:,} requests"
    return (row["start_s"] + row["end_s"]) / 120, value_s, words


def _scale(limit: Limit, runs: Sequence[Run]) -> Scale:
    """One scale for all *runs*."""
    rows = [row for _, summary in runs for row in summary["windows"]["by_window"]]
    values = [limit.bound_s, *(v for row in rows if (v := row["values"].get(limit.name)) is not None)]
    positive = [value for value in values if value > 0]
    return (log_scale if max(positive) > 20 * min(positive) else linear_scale)(values, duration)
