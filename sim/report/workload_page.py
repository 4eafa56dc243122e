"""Pictures of traffic: a page that holds everything and fetches nothing, and the same as one PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sim.files import write_whole
from sim.report.page_charts import Chart, Scale, legend, linear_scale, log_scale
from sim.report.page_charts import panel as framed
from sim.report.page_html import Html, document, joined, section, tag
from sim.report.workload_curves import Panel, panels_of
from sim.workload.portrait import Portrait

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Traffic = dict[str, Sequence[Portrait]]
STYLES = ("s-high", "s-other")
_COLOURS, _DASHES = ("#0b2f52", "#7a3b8f"), ("-", "--")


def write_pictures(title: str, traffic: Traffic, directory: Path, stem: str, text: str) -> list[Path]:
    """Write *stem*.html and *stem*.png in *directory*, each whole or not at all; *text* goes on the page.

    *traffic*: portraits of runs, by what they are called. Raises `InputFault` where they cannot be written.
    """
    from sim.report.figures import save

    page = write_whole(directory / f"{stem}.html", workload_page(title, traffic, text))
    return [page, save(workload_figure(title, traffic), directory / f"{stem}.png")]


def workload_page(title: str, traffic: Traffic, text: str) -> str:
    """The page as text; equal portraits give equal text."""
    names = [(style, name) for style, name in zip(STYLES, traffic, strict=False) if name]
    charts = tag("div", Html("".join(_chart(panel) for panel in panels_of(traffic))), class_="grid two")
    body = joined(
        [
            tag("p", "Kneesim: traffic", class_="kicker"),
            tag("h1", title),
            section("pictures", "What it looks like", legend(names) if names else Html(""), charts),
            section("numbers", "In numbers", tag("pre", text)),
        ],
        "\n",
    )
    return document(title, body)


def _chart(panel: Panel) -> Html:
    points = [point for curves in panel.lines.values() for curve in curves for point in curve]
    xs, ys = [x for x, _ in points], [y for _, y in points] + ([panel.level[0]] if panel.level else [])
    x = log_scale(xs, _words, 1.25) if panel.log_x else Scale(min(xs), max(xs), _words)
    y = log_scale(ys, _words) if panel.log_y else linear_scale(ys, _words, 1.05)
    chart = Chart(
        f"{panel.title}: {panel.y_name} over {panel.x_name}", x, y, top=57.0 if panel.marks else 30.0
    )
    for row, (value, words) in enumerate(panel.marks):
        chart.upright(value, "capacity", words, row)
    if panel.level:
        chart.level(panel.level[0], "limit", panel.level[1])
    for style, curves in zip(STYLES, panel.lines.values(), strict=False):
        for curve in curves:
            chart.line(curve, style)
    return framed(panel.title, chart.svg(panel.x_name), panel.y_name)


def _words(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def workload_figure(title: str, traffic: Traffic) -> Figure:
    """The same diagrams side by side, for a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from sim.report.figures import style

    panels = panels_of(traffic)
    rows = (len(panels) + 1) // 2
    with style():
        figure = Figure(figsize=(8.0, 0.6 + 2.5 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        axes = figure.subplots(rows, 2, squeeze=False).ravel()
        for axis, panel in zip(axes, panels, strict=False):
            _draw(axis, panel)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        if any(traffic):
            axes[0].legend(loc="upper left")
    return figure


def _draw(axis: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter

    for (name, curves), colour, dashes in zip(panel.lines.items(), _COLOURS, _DASHES, strict=False):
        for number, curve in enumerate(curves):
            xs, ys = zip(*curve, strict=True) if curve else ((), ())
            label = name if number == 0 and name else None
            axis.plot(xs, ys, color=colour, linestyle=dashes, linewidth=1.2, label=label)
    for value, words in panel.marks:
        axis.axvline(value, color="#6e6e6e", linewidth=0.8, linestyle=(0, (2, 2)))
        axis.annotate(words, (value, 0.02), (-2, 0), xycoords=("data", "axes fraction"), rotation=90,
                      textcoords="offset points", fontsize=7, ha="right", va="bottom")  # fmt: skip
    if panel.level:
        axis.axhline(panel.level[0], color="#c44601", linewidth=1.0, linestyle=(0, (6, 2)))
        axis.annotate(panel.level[1], (0.02, panel.level[0]), (0, 2), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=7.5, color="#c44601")  # fmt: skip
    at = {x for curves in panel.lines.values() for curve in curves for x, _ in curve}
    if len(at) == 1:  # all requests alike
        axis.set_xlim(min(at) / 2, 2 * min(at))
    axis.set_xscale("log" if panel.log_x else "linear")
    axis.set_yscale("log" if panel.log_y else "linear")
    axis.set_title(panel.title, fontsize=9.5, loc="left")
    axis.set(xlabel=panel.x_name, ylabel=panel.y_name)
    axis.yaxis.label.set_fontsize(7.5)
    axis.xaxis.label.set_fontsize(8)
    for side, log in ((axis.xaxis, panel.log_x), (axis.yaxis, panel.log_y)):
        if log:
            side.set_major_formatter(FuncFormatter(lambda value, _: _words(value)))
    if panel.ends is not None:
        axis.set_ylim(bottom=0, top=panel.ends[1] * 1.02 or None)
