"""Figures, drawn with matplotlib's objects alone: no window system, no global state, equal bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from sim.files import write_whole
from sim.planning.knee import Knee
from sim.planning.limits import Limit
from sim.planning.search import Point
from sim.planning.wording import NAMES, duration, number, output_rate
from sim.report.answer import answer, how_judged
from sim.report.assumptions import assumptions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, LIMIT = "#1a1a1a", "#6e6e6e", "#c44601"
# Light to dark, and a marker and a line each: the order survives a black-and-white print.
STYLES: dict[str, dict[str, Any]] = {
    "p50": {"color": "#7fb8e0", "marker": "o", "linestyle": ":"},
    "p90": {"color": "#2f7fbf", "marker": "s", "linestyle": "--"},
    "p99": {"color": "#0b2f52", "marker": "^", "linestyle": "-"},
}
OTHER_STYLE = {"color": "#7a3b8f", "marker": "D", "linestyle": "-."}
WIDTH_IN, PANEL_IN, LEFT_IN, RIGHT_IN, NAME_IN = 8.0, 1.72, 0.95, 0.95, 0.57
LINE_IN = {"title": 0.235, "below": 0.2, "caption": 0.155}


def knee_figure(knee: Knee) -> Figure:
    """Throughput, latencies and KV-cache usage over the offered load, with the knee and the limits marked.

    One panel for output throughput, one for TTFT, TPOT and any other limited metric, one for the KV cache.
    Points whose queue grows are hollow; the region beyond the knee is shaded.
    """
    panels = _panels(knee)
    title = wrap(_unbroken(answer(knee)), 74)
    caption = [line for text in _caption(knee) for line in wrap(text, 134)]
    with style():
        figure, axes = _sheet(title, _bands(knee), caption, len(panels))
        limit_x = _right_edge(knee)
        for axis, draw in zip(axes, panels, strict=True):
            draw(axis)
            _mark_loads(axis, knee, limit_x)
        _label_loads(axes[0], knee)
        scaled = ", the trace replayed faster or slower" if knee.axis == "load.time_scale" else ""
        axes[-1].set_xlabel(f"offered load (requests/s{scaled})")
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write *figure* as `.png` (160 dpi) or `.svg`, whole or not at all; equal figures give equal bytes."""
    kind = path.suffix.lstrip(".").lower()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "png": {"Software": None}}[kind]
    buffer = BytesIO()
    with style():
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return write_whole(path, buffer.getvalue())


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's defaults whatever the user's own file says, and our few choices."""
    import matplotlib

    chosen: dict[str, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.6,
        "legend.edgecolor": "none",
        "legend.framealpha": 0.9,
        "legend.borderpad": 0.2,
        "legend.fontsize": 8,
        "svg.hashsalt": "kneesim",
    }
    defaults: dict[Any, Any] = dict(matplotlib.rcParamsDefault)
    for key in ("backend", "backend_fallback"):
        defaults.pop(key, None)
    with matplotlib.rc_context(defaults | chosen):
        yield


def _bands(knee: Knee) -> str:
    """What the bands around the knee are."""
    if knee.interval is None:
        return ""
    low, high = knee.interval.sampling
    drawn = f"{number(low)}\N{EN DASH}{number(high)} by sampling alone (dark band)"
    if knee.interval.total is not None:
        low, high = knee.interval.total
        drawn = f"{number(low)}\N{EN DASH}{number(high)} with all known errors (pale band), {drawn}"
    return f"{100 * knee.interval.confidence:.3g} % interval: {drawn}"


def _sheet(title: list[str], below: str, caption: list[str], panels: int) -> tuple[Figure, list[Axes]]:
    """A page with the title above, *panels* axes that share the load axis, and the caption at its foot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title_in = 0.12 + LINE_IN["title"] * len(title)
    above_in = title_in + 0.34 + (LINE_IN["below"] if below else 0)
    below_in = 0.72 + LINE_IN["caption"] * len(caption)
    height_in = above_in + PANEL_IN * panels + below_in
    figure = Figure(figsize=(WIDTH_IN, height_in))
    FigureCanvasAgg(figure)
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(
        left=LEFT_IN / WIDTH_IN,
        right=1 - RIGHT_IN / WIDTH_IN,
        top=1 - above_in / height_in,
        bottom=below_in / height_in,
        hspace=0.16,
    )
    top, left = 1 - 0.12 / height_in, 0.2 / WIDTH_IN
    figure.text(left, top, "\n".join(title), va="top", fontsize=12.5, fontweight="bold", color=INK)
    figure.text(left, 1 - title_in / height_in, below, va="top", fontsize=9.5, color=INK)
    foot = 0.1 / height_in
    figure.text(left, foot, "\n".join(caption), va="bottom", fontsize=7.5, color="#404040", linespacing=1.35)
    # Aligning by the widest tick labels would measure all of them again for each panel.
    for axis in axes:
        axis.yaxis.set_label_coords(-NAME_IN / (WIDTH_IN - LEFT_IN - RIGHT_IN), 0.5)
    return figure, list(axes)


def _panels(knee: Knee) -> list[Callable[[Axes], None]]:
    limited = [limit.metric for limit in knee.asked]
    metrics = list(dict.fromkeys(["ttft", "tpot", *limited]))
    latencies = [_latency_panel(knee, metric) for metric in metrics]
    return [_throughput_panel(knee), *latencies, _cache_panel(knee)]


def _throughput_panel(knee: Knee) -> Callable[[Axes], None]:
    def draw(axis: Axes) -> None:
        tokens = knee.points[0].summary.get("output_tokens", {}).get("mean")
        if tokens:
            edge = _right_edge(knee)
            axis.plot([0, edge], [0, edge * tokens], color=GREY, linewidth=1, linestyle=":", label="offered")
        _curve(axis, knee, lambda p: output_rate(p.summary), "served", STYLES["p99"])
        if any(not point.stable for point in knee.points):
            hollow: dict[str, Any] = {"color": INK, "markerfacecolor": "white", "markersize": 5}
            axis.plot([], [], "^", **hollow, label="queue grows (hollow)")
        if (saturated := knee.saturated_output_throughput) is not None:
            axis.axhline(saturated, color=GREY, linewidth=0.9, linestyle=(0, (5, 2, 1, 2)), zorder=1)
            _beside(axis, saturated, f"saturated\n{number(saturated)}", INK)
        missed = "no load passes" if knee.at is None else "beyond the knee"
        axis.text(0.99, 0.06, missed, transform=axis.transAxes, ha="right", fontsize=8, color="#404040")
        axis.set_ylabel("output throughput\n(tokens/s)")
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(_plain)
        axis.legend(loc="upper left", ncols=3)

    return draw


def _latency_panel(knee: Knee, metric: str) -> Callable[[Axes], None]:
    limits = [limit for limit in knee.asked if limit.metric == metric]
    statistics = list(dict.fromkeys(["p50", "p90", "p99", *(limit.statistic for limit in limits)]))

    def draw(axis: Axes) -> None:
        values_s = [v for s in statistics for p in knee.points if (v := _statistic(p, metric, s)) is not None]
        name = NAMES.get(metric, metric)
        if not values_s:
            axis.text(0.5, 0.5, f"{name} is undefined in these runs", transform=axis.transAxes, ha="center")
            axis.set(ylabel=name, yticks=[])
            return
        unit, scale = _unit(knee, metric, statistics, limits)
        for statistic in statistics:
            style = STYLES.get(statistic, OTHER_STYLE)
            _curve(axis, knee, _reader(metric, statistic, scale), statistic, style)
        for limit in limits:
            if knee.windows:
                _curve(axis, knee, _decisive(limit, scale), f"{limit.statistic}, worst window", OTHER_STYLE)
            _mark_limit(axis, knee, limit, scale)
        axis.set_ylabel(f"{name} ({unit})\nlower is better")
        _latency_range(axis, knee, metric, statistics, limits, scale)
        axis.legend(loc="upper left", ncols=len(statistics) + (len(limits) if knee.windows else 0))

    return draw


def _cache_panel(knee: Knee) -> Callable[[Axes], None]:
    def usage(key: str) -> Callable[[Point], float | None]:
        return lambda point: _scaled(point.summary.get("kv_cache", {}).get(key), 100)

    def draw(axis: Axes) -> None:
        _curve(axis, knee, usage("usage_mean"), "mean", STYLES["p90"])
        longer = len({point.summary["requests"]["offered"] for point in knee.points}) > 1
        largest = "largest in a run" + (" (the knee's is longer)" if longer else "")
        _curve(axis, knee, usage("usage_max"), largest, STYLES["p99"])
        axis.set(ylabel="KV cache in use\n(% of blocks)", ylim=(0, 108), yticks=[0, 25, 50, 75, 100])
        axis.legend(loc="upper left", ncols=2)

    return draw


def _curve(
    axis: Axes, knee: Knee, value: Callable[[Point], float | None], label: str, style: dict[str, Any]
) -> None:
    """A line through all points with a value; filled markers where the queue is stable, hollow elsewhere."""
    shown = [(point, y) for point in knee.points if (y := value(point)) is not None]
    axis.plot(
        [p.rate_per_s for p, _ in shown], [y for _, y in shown], **{**style, "marker": ""}, linewidth=1.4
    )
    for stable in (True, False):
        here = [(p.rate_per_s, y) for p, y in shown if p.stable is stable]
        face = style["color"] if stable else "white"
        axis.plot(
            [x for x, _ in here],
            [y for _, y in here],
            **{**style, "linestyle": ""},
            markersize=4.5,
            markerfacecolor=face,
            zorder=3,
        )
    axis.plot([], [], **style, markersize=4.5, linewidth=1.4, label=label)


def _mark_loads(axis: Axes, knee: Knee, limit_x: float) -> None:
    """The knee and the capacity as vertical lines, the region beyond the knee in grey."""
    axis.set_xlim(0, limit_x)
    beyond = knee.rate_per_s if knee.rate_per_s is not None else 0.0
    axis.axvspan(beyond, limit_x, color="#000000", alpha=0.055, linewidth=0, zorder=0)
    if knee.rate_per_s is not None:
        axis.axvline(knee.rate_per_s, color=INK, linewidth=1.6, zorder=2)
    if knee.interval is not None:
        for ends, alpha in ((knee.interval.total, 0.10), (knee.interval.sampling, 0.22)):
            if ends is not None:
                axis.axvspan(*ends, color=STYLES["p90"]["color"], alpha=alpha, linewidth=0, zorder=1)
    if knee.capacity_rate_per_s is not None:
        axis.axvline(knee.capacity_rate_per_s, color=INK, linewidth=1, linestyle=(0, (2, 2)), zorder=2)


def _label_loads(axis: Axes, knee: Knee) -> None:
    """Names above the top panel; knee to the left of its line, capacity to the right of its own."""
    above: dict[str, Any] = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "va": "bottom",
    }
    if knee.rate_per_s is not None:
        text = f"knee {number(knee.rate_per_s)}/s"
        axis.annotate(text, (knee.rate_per_s, 1), (4, 3), ha="right", fontweight="bold", **above)
    if knee.capacity_rate_per_s is not None:
        text = f"capacity {number(knee.capacity_rate_per_s)}/s"
        axis.annotate(text, (knee.capacity_rate_per_s, 1), (8, 3), ha="left", **above)


def _mark_limit(axis: Axes, knee: Knee, limit: Limit, scale: float) -> None:
    axis.axhline(limit.bound_s * scale, color=LIMIT, linewidth=1.5, linestyle=(0, (6, 2)), zorder=2)
    _beside(axis, limit.bound_s * scale, f"limit {limit.statistic}\n{duration(limit.bound_s)}", LIMIT)
    if knee.at is not None and (value_s := limit.value_s(knee.at.summary)) is not None:
        at = (knee.at.rate_per_s, value_s * scale)
        axis.plot(
            *at,
            marker="o",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=INK,
            markeredgewidth=1.3,
            zorder=4,
        )
        halo = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        place: dict[str, Any] = {
            "xytext": (-9, 5),
            "textcoords": "offset points",
            "ha": "right",
            "bbox": halo,
        }
        axis.annotate(duration(value_s), at, **place, fontsize=8, fontweight="bold")


def _beside(axis: Axes, y: float, text: str, color: str) -> None:
    """*text* in the right margin at height *y*."""
    axis.annotate(
        text,
        (1, y),
        (5, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=color,
        annotation_clip=False,
    )


def _latency_range(
    axis: Axes, knee: Knee, metric: str, statistics: list[str], limits: list[Limit], scale: float
) -> None:
    """Room for what is stable and for the limits; what the growing queue adds leaves the panel at the top."""
    bounds_s = [limit.bound_s for limit in limits]
    stable = [p for p in knee.points if p.stable] or list(knee.points)
    values_s = [v for s in statistics for p in stable if (v := _statistic(p, metric, s)) is not None]
    seen = [v for v in values_s + bounds_s if v > 0]
    if not seen:
        return
    low, high = min(seen) * scale, max(seen) * scale
    if high > 20 * low:
        axis.set_yscale("log")
        axis.set_ylim(low / 1.6, high * 6)
        axis.yaxis.set_major_formatter(_plain)
    else:
        axis.set_ylim(0, high * 1.55)


def _unit(knee: Knee, metric: str, statistics: list[str], limits: list[Limit]) -> tuple[str, float]:
    """Seconds, or milliseconds where the limit (else the median at the lowest load) is below a second."""
    values_s = [v for p in knee.points for s in statistics if (v := _statistic(p, metric, s)) is not None]
    typical_s = max((limit.bound_s for limit in limits), default=values_s[0])
    return ("s", 1.0) if typical_s >= 1 else ("ms", 1e3)


def _unbroken(text: str) -> str:
    """*text* whose lines end neither between a number and its unit nor within the name of a limit."""
    return re.sub(
        r"(?<=\d) (?=(?:us|ms|s|h|requests/s)\b)| (?=p\d)| (?=\u2264)|(?<=\u2264) ",
        "\N{NO-BREAK SPACE}",
        text,
    )


def _plain(value: float, _position: float) -> str:
    """A tick's label: 0.1, 1, 2,000; never a power of ten."""
    return number(value)


def _statistic(point: Point, metric: str, statistic: str) -> float | None:
    return point.summary.get(f"{metric}_s", {}).get(statistic)


def _decisive(limit: Limit, scale: float) -> Callable[[Point], float | None]:
    """The value by which *limit* was judged."""
    return lambda point: _scaled(limit.value_s(point.summary), scale)


def _reader(metric: str, statistic: str, scale: float) -> Callable[[Point], float | None]:
    return lambda point: _scaled(_statistic(point, metric, statistic), scale)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _right_edge(knee: Knee) -> float:
    """A little beyond the capacity; loads that the search tried far beyond it are not drawn."""
    highest = knee.points[-1].rate_per_s
    if knee.first_unstable_rate_per_s is None:
        return (highest or 1.0) * 1.08
    return min(highest * 1.04, knee.first_unstable_rate_per_s * 1.3)


def _caption(knee: Knee) -> list[str]:
    held = assumptions(knee.scenario, knee.requests)
    first = f"{held['model']} on {held['hardware']}. Engine: {held['engine']}."
    second = f"Workload: {held['workload']}; {held['run']}."
    return [first, second, how_judged(knee), *(f"Note: {warning}." for warning in knee.warnings)]
