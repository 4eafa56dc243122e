"""A validation's files: every comparison as a table, a scatter plot, and curves of load series."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.files import write_whole
from sim.report.figures import save
from sim.validation.accuracy_text import WORDS
from sim.validation.score import METRICS, Row
from sim.validation.series import Series, capacity_of, knee_of, series_of
from sim.validation.validate import Validation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#2f7fbf", "#c44601", "#4b8b3b", "#7a3b8f", "#8a6d1c", "#1a1a1a")
_GREY = "#b0b0b0"
_BAND = 1.10
_PER_SHEET = 12


def write_accuracy(validation: Validation, directory: Path) -> list[Path]:
    """Write validate.json, rows.csv, scatter.png and series-N.png into *directory*; returns their paths."""
    text = json.dumps(validation.as_dict(), indent=1, allow_nan=False) + "\n"
    written = [
        write_whole(directory / "validate.json", text),
        write_whole(directory / "rows.csv", _csv(validation.rows)),
        save(scatter_figure(validation.rows), directory / "scatter.png"),
    ]
    series = series_of(validation.cases, validation.predictions)
    for first in range(0, len(series), _PER_SHEET):
        figure = series_figure(series[first : first + _PER_SHEET])
        written.append(save(figure, directory / f"series-{first // _PER_SHEET + 1}.png"))
    return written


def _csv(rows: Sequence[Row]) -> str:
    sink = io.StringIO()
    names = [*(rows[0].group if rows else {}), "id", "metric", "statistic", "measured", "predicted",
             "error_pct", "counts", "unfit"]  # fmt: skip
    writer = csv.DictWriter(sink, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row.group, "unfit": row.unfit, **row.as_dict()})
    return sink.getvalue()


def scatter_figure(rows: Sequence[Row]) -> Figure:
    """Predicted over measured, one panel a metric, one colour an engine; grey what is not counted."""
    from matplotlib.figure import Figure

    metrics = [metric for metric in METRICS if any(row.metric == metric for row in rows)]
    figure = Figure(figsize=(3.4 * max(len(metrics), 1), 3.9), layout="constrained")
    engines = sorted({row.group["engine"] for row in rows})
    for position, metric in enumerate(metrics):
        axis = figure.add_subplot(1, len(metrics), position + 1)
        _scatter(axis, [row for row in rows if row.metric == metric], engines)
        axis.set_title(WORDS[metric], fontsize=10)
    if metrics:
        figure.axes[0].set_ylabel("predicted")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _scatter(axis: Axes, rows: Sequence[Row], engines: Sequence[str]) -> None:
    left = [row for row in rows if not row.counts]
    axis.scatter(*_xy(left), s=7, color=_GREY, label="not counted")
    for engine, colour in zip(engines, _COLOURS, strict=False):
        mine = [row for row in rows if row.counts and row.group["engine"] == engine]
        axis.scatter(*_xy(mine), s=9, color=colour, label=engine)
    values = [value for row in rows for value in (row.measured, row.predicted) if value > 0]
    low, high = 0.8 * min(values), 1.25 * max(values)
    axis.plot((low, high), (low, high), color="#1a1a1a", linewidth=0.8)
    axis.fill_between((low, high), (low / _BAND, high / _BAND), (low * _BAND, high * _BAND),
                      color=_GREY, alpha=0.3, linewidth=0)  # fmt: skip
    axis.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="measured")
    axis.grid(alpha=0.3)


def _xy(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row.measured for row in rows], [row.predicted for row in rows]


def series_figure(series: Sequence[Series]) -> Figure:
    """TPOT over load, measured and predicted, a panel a series; throughput where TPOT is not known."""
    from matplotlib.figure import Figure

    columns = min(len(series), 4)
    lines = -(-len(series) // columns)
    figure = Figure(figsize=(3.3 * columns, 2.6 * lines + 0.5), layout="constrained")
    for number, one in enumerate(series):
        axis = figure.add_subplot(lines, columns, number + 1)
        _curves(axis, one)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _curves(axis: Axes, series: Series) -> None:
    import numpy as np

    known = not np.isnan(series.measured_tpot_ms).all()
    measured = series.measured_tpot_ms if known else series.measured_tok_s
    predicted = series.predicted_tpot_ms if known else series.predicted_tok_s
    axis.plot(series.loads, measured, "o-", color="#1a1a1a", label="measured", markersize=4)
    axis.plot(series.loads, predicted, "s--", color="#c44601", label="predicted", markersize=4)
    axis.set_ylabel("TPOT (ms)" if known else "output tokens/s", fontsize=8)
    axis.set_title(f"{series.setup}\n{_told(series)}", fontsize=6.5)
    axis.set_xscale("log")
    axis.grid(alpha=0.3)


def _told(series: Series) -> str:
    told = []
    for name, pair in (("capacity", capacity_of(series)), ("knee", knee_of(series))):
        if pair is not None:
            told.append(f"{name} {100 * (pair[1] / pair[0] - 1):+.0f} % of load"
                        if name == "knee" else f"{name} {100 * (pair[1] / pair[0] - 1):+.0f} %")  # fmt: skip
    values: Any = ", ".join(told)
    return values or "no knee to cross"
