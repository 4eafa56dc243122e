"""Who sends: open-loop clients that may lose patience."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import Any

import numpy as np
from simpy import Environment, Event, Timeout

from sim.serving.sequence import Sequence
from sim.simulation.front_end import FrontEnd
from sim.simulation.recorder import CANCELLED, NEVER_SCHEDULABLE, Recorder
from sim.simulation.replica import Replica
from sim.workload import Requests

Progress = Callable[[int, int, str], None]  # requests sent, of how many, what that number is
_CHUNK = 4096  # rows of the workload that are Python objects at a time


def open_loop(
    env: Environment,
    requests: Requests,
    schedulable: np.ndarray,
    front_end: FrontEnd,
    replica: Replica,
    recorder: Recorder,
    progress: Progress | None = None,
) -> Generator[Event, None, None]:
    """Send every request at its own time, whatever became of the others.

    One heap entry for all of them. Requests that are not *schedulable* (bool, one a request) are
    refused on arrival; a request with finite patience is given up *patience_s* after its send,
    wherever it is then: an abort at the instant at which an iteration ends comes before its output.
    """
    sent, refused = np.flatnonzero(schedulable), np.flatnonzero(~schedulable)
    for index, at_s in zip(refused.tolist(), requests.arrival_s[refused].tolist(), strict=True):
        recorder.status[index] = NEVER_SCHEDULABLE
        recorder.finish_s[index] = at_s
    prompts, outputs = requests.prompt_tokens[sent], requests.output_tokens[sent]
    queued_s = front_end.pass_through(requests.arrival_s[sent], prompts)
    patience_s = np.inf if requests.patience_s is None else requests.patience_s[sent]
    leaves_s = requests.arrival_s[sent] + patience_s
    recorder.column("queued_s")[sent] = queued_s
    now, never = 0.0, float("inf")
    for index, prompt, output, at_s, leave_s in _rows(progress, sent, prompts, outputs, queued_s, leaves_s):
        if leave_s <= at_s:  # still in the front end
            recorder.status[index] = CANCELLED
            recorder.finish_s[index] = leave_s
            continue
        if at_s > now:
            yield Timeout(env, at_s - now)
            now = at_s
        sequence = Sequence(index, prompt, output)
        replica.submit(sequence)
        if leave_s < never:
            Timeout(env, leave_s - now, sequence).callbacks.append(replica.give_up)


class ClosedLoop:
    """*users* who think, send, wait for the end and think again.

    Requests are sent in the order of the workload's rows, each by the user who is next to send;
    ``requests.arrival_s`` is filled in as they go. The think time after request i is *think_s*[i],
    whoever sent it. A request that is refused or given up frees its user like one that is answered.
    """

    def __init__(
        self,
        env: Environment,
        requests: Requests,
        schedulable: np.ndarray,
        front_end: FrontEnd,
        replica: Replica,
        recorder: Recorder,
        think_s: np.ndarray,
    ) -> None:
        self.env, self.requests, self.front_end = env, requests, front_end
        self.replica, self.recorder, self.think_s = replica, recorder, think_s
        self.schedulable = schedulable
        self._next = 0
        replica.left = self._answered

    def start(self, users: int) -> None:
        """Every user sends a first request at t = 0."""
        for _ in range(min(users, len(self.requests))):
            self._later(0.0, self._send)

    def _later(self, delay_s: float, then: Callable[[Event], None], value: Any = None) -> None:
        Timeout(self.env, delay_s, value).callbacks.append(then)

    def _answered(self, request: int, at_s: float) -> None:
        """The user of *request* is done with it *at_s*, which may lie ahead of SimPy's clock."""
        if self._next < len(self.requests):
            self._later(at_s - self.env.now + float(self.think_s[request]), self._send)

    def _send(self, _event: Event) -> None:
        request, now = self._next, self.env.now
        if request == len(self.requests):
            return  # as many as were asked for have been sent
        self._next = request + 1
        self.requests.arrival_s[request] = now
        if not self.schedulable[request]:
            self.recorder.status[request] = NEVER_SCHEDULABLE
            self.recorder.finish_s[request] = now
            self._answered(request, now)
            return
        row = slice(request, request + 1)
        queued_s = float(
            self.front_end.pass_through(self.requests.arrival_s[row], self.requests.prompt_tokens[row])[0]
        )
        sequence = Sequence(
            request, int(self.requests.prompt_tokens[request]), int(self.requests.output_tokens[request])
        )
        self._later(queued_s - now, self._submit, sequence)

    def _submit(self, event: Event) -> None:
        sequence: Any = event.value
        request = sequence.index
        self.recorder.queued_s[request] = self.env.now
        if self.requests.patience_s is not None:
            left_s = (
                float(self.requests.arrival_s[request] + self.requests.patience_s[request]) - self.env.now
            )
            if left_s <= 0.0:  # given up in the front end
                self.recorder.status[request] = CANCELLED
                self.recorder.finish_s[request] = self.env.now + left_s
                self._answered(request, self.env.now)
                return
            if left_s < np.inf:
                self._later(left_s, self.replica.give_up, sequence)
        self.replica.submit(sequence)


def _rows(progress: Progress | None, *columns: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """The rows of equally long *columns* as plain Python values, a chunk in memory at a time."""

    def chunks() -> Iterator[Iterator[tuple[Any, ...]]]:
        for first in range(0, len(columns[0]), _CHUNK):
            if progress:
                progress(first, len(columns[0]), "sent")
            yield zip(*(column[first : first + _CHUNK].tolist() for column in columns), strict=True)

    return chain.from_iterable(chunks())
