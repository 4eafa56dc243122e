"""The loads that a page looks into: below, at and beyond the knee, run once more with all their records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from sim.planning.knee import Knee
from sim.results.requests import RequestTable
from sim.results.steps import StepLog
from sim.scenario import Scenario
from sim.simulation import Run, simulate

BELOW, BEYOND = 0.7, 1.25  # of the knee, of the capacity
MOST_REQUESTS = 10_000  # of a run that is looked into
BINS = 300
LATENCIES = ("ttft", "tpot", "itl", "e2e")
TTFT_PARTS = ("front end", "queue", "prefill")
SLOWER = tuple(10 ** (-step / 20) for step in range(81))  # shares of the values: from all to one in 10,000


@dataclass(frozen=True)
class Load:
    """What is run: *load* is the value of the scenario's load key; *place* says where it lies."""

    place: str
    kind: str  # below, knee or beyond: how it is drawn
    load: float


@dataclass(frozen=True)
class Series:
    """A quantity over time: its mean in each bin and its largest value there."""

    mean: np.ndarray
    most: np.ndarray


@dataclass(frozen=True)
class Timeline:
    """*edges_s* bound the bins (bins + 1 values, s since the run began); *window_s* is what was measured.

    *series* holds `running` and `waiting` (sequences), `kv` (share of the blocks), `prompt` and `generation`
    (tokens/s, without a largest value).
    """

    edges_s: np.ndarray
    window_s: tuple[float, float]
    series: Mapping[str, Series]


@dataclass(frozen=True)
class LoadRun:
    """One load's run. Times in s, over the requests that arrived in the window and completed.

    *parts_s* are the parts of each request's TTFT (`TTFT_PARTS`), which add up to *ttft_s*. *tails* holds for
    each latency the value that the shares `SLOWER` of its values exceed; None where it is undefined.
    """

    load: Load
    rate_per_s: float
    summary: Mapping[str, Any]
    ttft_s: np.ndarray
    parts_s: Mapping[str, np.ndarray]
    tails: Mapping[str, np.ndarray | None]
    timeline: Timeline

    def slowest(self, share: float) -> np.ndarray:
        """Rows of the slowest *share* of the requests by TTFT, at least one."""
        return np.argsort(self.ttft_s, kind="stable")[-ceil(share * len(self.ttft_s)) :]


def loads_of(knee: Knee) -> tuple[Load, ...]:
    """Below, at and beyond the knee; without a knee the lowest load tried in place of the first two."""
    lowest, highest = knee.points[0], knee.points[-1]
    if knee.at is None:
        found = [Load("lowest load tried", "below", lowest.load)]
    else:
        knee_load = knee.at.load
        found = [Load("below the knee", "below", BELOW * knee_load), Load("at the knee", "knee", knee_load)]
    if knee.capacity_rate_per_s is not None:
        per_rate = lowest.load / lowest.rate_per_s  # a trace's loads are multiples of its own rate
        found.append(Load("beyond the capacity", "beyond", BEYOND * knee.capacity_rate_per_s * per_rate))
    elif highest.load > found[-1].load:
        found.append(Load("highest load tried", "beyond", highest.load))
    return tuple(found)


def run_loads(knee: Knee) -> tuple[LoadRun, ...]:
    """One run at each of `loads_of`, with the scenario's seed and its length, up to `MOST_REQUESTS`.

    Whether its queue grows is the knee's to say where it knows the capacity; a single run only guesses.
    """
    shorter = {"run.requests": MOST_REQUESTS} if knee.scenario.run.get("requests", 0) > MOST_REQUESTS else {}
    runs = []
    for load in loads_of(knee):
        changes = {knee.axis: float(f"{load.load:.5g}"), **shorter}
        run = _run_load(load, knee.scenario.replace(changes, source="page"))
        runs.append(replace(run, summary=_judged(run, knee)))
    return tuple(runs)


def _judged(run: LoadRun, knee: Knee) -> Mapping[str, Any]:
    stable = run.summary["stable"] if knee.capacity_rate_per_s is None else run.load.kind != "beyond"
    return {**run.summary, "stable": stable}


def _run_load(load: Load, scenario: Scenario) -> LoadRun:
    from sim.results import Result

    run = simulate(scenario)
    table = RequestTable.of(run)
    log = table.log
    window_s = table.window
    length_s = window_s[1] - window_s[0]
    offered_per_s = float(table.in_window.sum()) / length_s if length_s > 0 else 0.0
    return LoadRun(
        load=load,
        rate_per_s=float(scenario.load.get("rate_per_s", offered_per_s)),
        summary=Result(run).summary(),
        ttft_s=table.ttft_s[table.measured],
        parts_s=_ttft_parts(run, table.measured),
        tails={name: _tail(table, log, name) for name in LATENCIES},
        timeline=_timeline(run, window_s),
    )


def _ttft_parts(run: Run, measured: np.ndarray) -> dict[str, np.ndarray]:
    """Client's send to engine's queue, to the first schedule, to the first token."""
    names = ("queued_s", "first_scheduled_s", "first_token_s")
    passed = [run.requests.arrival_s, *(run.recorder.column(name) for name in names)]
    gaps = [(later - earlier)[measured] for earlier, later in pairwise(passed)]
    return dict(zip(TTFT_PARTS, gaps, strict=True))


def _tail(table: RequestTable, log: StepLog, metric: str) -> np.ndarray | None:
    percentiles = sorted({round(100 * (1 - share), 4) for share in SLOWER})
    if metric == "itl":
        described = log.gaps(table.measured).describe("", percentiles)
        return np.array([described[f"p{p:g}"] for p in percentiles]) if described["n"] else None
    values = table.values(metric, table.measured)
    return np.percentile(values, percentiles) if len(values) else None


def _timeline(run: Run, window_s: tuple[float, float]) -> Timeline:
    column = run.recorder.column
    start_s, end_s = column("start_s"), column("end_s")
    last_s = float(end_s[-1]) if len(end_s) else window_s[1]
    edges_s = np.linspace(0.0, max(last_s, 1e-9), BINS + 1)
    blocks = (column("blocks_first") + column("blocks_last")) / 2 / max(run.scheduler.num_blocks, 1)
    length_s = np.maximum(end_s - start_s, 1e-12)
    levels = {
        "running": column("decodes") + column("prefill_sequences"),
        "waiting": column("waiting"),
        "kv": blocks,
        "prompt": column("prefill_tokens") / length_s,
        "generation": column("decodes").astype(np.float64) * column("iterations") / length_s,
    }
    series = {name: _binned(start_s, end_s, level, edges_s) for name, level in levels.items()}
    # A prompt's last chunk gives the first token, which is no decode.
    first_s = column("first_token_s")
    firsts = np.histogram(first_s[np.isfinite(first_s)], edges_s)[0] / np.diff(edges_s)
    series["generation"] = Series(series["generation"].mean + firsts, series["generation"].most)
    return Timeline(edges_s, window_s, series)


def _binned(start_s: np.ndarray, end_s: np.ndarray, level: np.ndarray, edges_s: np.ndarray) -> Series:
    """Mean over time and largest value of *level*, which holds from each start to its end, else zero."""
    moments_s = np.column_stack([start_s, end_s]).ravel()
    area = np.repeat(np.cumsum(level * (end_s - start_s)), 2)
    area[::2] = np.concatenate([[0.0], area[1:-1:2]]) if len(area) else area
    passed = np.interp(edges_s, moments_s, area) if len(area) else np.zeros(len(edges_s))
    first = np.searchsorted(end_s, edges_s[:-1], side="right")
    last = np.searchsorted(start_s, edges_s[1:], side="left")
    most = [float(level[a:b].max()) if b > a else 0.0 for a, b in zip(first, last, strict=True)]
    return Series(np.diff(passed) / np.diff(edges_s), np.array(most))
