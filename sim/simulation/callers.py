"""Clients one by one: those who lose patience, try again, or have only so many connections.

`sim.simulation.clients` says when a client means to send a request; what becomes of it until the client is
done with it is here. Where clients do no more than send, there is a shorter way (`clients.open_loop`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import isnan
from typing import Any

import numpy as np
from simpy import Environment, Event, Timeout

from sim.serving.prefix_cache import Content
from sim.serving.sequence import Sequence as EngineSequence
from sim.simulation.front_end import FrontEnd
from sim.simulation.recorder import CANCELLED, NEVER_SCHEDULABLE, TIMED_OUT, Recorder
from sim.simulation.replica import Replica
from sim.simulation.retries import Retries, luck, retries_of
from sim.workload import Requests, Streams, again_s, classes_of, streams_of

INFINITY = float("inf")


class Connections:
    """Those that one client may have open at once, first come, first served."""

    __slots__ = ("free", "waiting")

    def __init__(self, most: int) -> None:
        self.free = most
        self.waiting: deque[Call] = deque()


@dataclass(frozen=True, slots=True)
class Habits:
    """What all clients of a class do alike.

    patience: the workload's section, for those who ask again (`sim.workload.patience`). A server that is not
    told of a client's leaving notices *detection_s* later, or never.
    """

    patience: Mapping[str, Any] | None = None
    retries: Retries | None = None
    connections: Connections | None = None
    detection_s: float = INFINITY
    streams: Streams = field(default_factory=lambda: Streams(1))


def habits_by_class(workload: Mapping[str, Any], seed: int) -> list[Habits]:
    """The habits of the clients of each of *workload*'s classes, or of its only one."""
    return [habits_of(own, streams_of(workload, name, seed)) for name, own in classes_of(workload).items()]


def habits_of(workload: Mapping[str, Any], streams: Streams) -> Habits:
    """The habits that *workload*'s clients have, or those of one class; *streams* are theirs."""
    patience, most = workload.get("patience"), workload.get("connections")
    return Habits(
        patience,
        retries_of(workload.get("retries")),
        None if most is None else Connections(most),
        (patience or {}).get("detection_s") or INFINITY,
        streams,
    )


class Call:
    """One piece of work in the hands of its client."""

    __slots__ = ("asked", "failures", "over", "request", "satisfied", "sent_s", "sequence")

    def __init__(self, request: int) -> None:
        self.request = request
        self.asked = 0  # times, by the person behind the client
        self.failures = 0  # attempts that came to nothing
        self.sent_s = 0.0  # the last attempt
        self.sequence: EngineSequence | None = None  # of the attempt that is on its way
        self.satisfied = False  # its reader has had enough, and asks no more
        self.over = False


class Callers:
    """Clients whose requests are in flight, and all that they may do about them.

    *habits* are those of each of the requests' classes. `send` starts a request at its intended time; *done*
    is told which request is over, and when, which may lie ahead of SimPy's clock.
    """

    def __init__(
        self,
        env: Environment,
        requests: Requests,
        schedulable: np.ndarray,
        front_end: FrontEnd,
        replica: Replica,
        recorder: Recorder,
        habits: Sequence[Habits] = (Habits(),),
    ) -> None:
        self.env, self.requests, self.schedulable = env, requests, schedulable
        self.front_end, self.replica, self.recorder = front_end, replica, recorder
        self.habits = habits
        self.done: Callable[[int, float], None] | None = None
        self._calls: dict[int, Call] = {}  # by row of the attempt that is on its way
        self._coming: set[EngineSequence] = set()  # in the front end
        self._order = count()  # of attempts
        self._waited_for = (
            (requests.patience_s, "total", self._wants_no_more),
            (requests.first_token_patience_s, "first_token", self._wants_a_token),
            (requests.queue_patience_s, "queue", self._wants_a_place),
        )
        if any(own.connections for own in habits):
            recorder.expect_delays()
        if requests.silent is not None:
            recorder.expect_silence()
        replica.left = self._left
        replica.stopped = self._has_read_enough

    def send(self, request: int) -> None:
        """The client of *request* means to send it now."""
        if self.schedulable[request]:
            self._ask(Call(request))
        else:
            self._leave_unsent(Call(request), NEVER_SCHEDULABLE)

    def habits_of(self, request: int) -> Habits:
        """What the client of *request* does."""
        classes = self.requests.classes
        return self.habits[0 if classes is None else classes[request]]

    def _later(self, delay_s: float, then: Callable[[Event], None], value: Any = None) -> None:
        Timeout(self.env, delay_s, value).callbacks.append(then)

    # -- sending -----------------------------------------------------------------------------------

    def _ask(self, call: Call) -> None:
        """A person wants an answer, and waits for it from now on."""
        request, asked = call.request, call.asked
        for column, limit, gone in self._waited_for:
            wait_s = INFINITY if column is None else float(column[request])
            if wait_s < INFINITY:
                self._later(self._anew_s(call, limit) or wait_s, gone, (call, asked))
        self._try(call)

    def _anew_s(self, call: Call, limit: str) -> float | None:
        """Who asks again has new patience, where we know how much people have."""
        if not call.asked:
            return None
        habits = self.habits_of(call.request)
        return again_s(habits.patience, limit, habits.streams, call.request, call.asked)

    def _try(self, call: Call) -> None:
        """Its client sends the request now, or as soon as it has a connection."""
        connections = self.habits_of(call.request).connections
        if connections is None:
            self._go(call)
        elif connections.free:
            connections.free -= 1
            self._go(call)
        else:
            connections.waiting.append(call)

    def _go(self, call: Call) -> None:
        """An attempt is sent now."""
        request, now, requests, recorder = call.request, self.env.now, self.requests, self.recorder
        row = request
        if call.failures:
            row = recorder.again(request, call.sent_s)
        elif recorder.sent_s is not None:
            recorder.sent_s[request] = now
        call.sent_s = now
        prompt, output = int(requests.prompt_tokens[request]), int(requests.output_tokens[request])
        call.sequence = sequence = EngineSequence(row, prompt, output)
        tell(sequence, request, requests, self.replica.scheduler.block_size)
        sequence.came = next(self._order)
        self._calls[row] = call
        recorder.queued_s[row] = queued_s = self.front_end.pass_one(now, prompt)
        retries = self.habits_of(request).retries
        if retries is not None and retries.timeout_s < INFINITY:
            self._later(retries.timeout_s, self._wants_an_answer, (call, sequence))
        if queued_s > now:
            self._coming.add(sequence)
            self._later(queued_s - now, self._arrive, sequence)
        else:
            self.replica.submit(sequence)

    def _arrive(self, event: Event) -> None:
        """A request has passed the front end; its client may have left meanwhile."""
        sequence: Any = event.value
        self._coming.discard(sequence)
        if not self.recorder.status[sequence.index] or sequence in self.replica.forsaken:
            self.replica.submit(sequence)

    # -- losing patience ---------------------------------------------------------------------------

    def _wants_no_more(self, event: Event) -> None:
        call, asked = event.value  # type: ignore[misc]
        if not call.over and call.asked == asked:
            self._leave(call)

    def _wants_a_token(self, event: Event) -> None:
        self._leave_without(self.recorder.first_token_s, event)

    def _wants_a_place(self, event: Event) -> None:
        self._leave_without(self.recorder.first_scheduled_s, event)

    def _leave_without(self, happened_s: Any, event: Event) -> None:
        call, asked = event.value  # type: ignore[misc]
        waits = call.sequence is None or isnan(happened_s[call.sequence.index])
        if waits and not call.over and call.asked == asked:
            self._leave(call)

    def _wants_an_answer(self, event: Event) -> None:
        """A client's own time limit: it closes the connection."""
        call, sequence = event.value  # type: ignore[misc]
        if call.sequence is sequence and isnan(self.recorder.first_token_s[sequence.index]):
            self._withdraw(sequence, TIMED_OUT)

    def _has_read_enough(self, event: Event) -> None:
        sequence: Any = event.value
        call = self._calls.get(sequence.index)
        if call is not None:
            call.satisfied = True
            self._leave(call)

    def _leave(self, call: Call) -> None:
        """The person behind *call* goes now."""
        sequence, silent = call.sequence, self.requests.silent
        if sequence is None:  # between two attempts, or before the first
            self._leave_unsent(call, CANCELLED)
        elif silent is None or not silent[call.request]:
            self._withdraw(sequence, CANCELLED)
        else:
            self._slip_away(sequence, self.habits_of(call.request).detection_s)

    def _leave_unsent(self, call: Call, status: int) -> None:
        if not call.failures:
            self.recorder.status[call.request] = status
            self.recorder.finish_s[call.request] = self.env.now
        self._end(call, self.env.now)

    def _withdraw(self, sequence: EngineSequence, status: int) -> None:
        """The client closes the connection of *sequence*, wherever that is."""
        if sequence in self._coming:
            self._close(sequence.index, status)
        else:
            self.replica.abort(sequence, status)

    def _slip_away(self, sequence: EngineSequence, detection_s: float) -> None:
        """The client of *sequence* leaves without a word."""
        if sequence in self._coming:
            self.replica.forsaken.add(sequence)
            self._close(sequence.index, CANCELLED)
        else:
            self.replica.forsake(sequence)
        if detection_s < INFINITY:
            self._later(detection_s, self._detected, sequence)

    def _detected(self, event: Event) -> None:
        """The server notices that nobody waits for this sequence."""
        sequence: Any = event.value
        if sequence in self._coming:
            self.replica.forsaken.discard(sequence)
        else:
            self.replica.abort(sequence)

    def _close(self, row: int, status: int) -> None:
        self.recorder.status[row] = status
        self.recorder.finish_s[row] = self.env.now
        self._left(row, self.env.now)

    # -- what comes after --------------------------------------------------------------------------

    def _left(self, row: int, at_s: float) -> None:
        """The attempt of *row* is over *at_s*, for its client."""
        call = self._calls.pop(row)
        call.sequence = None
        habits, status = self.habits_of(call.request), self.recorder.status[row]
        if habits.connections is not None:
            self._free(habits.connections, at_s)
        retries = habits.retries
        if retries is None or call.satisfied or not retries.tries_again(call.failures, status):
            self._end(call, at_s)
            return
        wait_s = retries.wait_s(call.failures, status, luck(habits.streams, call.request, call.failures))
        call.failures += 1
        abandoned = status == CANCELLED
        call.asked += abandoned
        self._later(at_s - self.env.now + wait_s, self._asks_again if abandoned else self._tries_again, call)

    def _asks_again(self, event: Event) -> None:
        call: Any = event.value
        if not call.over:
            self._ask(call)

    def _tries_again(self, event: Event) -> None:
        call: Any = event.value
        if not call.over:
            self._try(call)

    def _free(self, connections: Connections, at_s: float) -> None:
        """A connection is free *at_s*: the next who still waits for one has it."""
        while connections.waiting:
            call = connections.waiting.popleft()
            if not call.over:
                self._later(at_s - self.env.now, self._connected, (call, connections))
                return
        connections.free += 1

    def _connected(self, event: Event) -> None:
        call, connections = event.value  # type: ignore[misc]
        if call.over:
            self._free(connections, self.env.now)
        else:
            self._go(call)

    def _end(self, call: Call, at_s: float) -> None:
        call.over = True
        if self.done is not None:
            self.done(call.request, at_s)


def tell(sequence: EngineSequence, request: int, requests: Requests, block_size: int) -> None:
    """Say of *sequence* what not all of *requests* have.

    How urgent it is, what its tokens are, how far its answer is read.
    """
    if requests.priorities is not None:
        sequence.priority = int(requests.priorities[request])
    if requests.contents is not None:
        sequence.content = Content(block_size, *requests.contents.of(request))
    if requests.stop_after is not None:
        read = int(requests.stop_after[request])
        sequence.read_tokens = read if read < sequence.output_tokens else 0
