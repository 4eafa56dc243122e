"""What is answered of everybody and of each traffic class: counts, latencies, throughputs, goodput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim.results.requests import RequestTable
from sim.results.statistics import MOST_VALUES, PERCENTILES, Sample, WeightedSample
from sim.simulation import Run
from sim.simulation.recorder import COMPLETED, STATUS

LATENCIES = ("ttft", "server_ttft", "queue", "tpot", "stall", "e2e")
NO_WINDOW = "the window has no length (a burst, or all warm-up): judge this run by makespan"
_TOKENS = ("prompt_tokens", "output_tokens")
_BETWEEN_TOKENS = ("tpot", "itl", "stall")
_NOBODY = "no request that arrived in the window completed"
_ONE_TOKEN = "not defined: every measured answer has one token"
_COUNTED = ("completed", "rejected", "timed_out", "cancelled", "never_schedulable", "unfinished")


class Traffic:
    """Answers about some of a run's requests, from tables that hold some of them each.

    *slo* are their limits (s, by key), *window* is the run's (s); of latencies *most_values* are kept.
    """

    def __init__(
        self, slo: Mapping[str, float], window: tuple[float, float], most_values: int = MOST_VALUES
    ) -> None:
        self.window, self.most_values = window, most_values
        self.limits = [(key.rsplit("_", 2)[0], key.rsplit("_", 2)[1], limit) for key, limit in slo.items()]
        self.samples = {name: Sample(most_values) for name in (*LATENCIES, *_TOKENS)}
        self.gaps = WeightedSample()
        self.by_status = np.zeros(len(STATUS), dtype=np.int64)
        self.retries = 0
        self.offered = self.measured = self.good = 0  # arrived in the window
        self.done = self.prompt_tokens = self.output_tokens = self.useful_tokens = 0  # ended in the window

    def counts(self) -> dict[str, int]:
        """How many requests there were in the whole run, and what became of them."""
        by_status = self.by_status.tolist()
        named = {name: by_status[STATUS.index(name)] for name in _COUNTED}
        return {"offered": sum(by_status), **named, "retries": self.retries}

    def latencies(self) -> dict[str, Any]:
        """Statistics of those that arrived in the window and completed."""
        result = {}
        for metric in (*(name for name in self.samples if name not in _TOKENS), "itl"):
            # A limit on another percentile than the usual ones adds it.
            asked = {float(stat[1:]) for name, stat, _ in self.limits if name == metric and stat[0] == "p"}
            percentiles = (*PERCENTILES, *sorted(asked.difference(PERCENTILES)))
            sample = self.gaps if metric == "itl" else self.samples[metric]
            reason = _NOBODY if not self.measured or metric not in _BETWEEN_TOKENS else _ONE_TOKEN
            result[f"{metric}_s"] = sample.describe(reason, percentiles)
        return result | {name: self.samples[name].describe(_NOBODY) for name in _TOKENS}

    def throughputs(self) -> dict[str, Any]:
        """What completed in the window, per second of it."""
        start_s, end_s = self.window
        counts = {
            "request_throughput": self.done,
            "output_throughput": self.output_tokens,
            "total_token_throughput": self.prompt_tokens + self.output_tokens,
            "useful_output_throughput": self.useful_tokens,
        }
        if end_s <= start_s:
            return {**dict.fromkeys(counts), "throughput_reason": NO_WINDOW}
        return {name: count / (end_s - start_s) for name, count in counts.items()}

    def goodput(self, offered: int) -> dict[str, Any]:
        """Requests for which every limit's value holds, of all that were offered in the window.

        *offered*: by everybody; so the goodput of the classes adds up.
        """
        if not self.limits:
            return {"request_goodput": None, "goodput_fraction": None, "goodput_reason": "no limits in slo"}
        start_s, end_s = self.window
        fraction = self.good / self.offered if self.offered else None
        if fraction is None or end_s <= start_s:
            return {"request_goodput": None, "goodput_fraction": fraction, "goodput_reason": NO_WINDOW}
        # n arrivals, the window's first and last among them, are n - 1 gaps apart.
        rate = self.good / offered * (offered - 1) / (end_s - start_s)
        return {"request_goodput": rate, "goodput_fraction": fraction}


class _Share:
    """The requests of one table that *traffic* is about: *rows* of it."""

    def __init__(self, traffic: Traffic, table: RequestTable, rows: np.ndarray | slice) -> None:
        self.traffic, self.rows = traffic, rows
        self.measured = table.measured[rows]
        self.good = np.ones(int(self.measured.sum()), dtype=bool)
        self.wanted = np.zeros(len(table), dtype=bool)
        self.wanted[rows] = self.measured

    def add(self, metric: str, values: np.ndarray) -> None:
        """Their *values* (s) of a latency, of the whole table."""
        values = values[self.rows][self.measured]
        if metric not in self.traffic.samples:
            self.traffic.samples[metric] = Sample(self.traffic.most_values)
        self.traffic.samples[metric].add(values[np.isfinite(values)])
        for name, _, limit_s in self.traffic.limits:
            if metric == ("stall" if name == "itl" else name):
                self.good &= ~(values > limit_s)  # undefined (one token) is not above the limit

    def count(self, table: RequestTable, got_tokens: np.ndarray) -> None:
        """What is added up; *got_tokens* are the output tokens that each client of the table has got."""
        traffic, rows, requests = self.traffic, self.rows, table.run.requests
        status, finish_s, got_tokens = table.status[rows], table.finish_s[rows], got_tokens[rows]
        traffic.by_status += np.bincount(status, minlength=len(STATUS))
        traffic.offered += int(table.in_window[rows].sum())
        traffic.measured += int(self.measured.sum())
        traffic.good += int(self.good.sum())
        start_s, end_s = traffic.window
        ended = (finish_s > start_s) & (finish_s <= end_s)
        done = ended & (status == COMPLETED)
        traffic.done += int(done.sum())
        traffic.output_tokens += int(got_tokens[ended].sum())
        traffic.useful_tokens += int(got_tokens[done].sum())
        traffic.prompt_tokens += int(requests.prompt_tokens[rows][done].sum())
        self._count_attempts(table)
        for name in _TOKENS:
            traffic.samples[name].add(getattr(requests, name)[rows][self.measured])

    def _count_attempts(self, table: RequestTable) -> None:
        """What failed and was tried again: its tokens were put out, and are of no use."""
        request = table.run.recorder.column("attempt_request")
        if not len(request):
            return
        mine = np.zeros(len(table), dtype=bool)
        mine[self.rows] = True
        left_s = table.run.recorder.column("attempt_left_s")
        tokens = table.run.recorder.column("attempt_tokens")
        start_s, end_s = self.traffic.window
        ended = mine[request] & (left_s > start_s) & (left_s <= end_s)
        self.traffic.retries += int(mine[request].sum())
        self.traffic.output_tokens += int(tokens[ended].sum())


def add_table(table: RequestTable, groups: Sequence[tuple[Traffic, np.ndarray | slice]]) -> None:
    """Add to each of *groups* those rows of *table* that belong to it."""
    shares = [_Share(traffic, table, rows) for traffic, rows in groups]
    for metric in (*LATENCIES, "send_delay") if table.delayed else LATENCIES:
        values = getattr(table, f"{metric}_s")
        for share in shares:
            share.add(metric, values)
    table.log.add_gaps([(share.traffic.gaps, share.wanted) for share in shares])
    got_tokens = table.got_tokens
    for share in shares:
        share.count(table, got_tokens)


class ByClass:
    """Answers about each traffic class, by its own limits where the workload gives it some."""

    def __init__(self, run: Run, window: tuple[float, float]) -> None:
        self.run, self.window = run, window
        self.named = bool(run.requests.class_names)
        self.traffic: dict[str, Traffic] = {}

    def groups(self, table: RequestTable) -> list[tuple[Traffic, np.ndarray | slice]]:
        """The classes of *table*, with its rows of each."""
        rows = table.by_class()
        for name in rows:
            if name not in self.traffic:
                most_values = max(MOST_VALUES // len(rows), 1 << 14)
                self.traffic[name] = Traffic(self._slo(name), self.window, most_values)
        return [(self.traffic[name], of_class) for name, of_class in rows.items()]

    def _slo(self, name: str) -> Mapping[str, float]:
        classes = self.run.scenario.workload.get("classes") or {}
        own: Mapping[str, float] | None = (classes.get(name) or {}).get("slo")
        return own or self.run.scenario.slo

    def answers(self, offered: int) -> dict[str, Any]:
        """By name; goodput and throughputs are those of classes that the workload names.

        *offered*: how many requests everybody offered in the window.
        """
        found = {}
        for name in self.traffic if self.named else sorted(self.traffic):
            traffic = self.traffic[name]
            found[name] = {"requests": traffic.counts(), **traffic.latencies()}
            if self.named:
                found[name] |= {**traffic.throughputs(), **traffic.goodput(offered)}
        return found
