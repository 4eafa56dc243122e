"""Requests that wait for answers, beside those that do not: sessions of people and agents, and users."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from simpy import Environment, Event, Timeout

from sim.simulation.callers import Callers
from sim.simulation.clients import Progress, send_at
from sim.simulation.recorder import Recorder
from sim.workload import Requests, Users, reusable_tokens, take


class UponAnswers:
    """Sends *requests*: at their own times, or some time after the end of another one.

    A request that follows another is sent `follows.think_s` after that one's end, whatever became of it. Each
    of *users* sends the next of their requests when the last is over and thought about. Nothing is sent after
    *until_s*, and no more than *most* requests altogether; `settle` leaves out what was not sent.
    """

    def __init__(
        self,
        env: Environment,
        requests: Requests,
        callers: Callers,
        users: Sequence[Users],
        until_s: float,
        most: float = math.inf,
    ) -> None:
        self.env, self.callers, self.until_s, self.most = env, callers, until_s, most
        self.requests = requests
        self.ran_out = False  # a user had no request left before the end
        self._sent: list[tuple[float, int]] = []  # when, and which request
        self._users = {users_.of_class: _Queue(users_) for users_ in users}
        self._classes = requests.classes if users else None
        self._after: dict[int, tuple[int, float]] = {}
        if (follows := requests.follows) is not None:
            waiting = np.flatnonzero(follows.previous >= 0)
            before, think_s = follows.previous[waiting].tolist(), follows.think_s[waiting].tolist()
            self._after = dict(zip(before, zip(waiting.tolist(), think_s, strict=True), strict=True))
        callers.done = self._over

    def start(self, progress: Progress | None = None) -> None:
        """Send whatever has a time of its own then, and a first request of every user at 0."""
        rows = self._rows_with_times()
        send_at(self.env, rows, self.requests.arrival_s[rows], self._send, progress)
        for queue in self._users.values():
            for _ in range(queue.count):
                self._later(0.0, self._send_next, queue)

    def settle(self, recorder: Recorder) -> Requests:
        """The requests that were sent, in order of their sends, and *recorder*'s rows in that order."""
        sent_s, order = np.array(self._sent, dtype=np.float64).reshape(-1, 2).T
        rows = order.astype(np.int64)
        recorder.reorder(rows)
        requests = replace(take(self.requests, rows), arrival_s=sent_s.copy())
        sent, notes = set(rows.tolist()), dict(requests.notes)
        if late := sum(row not in sent for row, _ in self._after.values()):
            notes["turns_not_sent"] = late
        if requests.contents is not None:
            seen = reusable_tokens(requests.contents, requests.prompt_tokens, requests.output_tokens)
            notes["prompt_tokens_seen_before"] = int(seen.sum())
        return replace(requests, notes=notes)

    def _rows_with_times(self) -> np.ndarray:
        follows, with_times = self.requests.follows, np.ones(len(self.requests), dtype=bool)
        if follows is not None:
            with_times &= follows.previous < 0
        for queue in self._users.values():
            with_times[queue.rows] = False
        return np.flatnonzero(with_times)

    def _send(self, row: int) -> None:
        if self.env.now <= self.until_s and len(self._sent) < self.most:
            self._sent.append((self.env.now, row))
            self.callers.send(row)

    def _send_next(self, event: Event) -> None:
        queue: Any = event.value
        if self.env.now > self.until_s or len(self._sent) == self.most:
            return
        if queue.next == len(queue.rows):
            self.ran_out = True
            return
        row = queue.rows[queue.next]
        queue.next += 1
        self._send(row)

    def _send_follower(self, event: Event) -> None:
        row: Any = event.value
        self._send(row)

    def _over(self, request: int, at_s: float) -> None:
        """Its client is done with *request* *at_s*, which may lie ahead of SimPy's clock."""
        wait_s = at_s - self.env.now
        if (follower := self._after.get(request)) is not None:
            row, think_s = follower
            self._later(wait_s + think_s, self._send_follower, row)
        queue = None if self._classes is None else self._users.get(int(self._classes[request]))
        if queue is not None:
            self._later(wait_s + queue.think_s[request], self._send_next, queue)

    def _later(self, delay_s: float, then: Any, value: Any) -> None:
        Timeout(self.env, delay_s, value).callbacks.append(then)


class _Queue:
    """The requests of one class's users, and how far they have come."""

    __slots__ = ("count", "next", "rows", "think_s")

    def __init__(self, users: Users) -> None:
        self.count, self.next = users.count, 0
        self.rows: list[int] = users.rows.tolist()
        self.think_s = dict(zip(self.rows, users.think_s.tolist(), strict=True))
