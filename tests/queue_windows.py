"""A single server that is judged by windows: traces whose waits are Lindley's, to test knees on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from analytic import FakeScenario

from sim.clock import on_grid
from sim.results.statistics import growth
from sim.results.windows import spans_of
from sim.workload import Requests
from sim.workload.streams import stream

WINDOW_S, BOUND_S, SERVICE_S = 300.0, 10.0, 0.25
SLO = {"queue_p99_s": BOUND_S}


class Queue:
    """A run of one server, *service_s* a request: as much of a summary as a search by windows reads."""

    def __init__(self, arrival_s: np.ndarray, begin_s: float) -> None:
        work_s = SERVICE_S * np.arange(len(arrival_s))
        self.arrival_s = arrival_s
        self.wait_s = work_s + np.maximum.accumulate(arrival_s - work_s) - arrival_s
        self.begin_s = min(begin_s, float(arrival_s[-1]))

    def summary(self) -> dict[str, Any]:
        window = (self.begin_s, float(self.arrival_s[-1]))
        spans = spans_of(self.arrival_s, window, WINDOW_S, 100)
        rows = []
        for x in spans:
            value_s = float(np.quantile(self.wait_s[x.first : x.last], 0.99))
            rows.append(
                {
                    "start_s": x.start_s,
                    "end_s": x.end_s,
                    "requests": x.last - x.first,
                    "values": {"queue_p99_s": value_s},
                    "missed": ["queue_p99_s"] if value_s > BOUND_S else [],
                }
            )
        n, missed = len(self.arrival_s), sum(bool(row["missed"]) for row in rows)
        first = int(np.searchsorted(self.arrival_s, window[0]))
        slope, grows = growth(self.arrival_s, self.arrival_s + self.wait_s, window)
        found = {"length_s": WINDOW_S, "count": len(rows), "share_in_violation": missed / len(rows)}
        worst = max(rows, key=lambda row: row["values"]["queue_p99_s"])
        place = {"start_s": worst["start_s"], "end_s": worst["end_s"], "limit": "queue_p99_s"}
        found |= {"worst": {**place, "value": worst["values"]["queue_p99_s"]}, "by_window": rows}
        return {
            "window": {"start_s": window[0], "end_s": window[1], "requests": n - first},
            "requests": {"offered": n, "completed": n},
            "request_throughput": (n - first) / (window[1] - window[0]),
            "output_throughput": (n - first) / (window[1] - window[0]),
            "queue_s": {"p99": float(np.quantile(self.wait_s[first:], 0.99)), "n": n - first},
            "e2e_s": {"mean": float(self.wait_s.mean()) + SERVICE_S},
            "stable": not grows,
            "queue_growth_per_s": slope,
            "windows": found,
        }

    def series(self, metric: str) -> np.ndarray:
        return self.wait_s

    def sample(self, metric: str, first: int | None = None) -> tuple[np.ndarray, None]:
        return self.wait_s[first or 0 :], None


def as_requests(arrival_s: np.ndarray) -> Requests:
    ones = np.ones(len(arrival_s), dtype=np.int64)
    return Requests(on_grid(arrival_s), ones, ones)


def asked(seed: int = 1, **run: Any) -> FakeScenario:
    recorded = {"arrivals": {"kind": "trace"}, "lengths": {"kind": "trace"}}
    settings = {"seed": seed, "warmup": 0.1, "window_s": WINDOW_S, "windows_in_violation": 0.0, **run}
    return FakeScenario(load={"mode": "trace", "time_scale": 1.0}, slo=SLO, run=settings, workload=recorded)


def replayed(arrival_s: np.ndarray) -> Callable[[Any], Queue]:
    """What a trace with these arrivals does at a scenario's time scale."""
    begin_s = float(arrival_s[len(arrival_s) // 10])
    return lambda scenario: Queue(
        arrival_s / scenario.load["time_scale"], begin_s / scenario.load["time_scale"]
    )


@cache
def bursty(seed: int, length_s: float = 7200.0) -> np.ndarray:
    """Arrivals of a process with two rates, 1.2/s for two minutes and 3.2/s for one in the mean."""
    draw, at_s, pieces = stream(seed, "bursty"), 0.0, []
    busy = bool(draw.random() < 1 / 3)
    while at_s < length_s:
        stay_s = draw.exponential(60.0 if busy else 120.0)
        count = draw.poisson((3.2 if busy else 1.2) * stay_s)
        pieces.append(at_s + np.sort(draw.random(count)) * stay_s)
        at_s, busy = at_s + stay_s, not busy
    arrival_s = np.concatenate(pieces)
    return arrival_s[arrival_s < length_s]
