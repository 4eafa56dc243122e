"""The knee between two loads, from replications, and its sampling interval.

Near the knee each limit's pooled statistic is a parabola in the logarithms, through three loads: one at the
knee with every replication, one to each side with a few, of which only the differences to the first count
(common random numbers). The knee of redrawn replications is read off their own parabola, so that a bootstrap
costs no run. See "The knee is sought in two stages" in docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, hypot, log
from statistics import NormalDist

import numpy as np

from sim.planning.controls import POPULATION, Controls, coefficients, pace_of
from sim.planning.limits import Limit
from sim.planning.replications import Pool, Replications
from sim.workload.classes import answers_decide
from sim.workload.streams import stream

LEAST_REPLICATIONS = 16
BESIDE = 4  # replications at the loads beside the knee
DRAWS = 1000
WIDEST = 1.25  # ratio of the loads between which the knee is looked for
NARROWEST, WIDEST_PARABOLA = 0.02, 0.08  # between its loads, in logarithms
ROOM = 0.4  # of the way from the knee to the capacity
FLATTEST = 0.02  # a limit that rises by less, relative to the load, cannot tell where the knee is


@dataclass(frozen=True)
class Sampling:
    """What replications say: the knee's load, its interval at *confidence*, and from how much."""

    load: float
    low: float
    high: float
    confidence: float
    replications: int
    requests: int | None  # a replication
    left_out: int | None  # of them, at the start
    reached: bool  # the precision that was asked for
    statistics_s: dict[str, float]  # each limit's at the knee
    binding: Limit

    @property
    def half_width(self) -> float:
        """Relative to the knee."""
        return (self.high - self.low) / 2 / self.load


@dataclass(frozen=True)
class Draws:
    """How often each replication counts, one row a draw: of those at the loads beside the knee, and of those
    at an earlier middle."""

    beside: np.ndarray
    anchor: np.ndarray

    @classmethod
    def once(cls) -> Draws:
        return cls(*(np.ones((1, n)) for n in (BESIDE, LEAST_REPLICATIONS)))

    @classmethod
    def random(cls, seed: int) -> Draws:
        source = stream(seed, "bootstrap beside")
        return cls(*(drawn_again(source, n) for n in (BESIDE, LEAST_REPLICATIONS)))


def drawn_again(source: np.random.Generator, count: int) -> np.ndarray:
    """How often each of *count* replications is drawn, in each of `DRAWS` bootstrap samples."""
    return source.multinomial(count, np.full(count, 1 / count), DRAWS).astype(np.float64)


@dataclass(frozen=True)
class Level:
    """ln of a statistic in s: its *value*, and the jackknife's *pseudo* values, one a replication.

    Regression on *controls* many control variates has left them as they are; *error* is the standard
    deviation of the controls' expectation.
    """

    value: float
    pseudo: np.ndarray
    controls: int
    error: float

    def errors(self, confidence: float, seed: int) -> tuple[float, float]:
        """How far the true value may lie above and below *value*: bootstrap-t over replications.

        Where rare bad runs decide a percentile, a sample without one has a low statistic and a small
        deviation at once; studentising knows that (B. Efron, The Jackknife, the Bootstrap and Other
        Resampling Plans, 1982, 10.10; P. Hall, The Bootstrap and Edgeworth Expansion, 1992). Who stops as
        soon as the interval is narrow enough stops when the deviation is too small by chance: it is taken
        one standard error larger than it looks. (At a fixed number, too, few clusters make it too small.)
        """
        n = len(self.pseudo)
        free = n - 1 - self.controls
        centred = self.pseudo - self.pseudo.mean()
        deviation = float(np.sqrt(centred @ centred / free / n))
        if deviation < 1e-9:
            return 0.0, 0.0
        again = drawn_again(stream(seed, "bootstrap"), n) / n
        shift = again @ centred
        spread = np.sqrt(np.maximum(again @ centred**2 - shift**2, 0.0) * n / free / n)
        t = shift[spread > 0] / spread[spread > 0]
        tail = (1 - confidence) / 2
        low, high = np.quantile(t, [tail, 1 - tail])
        z = normal_quantile(1 - tail)
        deviation *= 1 + (2 * free) ** -0.5
        return hypot(-float(low) * deviation, z * self.error), hypot(float(high) * deviation, z * self.error)


def pseudo_values(pool: Pool) -> np.ndarray:
    """The jackknife's pseudo-values of ln statistic: what each replication says about it."""
    n = len(pool.totals)
    return n * pool.log(np.ones((1, n))) - (n - 1) * pool.log(1.0 - np.eye(n))


def normal_quantile(share: float) -> float:
    return NormalDist().inv_cdf(share)


class Triple:
    """Loads below, at and above the knee, and the parabolas through them."""

    def __init__(self, runs: Replications, low: float, high: float, unstable: float, physics: bool) -> None:
        self.runs = self.main = runs  # beside the knee, and at it
        self.low, self.high, self.middle, self.unstable = low, high, 0.0, unstable
        self.physics = physics  # the runs have a step-time model, so that there are controls
        self._controls: dict[float, Controls] = {}
        self._levels: dict[tuple[float, str, int], Level] = {}
        self._anchor: float | None = None
        self.limits = tuple(x for x in runs.limits if not runs.pool(low, x, BESIDE).empty)
        self.centre(self._first_guess())

    def _first_guess(self) -> float:
        """Where straight lines between the outer loads have the knee."""
        one = np.ones((1, BESIDE))
        found = []
        for limit in self.limits:
            low, high = (float(self.runs.pool(x, limit, BESIDE).log(one)[0]) for x in (self.low, self.high))
            if high > log(limit.bound_s):
                share = (log(limit.bound_s) - low) / max(high - low, 1e-9)
                found.append(self.low * (self.high / self.low) ** min(max(share, 0.0), 1.0))
        return min(found)

    def centre(self, load: float) -> None:
        """Put the middle at *load* and the outer loads about evenly to its sides.

        Near the capacity, where everything bends, they are closer.
        """
        self.middle = load = float(f"{load:.5g}")
        room = log(self.unstable / load) if self.unstable > load else 0.0
        apart = min(max(ROOM * room, NARROWEST), WIDEST_PARABOLA)
        self.low, self.high = self._near(load, -apart), self._near(load, apart)

    def _near(self, load: float, apart: float) -> float:
        """The load *apart* (in logarithms) from *load*, or one that is replicated already and about there."""
        for known in self.runs.loads(BESIDE):
            if 0.6 <= log(known / load) / apart <= 1.5:
                return known
        return float(f"{load * exp(apart):.5g}")

    def narrow(self) -> None:
        """Move the middle until the knee of a few replications is there."""
        for _ in range(4):
            load = self.knee(BESIDE)
            if abs(log(load / self.middle)) < 0.02:
                return
            self.centre(load)

    def move(self, load: float) -> None:
        """Put the middle at *load*; the slope is from now on that from the old middle, if far enough away."""
        old, self.middle = self.middle, float(f"{load:.5g}")
        if abs(log(self.middle / old)) >= NARROWEST:
            self._anchor = old
        if not self.low < self.middle < self.high:
            self.centre(load)

    def knee(self, replications: int) -> float:
        """The load at which the first limit gives way."""
        return min(self._knee_of(limit, replications) for limit in self.limits)

    def binding(self, replications: int) -> Limit:
        """The limit whose knee is lowest."""
        return min(self.limits, key=lambda limit: self._knee_of(limit, replications))

    def _knee_of(self, limit: Limit, replications: int) -> float:
        level = self._level(limit, replications).value
        return float(self._crossing(limit, level, Draws.once())[0])

    def interval(self, replications: int, confidence: float, seed: int) -> tuple[float, float]:
        """The knee's interval: the lowest of the limits' at either end."""
        ends = [self._interval_of(limit, replications, confidence, seed) for limit in self.limits]
        return min(low for low, _ in ends), min(high for _, high in ends)

    def _interval_of(
        self, limit: Limit, replications: int, confidence: float, seed: int
    ) -> tuple[float, float]:
        """Studentised bootstrap of the level, and the bootstrap's deviation of the slope, in quadrature."""
        level, once = self._level(limit, replications), Draws.once()
        above, below = level.errors(confidence, seed)
        knee = self._knee_of(limit, replications)
        low, high = (float(self._crossing(limit, level.value + e, once)[0]) for e in (above, -below))
        bent = self.slope_error(limit, replications, confidence, seed)
        return knee * exp(-hypot(log(knee / low), bent)), knee * exp(hypot(log(high / knee), bent))

    def slope_error(self, limit: Limit, replications: int, confidence: float, seed: int) -> float:
        """How far the slope's error may move the knee of *limit*, relative to it."""
        level = self._level(limit, replications).value
        knees = self._crossing(limit, level, Draws.random(seed))
        return normal_quantile(0.5 + confidence / 2) * float(np.log(knees).std())

    def statistic_s(self, limit: Limit, load: float, replications: int) -> float:
        """*limit*'s statistic at *load*, in s; beyond the outer loads it goes on straight."""
        slopes, bends = self._parabola(limit, Draws.once())
        slope, bend = float(slopes[0]), float(bends[0])
        u = log(load / self.middle)
        within = min(max(u, log(self.low / self.middle)), log(self.high / self.middle))
        rise = slope * within + bend * within**2 + (slope + 2 * bend * within) * (u - within)
        return exp(self._level(limit, replications).value + rise)

    def slope(self, limit: Limit) -> float:
        """d ln statistic / d ln load at the middle."""
        return float(self._parabola(limit, Draws.once())[0][0])

    def controls(self, replications: int) -> int:
        """How many control variates the level of a limit has, with so many replications."""
        workload = self.runs.scenario.workload
        drawn = workload.get("arrivals", {}).get("kind") != "trace" and not answers_decide(workload)
        if not (self.physics and drawn) or replications < LEAST_REPLICATIONS:
            return 0
        return max((2 if limit.statistic.startswith("p") else 1 for limit in self.limits), default=0)

    def _parabola(self, limit: Limit, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """ln statistic = level + slope u + bend u^2, u = ln(load / middle); a straight line if it falls."""
        pool, beside = self.runs.pool, draws.beside
        middle = pool(self.middle, limit, BESIDE).log(beside)
        below = pool(self.low, limit, BESIDE).log(beside) - middle
        above = pool(self.high, limit, BESIDE).log(beside) - middle
        a, b = log(self.low / self.middle), log(self.high / self.middle)
        bend = (above / b - below / a) / (b - a)
        slope = below / a - bend * a
        chord = np.maximum((above - below) / (b - a), FLATTEST)
        monotone = (slope + 2 * bend * a > FLATTEST) & (slope + 2 * bend * b > FLATTEST)
        slope, bend = np.where(monotone, slope, chord), np.where(monotone, bend, 0.0)
        if self._anchor is not None:
            earlier, here = (
                self.main.pool(load, limit, LEAST_REPLICATIONS).log(draws.anchor)
                for load in (self._anchor, self.middle)
            )
            slope = np.maximum((here - earlier) / log(self.middle / self._anchor), FLATTEST)
            bend = np.zeros_like(slope)
        return slope, bend

    def _level(self, limit: Limit, replications: int) -> Level:
        """ln of the statistic at the middle, corrected by the controls, and what each replication says."""
        key = self.middle, limit.name, replications
        if key in self._levels:
            return self._levels[key]
        pool = self.main.pool(self.middle, limit, replications)
        pseudo, value, error = pseudo_values(pool), float(pool.log(np.ones((1, replications)))[0]), 0.0
        if controls := self.controls(replications):
            if self.middle not in self._controls:
                pace = pace_of(self.main, self.middle)
                self._controls[self.middle] = Controls(self.main, self.middle, pace)
            columns = self._controls[self.middle].columns(limit, replications)
            population = self._controls[self.middle].population(limit)
            slopes = coefficients(pseudo, columns)
            value -= float((columns.mean(axis=0) - population.mean(axis=0)) @ slopes)
            error = float((population @ slopes).std(ddof=1)) / POPULATION**0.5
            pseudo = pseudo - (columns - columns.mean(axis=0)) @ slopes
        self._levels[key] = Level(value, pseudo, controls, error)
        return self._levels[key]

    def _crossing(self, limit: Limit, level: float, draws: Draws) -> np.ndarray:
        """The load at which the parabola meets the limit; beyond the outer loads it goes on straight."""
        slope, bend = self._parabola(limit, draws)
        missing = log(limit.bound_s) - level
        a, b = log(self.low / self.middle), log(self.high / self.middle)
        edge = np.where(missing > 0, b, a)
        at_edge, rise = slope * edge + bend * edge * edge, slope + 2 * bend * edge
        inside = np.abs(missing) <= np.abs(at_edge)
        root = np.sqrt(np.maximum(slope * slope + 4 * bend * missing, 0.0))
        u = np.where(inside, 2 * missing / (slope + root), edge + (missing - at_edge) / rise)
        return self.middle * np.exp(np.clip(u, 4 * a, 4 * b))


def estimate(triple: Triple, precision: float, confidence: float, most: int, seed: int) -> Sampling:
    """Replicate the knee of *triple* until its interval is +-*precision* of it, sixteen times at least.

    Each look at the interval asks for as many replications as its width says, half as many again at most.
    *most* bounds them.
    """
    replications = min(LEAST_REPLICATIONS, most)
    moves = 0
    while True:
        found = _look(triple, replications, confidence, precision, seed)
        if replications >= LEAST_REPLICATIONS and moves < 3 and _is_far(triple, found, precision, seed):
            moves += 1
            triple.move(found.load)
            continue
        if found.reached or replications >= most:
            return found
        wanted = replications * (found.half_width / precision) ** 2
        replications = min(most, max(replications + 2, ceil(min(wanted, 1.5 * replications))))


def _is_far(triple: Triple, found: Sampling, precision: float, seed: int) -> bool:
    """Whether the knee lies beyond half the way from the middle to the outer loads, or so far from the middle
    that what is not known of the slope would take all of the precision, however many replications."""
    u, below, above = (log(x / triple.middle) for x in (found.load, triple.low, triple.high))
    error = triple.slope_error(found.binding, found.replications, found.confidence, seed)
    return not below / 2 <= u <= above / 2 or (not found.reached and error > precision)


def _look(triple: Triple, replications: int, confidence: float, precision: float, seed: int) -> Sampling:
    load = triple.knee(replications)
    low, high = triple.interval(replications, confidence, seed)
    return Sampling(
        load,
        low,
        high,
        confidence,
        replications,
        triple.main.requests,
        triple.main.first,
        (high - low) / 2 <= precision * load,
        {x.name: triple.statistic_s(x, load, replications) for x in triple.limits},
        triple.binding(replications),
    )


def of_means(logs: Sequence[float], confidence: float) -> float:
    """Half the width of the t interval of the mean of *logs*, as a factor's logarithm."""
    from scipy.special import stdtrit

    values = np.asarray(logs)
    if len(values) < 2:
        return 0.0
    t = float(stdtrit(len(values) - 1, 0.5 + confidence / 2))
    return t * float(values.std(ddof=1)) / len(values) ** 0.5
