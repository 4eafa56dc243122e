"""How far another sample of the same traffic would move a knee without a steady state.

Where traffic is drawn at random, other samples are other seeds, and the knee is the mean of theirs.

A trace is one sample. Others like it are drawn from it in blocks of whole windows, in which arrivals and
lengths stay together, and each of them has a knee of its own, which a few replays find. The worst of all
windows decides a knee, and a bootstrap as long as the trace cannot have a worse one than the trace itself:
its knees spread too little. So a sample has fewer blocks than the trace, n^(2/3) of n, which is consistent
where a plain bootstrap is not (P. J. Bickel, F. Goetze and W. R. van Zwet, Statistica Sinica 7, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, exp
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.planning.crossing import crossing, log_pressure
from sim.planning.error_bar import Interval
from sim.planning.interval import of_means
from sim.planning.limits import Limit
from sim.planning.replications import seed_of
from sim.planning.search import Point, Search, Summarised
from sim.planning.wording import duration
from sim.results.statistics import correlation_length
from sim.workload import Requests, generate
from sim.workload.blocks import circle_s, in_blocks, sent_faster
from sim.workload.streams import stream

if TYPE_CHECKING:
    from sim.scenario import Scenario

SAMPLES = 16  # drawn from a trace
LEAST_SEEDS = 8
LEAST_BLOCKS = 6  # of a trace that can be drawn again
MOST_IN_A_BLOCK = 8  # a block has at most such a part of the trace
TOLERANCE = 0.05  # of a sample's knee, relative
_BINS = 10  # of a window, for the correlation of what arrives

Replay = Callable[["Scenario", Requests], Summarised]


@dataclass(frozen=True)
class Blocks:
    """How a trace is drawn again: after its first *begin_s*, *count* blocks of *block_s*; *of* are in it."""

    begin_s: float
    block_s: float
    count: int
    of: int
    correlation_s: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "block_s": self.block_s,
            "blocks": self.count,
            "blocks_of_trace": self.of,
            "correlation_s": self.correlation_s,
        }


def interval_of_trace(search: Search, at: Point, confidence: float) -> Interval | str:
    """The sampling interval of the knee *at*, of a trace that is simulated; or why there is none."""
    scenario = search.scenario.replace({search.axis: at.load}, source="knee search")
    requests = generate(scenario.workload, scenario.load, scenario.run)
    if "trace_repeated" in requests.notes:
        return "the trace is sent several times over, which says nothing of another one: lower run.requests"
    window_s = float(scenario.run["window_s"])
    blocks = blocks_of(requests, window_s, float(at.summary["window"]["start_s"]))
    if blocks.of < LEAST_BLOCKS:
        return (
            f"at the knee the trace lasts {duration(circle_s(requests))}: too few windows of "
            f"{duration(window_s)} to draw others like it from (run.window_s)"
        )
    knees = knees_of_blocks(scenario, search.axis, at.load, search.limits, requests, blocks, _simulated)
    return Interval(
        confidence, of_one(at.load, knees, confidence), None, {}, SAMPLES, None, None, True, blocks.as_dict()
    )


def _simulated(scenario: Scenario, requests: Requests) -> Summarised:
    from sim.results import Result
    from sim.simulation import simulate

    return Result(simulate(scenario, requests=requests))


def blocks_of(requests: Requests, window_s: float, begin_s: float) -> Blocks:
    """Blocks of whole windows, as many as what arrives is correlated for; at least one window each."""
    length_s = circle_s(requests)
    edges_s = np.linspace(0.0, length_s, max(2, round(_BINS * length_s / window_s)) + 1)
    tokens = requests.prompt_tokens + requests.output_tokens
    work, _ = np.histogram(requests.arrival_s, edges_s, weights=tokens)
    correlation_s = correlation_length(work) * float(edges_s[1])
    windows = min(ceil(correlation_s / window_s), max(1, int(length_s / window_s / MOST_IN_A_BLOCK)))
    block_s = windows * window_s
    of = int(length_s / block_s)
    return Blocks(begin_s, block_s, max(2, round(of ** (2 / 3))), of, correlation_s)


def knees_of_blocks(
    scenario: Scenario,
    axis: str,
    knee: float,
    limits: Sequence[Limit],
    requests: Requests,
    blocks: Blocks,
    replay: Replay,
) -> list[float]:
    """The knee of each of `SAMPLES` traces drawn again from *requests*, those of *scenario* at *knee*."""
    source = stream(scenario.run["seed"], "blocks")
    starts_s = source.random((SAMPLES, blocks.count)) * circle_s(requests)

    def knee_of(sample: Requests) -> float:
        def pressure(load: float) -> float:
            factor = load / knee
            warmup = f"{blocks.begin_s / factor:.9f}s"
            at = scenario.replace({axis: load, "run.warmup": warmup}, source="knee search")
            return log_pressure(limits, replay(at, sent_faster(sample, factor)).summary())

        return crossing(pressure, knee, TOLERANCE)

    return [knee_of(in_blocks(requests, blocks.begin_s, row, blocks.block_s)) for row in starts_s]


def knees_of_seeds(search: Search, start: float, numbers: Iterable[int]) -> list[float]:
    """The knees of the replications *numbers* of the scenario, looked for from *start* on."""

    def knee_of(number: int) -> float:
        seed = {"run.seed": seed_of(search.scenario.run["seed"], number)}

        def pressure(load: float) -> float:
            at = search.scenario.replace({**seed, search.axis: float(f"{load:.5g}")}, source="knee search")
            return log_pressure(search.limits, search.simulate(at).summary())

        return crossing(pressure, start, TOLERANCE)

    return [knee_of(number) for number in numbers]


def of_many(knees: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """The mean of *knees*, in logarithms, and the ends of its t interval."""
    mean, half = float(np.log(knees).mean()), of_means(np.log(knees).tolist(), confidence)
    return exp(mean), exp(mean - half), exp(mean + half)


def of_one(knee: float, others: Sequence[float], confidence: float) -> tuple[float, float]:
    """The interval of a single sample's *knee*, from the spread of *others* like it (t, in logarithms)."""
    from scipy.special import stdtrit

    t = float(stdtrit(len(others) - 1, 0.5 + confidence / 2))
    half = t * float(np.log(others).std(ddof=1))
    return knee * exp(-half), knee * exp(half)
