"""How many requests are in the system, and whether their number grows without end."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.results.records import Records
from sim.results.requests import RequestTable
from sim.results.statistics import Growth, Peak, Sample
from sim.simulation import Run
from sim.simulation.recorder import NEVER_SCHEDULABLE, REJECTED, TIMED_OUT
from sim.workload.steady import has_no_steady_state

INFINITY = float("inf")


class Occupancy:
    """Answers from the arrivals and departures of *run*'s requests that were let in; *window* in s."""

    def __init__(self, run: Run, window: tuple[float, float]) -> None:
        self.run, self.window = run, window
        users = "concurrency" in run.scenario.load
        self.may_grow = not users  # those who wait for their answers are as many as they are
        # Who leaves at an arrival's instant still counts, but for users, who send what they send upon that.
        self.inside = Peak(takes_first=not users)
        self.system, self.queue = Growth(window), Growth(window)
        self.stays = Sample()
        self.let_in = 0
        self.met_limit = False
        self.first_s, self.last_s = INFINITY, 0.0
        self.held_s = self.stay_s = 0.0  # requests times seconds: inside the window, of arrivals in it

    def add(self, table: RequestTable) -> None:
        """Add the requests of *table*."""
        self.met_limit |= bool(np.isin(table.status, (REJECTED, TIMED_OUT)).any())
        self.queue.add(table.run.requests.arrival_s, _dequeued_s(table))
        arrival_s, leave_s = _inside(table)
        self.system.add(arrival_s, leave_s)
        self.inside.add(arrival_s, leave_s, 1, table.run.recorder.settled_s)
        if not len(arrival_s):
            return
        self.let_in += len(arrival_s)
        self.first_s = min(self.first_s, float(arrival_s[0]))
        self.last_s = max(self.last_s, float(leave_s.max()))
        start_s, end_s = self.window
        end_s = end_s if end_s > start_s else INFINITY
        inside_s = np.minimum(leave_s, end_s) - np.clip(arrival_s, start_s, end_s)
        self.held_s += float(inside_s[inside_s > 0].sum())
        stay_s = (leave_s - arrival_s)[arrival_s >= start_s]
        self.stays.add(stay_s)
        self.stay_s += float(stay_s.sum())

    def stability(self, records: Records) -> tuple[bool, float]:
        """Whether the load can go on for ever, and how fast the requests in the system grow, per s.

        Unstable is a queue that grows over the window, or a system that does so once it has had time to
        fill: from three median stays on, if a third of the window is left. So a batch that still fills up
        is no growth, nor is a system that follows the rate of a trace or a daily curve. Users who wait for
        their answers cannot grow in number without end, nor can a queue whose limit somebody has met.
        *records* are those that were added.
        """
        slope, _ = self.system.slope()
        if not self.may_grow or (self.met_limit and self.run.scenario.has_queue_limit):
            return True, slope
        waiting, queue_grows = self.queue.slope()
        if queue_grows or has_no_steady_state(self.run.scenario.workload):
            return not queue_grows, max(slope, waiting)
        start_s, end_s = self.window
        stay_s = self.stays.median()
        filled_s = end_s if stay_s is None else max(start_s, self.first_s + 3.0 * stay_s)
        if end_s - filled_s < (end_s - start_s) / 3:
            return True, slope
        filled = Growth((filled_s, end_s))
        for table in records:
            filled.add(*_inside(table))
        slope, grows = filled.slope()
        return not grows, slope

    def concurrency(self) -> dict[str, Any]:
        """Requests in the system over the window (over all the time for a burst)."""
        if not self.let_in:
            return {"concurrency_mean": 0.0, "concurrency_max": 0}
        start_s, end_s = self.window
        span_s = (end_s if end_s > start_s else self.last_s) - start_s
        return {
            "concurrency_mean": self.held_s / span_s if span_s else None,
            "concurrency_max": self.inside.most,
        }

    def littles_law_error(self) -> float | None:
        """|L - lambda W| / L over the window: requests inside, against those that came in it and their stay.

        Small where the run is steady and the window long against a request's stay; large where it is not.
        """
        start_s, end_s = self.window
        if end_s <= start_s or not self.held_s:
            return None
        return abs(self.held_s - self.stay_s) / self.held_s


def _inside(table: RequestTable) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals and departures of the requests that were let in, in s; inf for those that never left."""
    let_in = ~np.isin(table.status, (REJECTED, NEVER_SCHEDULABLE))
    leave_s = np.where(np.isnan(table.finish_s), np.inf, table.finish_s)[let_in]
    return table.run.requests.arrival_s[let_in], leave_s


def _dequeued_s(table: RequestTable) -> np.ndarray:
    """When each request left the queue, for a batch or for good, in s; inf where it never did."""
    scheduled_s = table.run.recorder.column("first_scheduled_s")
    left_s = np.where(np.isnan(scheduled_s), table.finish_s, scheduled_s)
    return np.where(np.isnan(left_s), np.inf, left_s)
