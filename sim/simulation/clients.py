"""Who sends: clients at their own times (open loop), or users who wait for answers (closed loop)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from simpy import Environment, Event, Timeout
from simpy.events import NORMAL

from sim.serving.sequence import Sequence as EngineSequence
from sim.simulation.alarm import Alarm
from sim.simulation.callers import Callers, Habits, tell
from sim.simulation.front_end import FrontEnd
from sim.simulation.recorder import CANCELLED, NEVER_SCHEDULABLE, Recorder
from sim.simulation.replica import Replica
from sim.workload import Requests

Progress = Callable[[int, int, str], None]  # requests sent, of how many, what that number is
_CHUNK = 4096  # rows of the workload that are Python objects at a time


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a run's requests, from row *first* on, and which the engine could ever run (bool)."""

    requests: Requests
    schedulable: np.ndarray
    first: int = 0


def open_loop(
    env: Environment,
    requests: Requests,
    schedulable: np.ndarray,
    front_end: FrontEnd,
    replica: Replica,
    recorder: Recorder,
    progress: Progress | None = None,
    habits: Sequence[Habits] = (Habits(),),
) -> None:
    """Send every request at its own time, whatever became of the others.

    Requests that are not *schedulable* (bool, one a request) are refused on arrival; a request with
    finite patience is given up *patience_s* after its send, wherever it is then: an abort at the
    instant at which an iteration ends comes before its output. *habits* are those of each class.
    """
    if not only_send(requests, habits):
        callers = Callers(env, requests, schedulable, front_end, replica, recorder, habits)
        send_at(env, np.arange(len(requests)), requests.arrival_s, callers.send, progress)
        return
    send_pieces(env, [Piece(requests, schedulable)], front_end, replica, recorder, progress, len(requests))


def send_pieces(
    env: Environment,
    pieces: Iterable[Piece],
    front_end: FrontEnd,
    replica: Replica,
    recorder: Recorder,
    progress: Progress | None,
    expected: int,
) -> None:
    """Like `open_loop`, with requests that come in *pieces*: each is asked for once the one before is sent.

    *expected* is how many there will be, about, for the *progress*.
    """
    alarm = Alarm([])

    def told(made: int) -> None:
        if progress:
            progress(made, expected, "sent")

    sending = _sending(env, alarm, pieces, front_end, replica, recorder, told)
    alarm.calls.append(sending.send)
    next(sending)


def only_send(requests: Requests, habits: Sequence[Habits]) -> bool:
    """Whether clients do nothing but send, and perhaps give up after a time."""
    columns = (
        requests.first_token_patience_s,
        requests.queue_patience_s,
        requests.stop_after,
        requests.silent,
    )
    plain = all(own.retries is None and own.connections is None for own in habits)
    return plain and all(column is None for column in columns)


def _sending(
    env: Environment,
    alarm: Alarm,
    pieces: Iterable[Piece],
    front_end: FrontEnd,
    replica: Replica,
    recorder: Recorder,
    told: Callable[[int], None],
) -> Generator[None, Event, None]:
    """Submit all requests at their times, by *alarm* (a SimPy process costs more)."""
    now, never = 0.0, float("inf")
    block_size = replica.scheduler.block_size
    for piece, rows in _admissible(pieces, front_end, recorder, told):
        requests, first = piece.requests, piece.first
        particular = requests.contents is not None or requests.priorities is not None
        for index, prompt, output, at_s, leave_s in rows:
            if leave_s <= at_s:  # still in the front end
                recorder.status[index] = CANCELLED
                recorder.finish_s[index] = leave_s
                continue
            if at_s > now:
                replica.next_arrival_s = at_s
                alarm.callbacks = alarm.calls
                env.schedule(alarm, NORMAL, at_s - now)
                replica.go_on()
                yield
                now = at_s
            sequence = EngineSequence(index, prompt, output)
            if particular:
                tell(sequence, index - first, requests, block_size)
            replica.submit(sequence)
            if leave_s < never:
                Timeout(env, leave_s - now, sequence).callbacks.append(replica.give_up)
    replica.next_arrival_s = never
    replica.go_on()
    yield  # nobody resumes it


def send_at(
    env: Environment,
    rows: np.ndarray,
    at_s: np.ndarray,
    send: Callable[[int], None],
    progress: Progress | None,
) -> None:
    """*send* each of *rows* at its time in *at_s* (never falling), with one event in the queue at a time."""
    alarm = Alarm([])

    def sending() -> Generator[None, Event, None]:
        for place, (row, row_at_s) in enumerate(zip(rows.tolist(), at_s.tolist(), strict=True)):
            if progress and place % _CHUNK == 0:
                progress(place, len(rows), "sent")
            if row_at_s > env.now:
                alarm.callbacks = alarm.calls
                env.schedule(alarm, NORMAL, row_at_s - env.now)
                yield
            send(row)
        yield  # nobody resumes it

    sent = sending()
    alarm.calls.append(sent.send)
    next(sent)


class ClosedLoop:
    """*users* who think, send, wait for the end and think again.

    Requests are sent in the order of the workload's rows, each by the user who is next to send;
    ``requests.arrival_s`` is filled in as they go. The think time after request i is *think_s*[i],
    whoever sent it. A request that is refused or given up for good frees its user, at once, like one that
    is answered.
    """

    def __init__(
        self,
        env: Environment,
        requests: Requests,
        callers: Callers,
        think_s: np.ndarray,
        progress: Progress | None = None,
    ) -> None:
        self.env, self.requests, self.callers = env, requests, callers
        self.think_s, self.progress = think_s, progress
        self._next = 0
        callers.done = self._answered

    def start(self, users: int) -> None:
        """Every user sends a first request at t = 0."""
        for _ in range(min(users, len(self.requests))):
            self._later(0.0)

    def _later(self, delay_s: float) -> None:
        Timeout(self.env, delay_s).callbacks.append(self._send)

    def _answered(self, request: int, at_s: float) -> None:
        """The user of *request* is done with it *at_s*, which may lie ahead of SimPy's clock."""
        if self._next < len(self.requests):
            self._later(at_s - self.env.now + float(self.think_s[request]))

    def _send(self, _event: Event) -> None:
        request = self._next
        if request == len(self.requests):
            return  # as many as were asked for have been sent
        if self.progress and request % _CHUNK == 0:
            self.progress(request, len(self.requests), "sent")
        self._next = request + 1
        self.requests.arrival_s[request] = self.env.now
        self.callers.send(request)


def _admissible(
    pieces: Iterable[Piece], front_end: FrontEnd, recorder: Recorder, told: Callable[[int], None]
) -> Iterator[tuple[Piece, Iterator[tuple[Any, ...]]]]:
    """Index, prompt, output, time in the engine's queue and time of leaving of each schedulable request.

    As plain Python values, a chunk in memory at a time; the others are recorded as refused.
    """
    for piece in pieces:
        requests = piece.requests
        for first in range(0, len(requests), _CHUNK):
            told(piece.first + first)
            part = slice(first, first + _CHUNK)
            possible, arrival_s = piece.schedulable[part], requests.arrival_s[part]
            refused, index = (
                np.flatnonzero(which) + (piece.first + first) for which in (~possible, possible)
            )
            recorder.put("status", refused, np.full(len(refused), NEVER_SCHEDULABLE))
            recorder.put("finish_s", refused, arrival_s[~possible])
            prompts = requests.prompt_tokens[part][possible]
            queued_s = front_end.pass_through(arrival_s[possible], prompts)
            recorder.put("queued_s", index, queued_s)
            patience_s = np.inf if requests.patience_s is None else requests.patience_s[part]
            leave_s = (arrival_s + patience_s)[possible]
            columns = (index, prompts, requests.output_tokens[part][possible], queued_s, leave_s)
            yield piece, zip(*(column.tolist() for column in columns), strict=True)
