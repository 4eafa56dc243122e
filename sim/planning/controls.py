"""Control variates: what the traffic alone says about a replication.

Whether a run has a bad tail is largely decided by its traffic: by long prompts that happen to arrive while
short answers are being written. A proxy of each request's latency, worked out from arrivals and lengths
without a simulation, shows how bad the draw was; its distribution over the traffic is known as well as one
likes, since traffic costs next to nothing. The pooled statistic is corrected by regression on it (S. Asmussen
and P. W. Glynn, Stochastic Simulation, 2007, V.2). A poor proxy costs precision, never truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sim.planning.limits import Limit
from sim.planning.replications import Replications, seed_of
from sim.workload import Requests, generate

if TYPE_CHECKING:
    from sim.scenario import Scenario

POPULATION = 100  # draws of the traffic that are not simulated
_LARGE = 20_000  # requests of such a draw, if a replication has fewer
_APART = 1_000_000  # their numbers, beyond those of any replication
_ROUNDS = 3  # of stretching a request's stay by the work that falls into it


@dataclass(frozen=True)
class Pace:
    """How fast requests are served, roughly: seconds an output token, and a prompt token's prefill."""

    token_s: float
    prompt_token_s: float


class Controls:
    """Proxies of one scenario at one load; columns for a limit are shares of requests with a bad proxy."""

    def __init__(self, runs: Replications, load: float, pace: Pace) -> None:
        self.runs, self.load, self.pace = runs, load, pace
        self._proxies: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._population: dict[str, np.ndarray] = {}
        self._edges: dict[str, np.ndarray | None] = {}

    def columns(self, limit: Limit, replications: int) -> np.ndarray:
        """The controls of *limit*, shape (replications, controls)."""
        self.population(limit)
        return np.array([self._row(limit, self._proxy(limit, r)) for r in range(replications)])

    def population(self, limit: Limit) -> np.ndarray:
        """The same of longer traffic that is not simulated, shape (POPULATION, controls)."""
        if limit.name not in self._population:
            proxies = [self._proxy(limit, _APART + i) for i in range(POPULATION)]
            self._edges[limit.name] = None
            if limit.statistic.startswith("p"):
                share = 1.0 - float(limit.statistic[1:]) / 100.0
                levels = 1.0 - np.minimum([share, 5 * share], 0.5)
                self._edges[limit.name] = np.quantile(np.concatenate(proxies), levels)
            self._population[limit.name] = np.array([self._row(limit, proxy) for proxy in proxies])
        return self._population[limit.name]

    def _row(self, limit: Limit, proxy: np.ndarray) -> list[float]:
        edges = self._edges[limit.name]
        if edges is None:
            return [float(proxy.mean())] if limit.statistic == "mean" else [float(np.log(proxy.max()))]
        return [float(np.mean(proxy > edge)) for edge in edges]

    def _proxy(self, limit: Limit, number: int) -> np.ndarray:
        """The measured requests' proxies of *limit*'s metric in traffic *number*, in s."""
        if number not in self._proxies:
            traffic = _traffic(self.runs, self.load, number, number >= _APART)
            self._proxies[number] = proxies_s(traffic, self.pace)
        decode_s, wait_s = self._proxies[number]
        first = self.runs.first or 0
        if limit.metric in ("tpot", "itl", "stall"):
            return decode_s[first:]
        return wait_s[first:]


def pace_of(runs: Replications, load: float) -> Pace:
    """Measured on a replication at *load*: the time to write an answer, by its tokens and by what prompts
    came meanwhile (least squares). Where all answers are alike the pace is their mean."""
    result = runs.at(load, 1)[0]
    requests = _traffic(runs, load, 0, False)
    write_s = result.series("e2e") - result.series("ttft")
    token_s = result.series("tpot")
    known = np.flatnonzero(np.isfinite(write_s) & (requests.output_tokens > 1))
    if not len(known):
        return Pace(0.0, 0.0)
    mean = float(np.nanmean(token_s))
    prompts = np.concatenate([[0], np.cumsum(requests.prompt_tokens)])
    end_s = requests.arrival_s[known] + result.series("e2e")[known]
    met = prompts[np.searchsorted(requests.arrival_s, end_s)] - prompts[known + 1]
    table = np.column_stack([requests.output_tokens[known], met]).astype(np.float64)
    (alone, prompt), *_ = np.linalg.lstsq(table, write_s[known], rcond=None)
    return Pace(float(alone), float(prompt)) if alone > 0 and prompt > 0 else Pace(mean, mean)


def proxies_s(requests: Requests, pace: Pace) -> tuple[np.ndarray, np.ndarray]:
    """Of each request, in s: time an output token, and the wait for its first one.

    The first is the pace, plus the prefill of all prompts that arrive while the request is decoding, spread
    over its tokens. The second is the backlog of prefill on arrival, its own included (D. V. Lindley 1952).
    """
    arrival_s, tokens = requests.arrival_s, requests.output_tokens
    work_s = pace.prompt_token_s * requests.prompt_tokens
    total_s = np.concatenate([[0.0], np.cumsum(work_s)])
    own = np.arange(1, len(arrival_s) + 1)
    alone_s = tokens * pace.token_s
    stay_s, others_s = alone_s, np.zeros(len(arrival_s))
    for _ in range(_ROUNDS):
        last = np.maximum(np.searchsorted(arrival_s, arrival_s + stay_s), own)
        others_s = total_s[last] - total_s[own]
        stay_s = alone_s + others_s
    ends_s = total_s[1:] + np.maximum.accumulate(arrival_s - total_s[:-1])
    return others_s / np.maximum(tokens, 1) + pace.token_s, ends_s - arrival_s


def _traffic(runs: Replications, load: float, number: int, large: bool) -> Requests:
    """Traffic *number*, as long as a replication; longer if it is to be *large*."""
    scenario: Scenario = runs.scenario
    section, key = runs.axis.split(".")
    assert section == "load"
    run = {**scenario.run, "seed": seed_of(scenario.run["seed"], number)}
    if runs.requests is not None:
        run["requests"] = max(runs.requests, _LARGE) if large else runs.requests
    return generate(scenario.workload, {**scenario.load, key: load}, run)


def coefficients(pseudo: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Regression of the replications' *pseudo* values on the controls' *columns*."""
    centred = columns - columns.mean(axis=0)
    scale = np.sqrt((centred**2).sum(axis=0))
    used = scale > 1e-12
    found = np.zeros(columns.shape[1])
    if used.any():
        slopes, *_ = np.linalg.lstsq(centred[:, used] / scale[used], pseudo - pseudo.mean(), rcond=1e-6)
        found[used] = slopes / scale[used]
    return found
