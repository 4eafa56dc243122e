"""Control variates: what the traffic alone says about a replication.

Whether a run has a bad tail is largely decided by its traffic: by long prompts that happen to arrive while
short answers are being written. A proxy of each request's latency, worked out from arrivals and lengths
without a simulation, shows how bad the draw was; its distribution over the traffic is known as well as one
likes, since traffic costs next to nothing. The pooled statistic is corrected by regression on it (S. Asmussen
and P. W. Glynn, Stochastic Simulation, 2007, V.2). A poor proxy costs precision, never truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.planning.limits import Limit
from sim.planning.replications import Replications, seed_of
from sim.workload import Requests, generate

if TYPE_CHECKING:
    from sim.scenario import Scenario

POPULATION = 60  # draws of the traffic that are not simulated
_LARGE = 20_000  # requests of such a draw, if a replication has fewer
_APART = 1_000_000  # their numbers, beyond those of any replication


@dataclass(frozen=True)
class Pace:
    """How fast answers are written, roughly: seconds an output token, more for each answer that is being
    written then (*company* of them, on average, its own among them), and the prefill of a prompt token."""

    token_s: float
    company_s: float
    prompt_token_s: float
    company: float


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
            write_s, wait_s = proxies_s(traffic, self.pace)
            self._proxies[number] = write_s / np.maximum(traffic.output_tokens - 1, 1), wait_s
        token_s, wait_s = self._proxies[number]
        first = self.runs.first or 0
        return (token_s if limit.metric in ("tpot", "itl", "stall") else wait_s)[first:]


def pace_of(runs: Replications, load: float) -> Pace:
    """Measured on a replication at *load*: the time to write an answer, by its tokens, by how many others
    were being written and by what prompts came in between (least squares). Where that cannot be told it is
    the mean."""
    result = runs.at(load, 1)[0]
    requests = _traffic(runs, load, 0, False)
    begin_s = requests.arrival_s + result.series("ttft")
    end_s = requests.arrival_s + result.series("e2e")
    known = np.flatnonzero(np.isfinite(end_s))
    known = known[np.argsort(begin_s[known], kind="stable")]
    tokens = requests.output_tokens[known] - 1
    if not tokens.any():
        return Pace(0.0, 0.0, 0.0, 0.0)
    begin_s, end_s = begin_s[known], end_s[known]
    prompts = np.concatenate([[0], np.cumsum(requests.prompt_tokens[known])])
    met = prompts[np.searchsorted(begin_s, end_s, "right")] - prompts[1:]
    company = company_of(begin_s, end_s)
    table = np.column_stack([tokens, tokens * company, met]).astype(np.float64)
    (token_s, company_s, prompt_s), *_ = np.linalg.lstsq(table, end_s - begin_s, rcond=None)
    mean_s = float((end_s - begin_s).sum() / tokens.sum())
    if min(token_s, company_s, prompt_s) <= 0.0:
        return Pace(mean_s, 0.0, mean_s, 0.0)
    return Pace(float(token_s), float(company_s), float(prompt_s), float(company @ tokens / tokens.sum()))


def company_of(begin_s: np.ndarray, end_s: np.ndarray) -> np.ndarray:
    """How many answers, on average, are being written while each is; *begin_s* never falls.

    By the integral of their number up to each end, less that up to each beginning.
    """
    order, number = np.argsort(end_s), np.arange(len(end_s))
    ends_s = end_s[order]
    begun_s, ended_s = (np.concatenate([[0.0], np.cumsum(times_s)]) for times_s in (begin_s, ends_s))
    others = np.searchsorted(ends_s, begin_s)
    to_begin = (number - others) * begin_s - begun_s[:-1] + ended_s[others]
    others = np.searchsorted(begin_s, ends_s)
    to_end = np.empty(len(end_s))
    to_end[order] = (others - number) * ends_s - begun_s[others] + ended_s[:-1]
    return (to_end - to_begin) / np.maximum(end_s - begin_s, 1e-9)


def proxies_s(requests: Requests, pace: Pace) -> tuple[np.ndarray, np.ndarray]:
    """Of each request, in s: the time to write its answer, and the wait for its first token.

    The wait is the backlog of prefill on arrival, its own included (D. V. Lindley 1952). Prefills stop the
    writing; so on a clock that stands still meanwhile every answer takes its tokens times the pace, and then
    whatever prefill falls in between.
    """
    tokens = requests.output_tokens - 1
    total_s = np.concatenate([[0.0], np.cumsum(pace.prompt_token_s * requests.prompt_tokens)])
    begin_s = np.maximum.accumulate(requests.arrival_s - total_s[:-1])
    alone_s = tokens * (pace.token_s + pace.company_s * pace.company)
    if pace.company_s:
        alone_s = tokens * (pace.token_s + pace.company_s * company_of(begin_s, begin_s + alone_s))
    met_s = total_s[np.searchsorted(begin_s, begin_s + alone_s, "right")] - total_s[1:]
    return np.where(tokens > 0, alone_s + met_s, 0.0), begin_s + total_s[1:] - requests.arrival_s


def _traffic(runs: Replications, load: float, number: int, large: bool) -> Requests:
    """Traffic *number*, as long as a replication; longer if it is to be *large*."""
    scenario: Scenario = runs.scenario
    section, key = runs.axis.split(".")
    assert section == "load"
    run = {**scenario.run, "seed": seed_of(scenario.run["seed"], number)}
    if runs.requests is not None:
        longer = large and is_alike_throughout(scenario.workload)
        run["requests"] = max(runs.requests, _LARGE) if longer else runs.requests
    return generate(scenario.workload, {**scenario.load, key: load}, run)


def is_alike_throughout(workload: Mapping[str, Any]) -> bool:
    """Whether traffic that goes on for longer has the same mean proxy: gaps that are drawn anew each time.

    A series, states that last, and the rows of a trace make the mean hang on how long the traffic is: its
    mean over many draws is then that of draws as long as a replication.
    """
    return all(
        (value.get("arrivals") or {}).get("kind", "poisson") in ("poisson", "constant", "gamma", "weibull")
        and not (value.get("arrivals") or {}).get("series")
        and value["lengths"]["kind"] != "trace"
        for value in (workload.get("classes") or {"": workload}).values()
    )


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
