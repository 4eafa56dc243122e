"""The page's figures: curves over the load, tails of the latencies, and what happened over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sim.planning.knee import Knee
from sim.planning.limits import Limit
from sim.planning.search import Point
from sim.planning.wording import NAMES, duration, number, output_rate
from sim.report.page_charts import Chart, Scale, legend, linear_scale, log_scale, panel
from sim.report.page_html import Html, tag
from sim.report.page_runs import SLOWER, LoadRun

PERCENTILES = ("p50", "p90", "p99")
CURVES = {"p50": "s-low", "p90": "s-mid", "p99": "s-high"}
Interval = tuple[float, float]


def percent(share: float) -> str:
    """`12.5 %`, `0.01 %`."""
    return f"{number(100 * share)} %"


def knee_figure(knee: Knee, interval: Interval | None) -> Html:
    """Throughput, the limited latencies and the KV cache over the load; *interval* is drawn as a band."""
    metrics = dict.fromkeys(["ttft", "tpot", *(limit.metric for limit in knee.asked)])
    panels = [_throughput(knee, interval)]
    panels += [drawn for metric in metrics if (drawn := _latency(knee, metric, interval))]
    panels.append(_cache(knee, interval))
    entries = [
        *((style, name) for name, style in CURVES.items()),
        *([] if knee.at is None else [("knee", "knee")]),
        ("capacity", "capacity"),
        ("limit", "limit"),
        ("dot s-high hollow", "queue grows without end"),
        ("shade", "no load passes" if knee.at is None else "beyond the knee"),
    ]
    if interval is not None:
        entries.append(("interval", "interval of the knee"))
    return tag("div", Html(legend(entries) + _grid(panels, "two")), class_="figures")


def _throughput(knee: Knee, interval: Interval | None) -> Html:
    def served(point: Point) -> float | None:
        return output_rate(point.summary)

    values = [v for p in _drawn(knee) if (v := served(p)) is not None]
    says = "Output throughput over the offered load"
    chart = Chart(says, _load_scale(knee), linear_scale(values, number))
    tokens = knee.points[0].summary.get("output_tokens", {}).get("mean")
    if tokens:
        edge = chart.x.high
        chart.line([(0.0, 0.0), (edge, edge * tokens)], "s-offered")
    _marks(chart, knee, interval)
    _curve(chart, knee, served, "s-high", lambda value: f"{number(value)} tokens/s")
    return panel("Output throughput", chart.svg("offered load, requests/s"), "tokens/s; dotted: offered")


def _latency(knee: Knee, metric: str, interval: Interval | None) -> Html | None:
    limits = [limit for limit in knee.asked if limit.metric == metric]
    statistics = list(dict.fromkeys([*PERCENTILES, *(limit.statistic for limit in limits)]))
    readers = {name: _reader(f"{metric}_s", name) for name in statistics}
    readers |= {f"{x.statistic} of the worst window": _in_windows(x) for x in limits if knee.windows}
    settled = [p for p in _drawn(knee) if p.stable] or _drawn(knee)
    seen = [v for p in settled for read in readers.values() if (v := read(p)) is not None]
    if not seen:
        return None
    seen += [limit.bound_s for limit in limits]
    wide = max(seen) > 20 * min(seen)
    scale = log_scale(seen, duration, 2.0) if wide else linear_scale(seen, duration, 1.3)
    name = NAMES.get(metric, metric)
    chart = Chart(f"{name} over the offered load; {_spoken(limits)}", _load_scale(knee), scale)
    _marks(chart, knee, interval)
    for limit in limits:
        chart.level(limit.bound_s, "limit", f"limit {limit.statistic} {duration(limit.bound_s)}")
    for statistic, read in readers.items():
        _curve(chart, knee, read, CURVES.get(statistic, "s-other"), _named(f"{name} {statistic}", duration))
    others = [name for name in readers if name not in CURVES]
    note = f"also {', '.join(others)}; lower is better" if others else "lower is better"
    return panel(name, chart.svg("offered load, requests/s"), note)


def _cache(knee: Knee, interval: Interval | None) -> Html:
    chart = Chart("KV cache in use over the offered load", _load_scale(knee), Scale(0.0, 1.05, percent))
    _marks(chart, knee, interval)
    for key, style in (("usage_mean", "s-mid"), ("usage_max", "s-high")):
        words = _named(key.removeprefix("usage_"), percent)
        _curve(chart, knee, _reader("kv_cache", key), style, words)
    note = "of blocks; mean dashed, largest in a run solid"
    return panel("KV cache in use", chart.svg("offered load, requests/s"), note)


def _curve(
    chart: Chart,
    knee: Knee,
    read: Callable[[Point], float | None],
    style: str,
    words: Callable[[float], str],
) -> None:
    """A line through the points, and dots: hollow where the queue grows."""
    shown = [(p, y) for p in knee.points if (y := read(p)) is not None]
    chart.line([(p.rate_per_s, y) for p, y in shown], style)
    for stable in (True, False):
        dots = [
            (p.rate_per_s, y, f"{number(p.rate_per_s)} requests/s: {words(y)}")
            for p, y in shown
            if p.stable is stable and p.rate_per_s <= chart.x.high and y <= 1.02 * chart.y.high
        ]
        chart.dots(dots, style, hollow=not stable)


def _marks(chart: Chart, knee: Knee, interval: Interval | None) -> None:
    """The knee with its interval, the capacity, and shade beyond the knee."""
    if interval is not None:
        chart.shade(interval[0], min(interval[1], chart.x.high), "interval")
    chart.shade(knee.rate_per_s or 0.0, chart.x.high, "shade")
    if knee.rate_per_s is not None:
        chart.upright(knee.rate_per_s, "knee", f"knee {number(knee.rate_per_s)}")
    if knee.capacity_rate_per_s is not None:
        row = 1 if knee.rate_per_s is not None else 0
        words = f"capacity {number(knee.capacity_rate_per_s)}"
        chart.upright(knee.capacity_rate_per_s, "capacity", words, row)


def _load_scale(knee: Knee) -> Scale:
    highest = knee.points[-1].rate_per_s
    if knee.first_unstable_rate_per_s is not None:
        highest = min(highest, knee.first_unstable_rate_per_s * 1.25)
    return Scale(0.0, 1.04 * highest or 1.0, number)


def _drawn(knee: Knee) -> list[Point]:
    edge = _load_scale(knee).high
    return [point for point in knee.points if point.rate_per_s <= edge]


def _reader(section: str, key: str) -> Callable[[Point], float | None]:
    return lambda point: point.summary.get(section, {}).get(key)


def _in_windows(limit: Limit) -> Callable[[Point], float | None]:
    return lambda point: limit.value_s(point.summary)


def _named(name: str, words: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: f"{name} {words(value)}"


def _spoken(limits: Sequence[Limit]) -> str:
    return ", ".join(f"limit {limit}" for limit in limits) or "no limit"


def tails_figure(runs: Sequence[LoadRun], limits: Sequence[Limit]) -> Html:
    """For each latency the share of values above it, at each load; a limit is where two lines cross."""
    panels = [drawn for metric in runs[0].tails if (drawn := _tail(runs, metric, limits))]
    entries = [*_load_entries(runs), ("limit", "limit, and the share that may lie above it")]
    return tag("div", Html(legend(entries) + _grid(panels, "two")), class_="figures")


def _tail(runs: Sequence[LoadRun], metric: str, limits: Sequence[Limit]) -> Html | None:
    shown = [(run, run.tails[metric]) for run in runs]
    drawn = [(run, tail) for run, tail in shown if tail is not None]
    mine = [limit for limit in limits if limit.metric == metric]
    if not drawn:
        return None
    values = [float(v) for _, tail in drawn for v in (tail[0], tail[-1])] + [x.bound_s for x in mine]
    name = NAMES[metric]
    chart = Chart(
        f"Share of values above each {name}; {_spoken(mine)}",
        log_scale(values, duration, 1.15),
        Scale(1e-4, 1.3, percent, log=True),
        top=20.0,
    )
    for limit in mine:
        chart.upright(limit.bound_s, "limit", f"{limit.statistic} {duration(limit.bound_s)}")
        if limit.statistic.startswith("p"):
            chart.level(1 - float(limit.statistic[1:]) / 100, "limit")
    for run, tail in drawn:
        points = [(float(value), share) for value, share in zip(tail, SLOWER, strict=True)]
        chart.line(points, f"s-{run.load.kind}")
    what = "each gap between two tokens" if metric == "itl" else "each request"
    return panel(name, chart.svg(f"{name}, {what}"), "share above, logarithmic")


def time_figure(runs: Sequence[LoadRun], max_num_seqs: int | None) -> Html:
    """Running, waiting, KV cache and tokens over time: a column a load, running and tokens on one scale."""
    most_running = max(float(run.timeline.series["running"].most.max()) for run in runs)
    series = [run.timeline.series for run in runs]
    tokens = [float(one[name].mean.max()) for one in series for name in ("prompt", "generation")]
    scales = {"running": linear_scale([most_running], number, 1.3), "tokens": linear_scale(tokens, number)}
    panels = [drawn for run in runs for drawn in _over_time(run, scales, max_num_seqs)]
    entries = [
        ("s-knee", "mean of each bin; generated tokens"),
        ("area", "largest in the bin"),
        ("s-mid", "prompt tokens"),
        ("warm", "not measured: warm-up, and after the last arrival"),
    ]
    return tag("div", Html(legend(entries) + _grid(panels, f"columns-{len(runs)}")), class_="figures")


def _over_time(run: LoadRun, scales: dict[str, Scale], max_num_seqs: int | None) -> list[Html]:
    series, rate = run.timeline.series, f"{number(run.rate_per_s)}/s"
    waiting = linear_scale([float(series["waiting"].most.max()), 4.0], number)
    drawn = []
    for title, name, scale in (
        ("Running", "running", scales["running"]),
        ("Waiting", "waiting", waiting),
        ("KV cache", "kv", Scale(0.0, 1.05, percent)),
    ):
        chart = _time_chart(run, f"{title} sequences over time, {run.load.place}", scale)
        if name == "running" and max_num_seqs and max_num_seqs <= scale.high:
            chart.level(max_num_seqs, "limit", f"max_num_seqs {max_num_seqs}")
        chart.area(_points(run, series[name].most))
        chart.line(_points(run, series[name].mean), "s-knee")
        drawn.append(panel(title, chart.svg("minutes"), f"{run.load.place}, {rate}"))
    chart = _time_chart(run, f"Tokens a second over time, {run.load.place}", scales["tokens"])
    chart.line(_points(run, series["prompt"].mean), "s-mid")
    chart.line(_points(run, series["generation"].mean), "s-knee")
    return [*drawn, panel("Tokens/s", chart.svg("minutes"), f"{run.load.place}, {rate}")]


def _time_chart(run: LoadRun, says: str, scale: Scale) -> Chart:
    """A small chart over minutes, with what was not measured in grey."""
    last_min = float(run.timeline.edges_s[-1]) / 60
    start_s, end_s = run.timeline.window_s
    chart = Chart(says, Scale(0.0, last_min, number), scale, width=310, height=140, top=8)
    chart.shade(0.0, start_s / 60, "warm")
    chart.shade(min(end_s / 60, last_min), last_min, "warm")
    return chart


def _points(run: LoadRun, values: np.ndarray) -> list[tuple[float, float]]:
    middle_min = (run.timeline.edges_s[1:] + run.timeline.edges_s[:-1]) / 120
    return list(zip(middle_min.tolist(), values.tolist(), strict=True))


def _load_entries(runs: Sequence[LoadRun]) -> list[tuple[str, str]]:
    return [(f"s-{run.load.kind}", f"{run.load.place}, {number(run.rate_per_s)}/s") for run in runs]


def _grid(panels: Sequence[str], kind: str) -> str:
    return tag("div", Html("".join(panels)), class_=f"grid {kind}")
