"""The event loop of one serving replica.

Iteration after iteration: the scheduler forms a batch, the step-time model says how long it takes.
Iterations that would repeat an unchanged batch are taken in one go, a *leap*. What could change the
batch in the middle of a leap (an arrival that may be admitted, an abort) shortens it to the iteration
in progress; whoever announces an arrival (*next_arrival_s*) has it shortened from the start, and with
`go_on` spares the replica an event of its own. ``max_leap=1`` is the step-by-step simulator; both give
the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isnan
from typing import Any

from simpy import Environment, Event, Timeout
from simpy.events import EventPriority

from sim.serving.queue_rules import QueueRules
from sim.serving.scheduler import Scheduler
from sim.serving.sequence import DONE, WAITING, Sequence
from sim.serving.static import StaticScheduler
from sim.simulation.alarm import Alarm
from sim.simulation.clockwork import Clockwork
from sim.simulation.diary import Diary
from sim.simulation.recorder import (
    CANCELLED,
    COMPLETED,
    REJECTED,
    TIMED_OUT,
    UNFINISHED,
    Recorder,
    pack_stretch,
)

# Arrivals, aborts and deadlines of an instant are seen by the schedule that is formed at it: SimPy
# triggers smaller priorities first, and its own timeouts have 1.
AFTER_ARRIVALS = EventPriority(2)
INFINITY = float("inf")


class Replica(Diary):
    """One engine on one GPU group, in simulated time."""

    __slots__ = (
        "_asleep_until_s",
        "_end",
        "_idle",
        "_leap",
        "_until_s",
        "env",
        "forsaken",
        "left",
        "max_leap",
        "next_arrival_s",
        "stopped",
    )

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler | StaticScheduler,
        step_time: Clockwork,
        recorder: Recorder,
        max_leap: int = 1 << 30,
        queue_rules: QueueRules | None = None,
    ) -> None:
        super().__init__(scheduler, step_time, recorder, queue_rules)
        self.env = env
        self.max_leap = max_leap
        self.left: Callable[[int, float], None] | None = None  # told who is done with this replica, and when
        self.stopped: Callable[[Event], None] = self.give_up  # with the sequence whose reader has read enough
        self.forsaken: set[Sequence] = set()  # nobody's: their clients left without a word
        self.next_arrival_s = INFINITY  # of somebody who is announced; others may come before
        self._idle = True
        self._asleep_until_s = INFINITY  # when they end, where no event of their own ends them
        self._end = Alarm([self._iterations_end])  # of the iterations in progress
        self._leap = 0  # iterations in progress
        self._until_s = INFINITY  # they end with the iteration that is in progress then

    def submit(self, sequence: Sequence) -> None:
        """*sequence* enters the queue now, if the rules let it."""
        if self.queue_rules is not None and not self._may_wait(sequence, self.queue_rules):
            return
        may_join = self.scheduler.add(sequence)
        if self._idle:
            self._idle = False
            if self.next_arrival_s == self.env.now:  # announced, so `go_on` follows
                self._asleep_until_s = self.next_arrival_s
            else:
                self._ring(0.0)
        elif may_join and self._leap > 1 and self._until_s > self.env.now:
            self._cut()
        elif may_join and not self._leap:  # the last of a static group
            self._ring(0.0)

    def go_on(self) -> None:
        """The announced sequence is in, and the next is announced: its client calls this in between.

        A leap that waited for that needs no event of its own.
        """
        end_s = self._asleep_until_s
        if end_s < INFINITY:
            self._asleep_until_s = INFINITY
            next_s = self.env.peek()
            if end_s < next_s:
                self._run(end_s, next_s)
            else:
                self._wait_for(end_s, next_s)

    def give_up(self, event: Event) -> None:
        """The client of the sequence that *event* carries has gone: what a patience timer calls."""
        sequence: Any = event.value
        self.abort(sequence)

    def abort(self, sequence: Sequence, status: int = CANCELLED) -> None:
        """*sequence* leaves; its blocks are free when the iteration in progress ends."""
        if not self._goes(sequence, status):
            return
        self.scheduler.abort(sequence)
        self._aborted.append(sequence)
        if self._leap > 1:
            self._cut()

    def forsake(self, sequence: Sequence) -> None:
        """The client of *sequence* leaves without a word: for the engine nothing happens."""
        if self._goes(sequence, CANCELLED):
            self.forsaken.add(sequence)

    def _goes(self, sequence: Sequence, status: int) -> bool:
        """Note that *sequence* leaves now; whether it is still there to be taken out."""
        if sequence in self.forsaken:
            self.forsaken.remove(sequence)
            self.recorder.released(sequence.index, self.env.now)
        elif sequence.state == DONE or self.recorder.status[sequence.index] != UNFINISHED:
            return False
        else:
            self._turn_away(sequence, status)
        return True

    def _may_wait(self, sequence: Sequence, rules: QueueRules) -> bool:
        num_waiting = self.scheduler.num_waiting + self.in_lobby
        if rules.refuses(sequence, self.queued(), num_waiting, self.scheduler.running):
            self._goes(sequence, REJECTED)
            return False
        if rules.deadline_s < INFINITY:
            Timeout(self.env, rules.deadline_s, sequence).callbacks.append(self._too_late)
        return True

    def _too_late(self, event: Event) -> None:
        """A deadline in the queue: whoever has been scheduled once is past it."""
        sequence: Any = event.value
        if sequence.state == WAITING and isnan(self.recorder.first_scheduled_s[sequence.index]):
            self.abort(sequence, TIMED_OUT)

    def _turn_away(self, sequence: Sequence, status: int) -> None:
        self.recorder.status[sequence.index] = status
        self.recorder.finish_s[sequence.index] = self.env.now
        if self.left is not None:
            self.left(sequence.index, self.env.now)

    # -- the loop ----------------------------------------------------------------------------------

    def _iterations_end(self, _event: Event) -> None:
        self._run(self.env.now, self.env.peek())

    def _run(self, now: float, next_s: float) -> None:
        """Finish the iterations in progress and begin the next, over and over.

        An end before *next_s*, at which something else happens, needs no event: the loop goes on with
        it at once.
        """
        scheduler = self.scheduler
        while True:
            finished = scheduler.finish(self._leap)
            if self._composing:
                self._done += self._leap
                if scheduler.batch_changed:
                    self._close(now)
            else:
                self._first_tokens(now)
            if self._aborted:
                self._record_aborted()
            if finished:
                self._record(finished, now)
                next_s = self.env.peek()  # who was told may come again
            if scheduler.stopping:
                self._tell_readers(now)
                next_s = self.env.peek()
            end_s = self._begin(now)
            if end_s >= next_s:
                self._wait_for(end_s, next_s)
                return
            now = end_s

    def _wait_for(self, end_s: float, next_s: float) -> None:
        """Let the iterations in progress end at *end_s*; something else happens before, at *next_s*."""
        if end_s == INFINITY:
            self._idle = True
        elif self.next_arrival_s <= next_s:
            self._asleep_until_s = end_s
        else:
            self._ring(end_s - self.env.now)

    def _begin(self, now: float) -> float:
        """Form the next batch; returns when its iterations end, never where there is no work."""
        scheduler = self.scheduler
        self._leap = leap = self._schedule(now)
        if scheduler.chunks:
            return now + self._mixed_step(now)
        if not leap:
            return self._wait_for_company(now) if scheduler.num_waiting else INFINITY
        if not self._composing:
            self._open(now)
        batch = self._batch
        if scheduler.num_waiting:
            self._until_s = INFINITY
            return batch.start_s + batch.elapsed_s(self._done + leap)
        return self._leap_until(self.next_arrival_s)  # to cut it then would take another event

    def _schedule(self, now: float) -> int:
        """Form the batch that runs from *now*; returns for how many iterations."""
        leap = self.scheduler.schedule(self.max_leap)
        if self.scheduler.preempted:
            self._hold_up(now)
            if not leap:  # a step in which everybody lost is over at once
                return self._schedule(now)
        return leap

    def queued(self) -> Iterable[Sequence]:
        """Who waits, and perhaps some that are done."""
        return self.scheduler.waiting

    def sequences(self) -> Iterable[Sequence]:
        """All that are here, and perhaps some that are done."""
        return (*self.scheduler.running, *self.queued(), *self._aborted)

    def _wait_for_company(self, now: float) -> float:
        """When a static group that is not full starts all the same; a continuous batch never waits."""
        scheduler = self.scheduler
        if not isinstance(scheduler, StaticScheduler):
            return INFINITY
        due_s = self.recorder.queued_s[scheduler.waiting[0].index] + scheduler.batch_wait_s
        if due_s > now:
            return due_s
        scheduler.overdue = True
        return self._begin(now)

    def _record(self, finished: list[Sequence], now: float) -> None:
        """These got their last token *now*."""
        recorder = self.recorder
        for sequence in finished:
            request = sequence.index
            if recorder.status[request]:  # given up while its last step ran, or nobody's
                if sequence in self.forsaken:
                    self._ran_on(sequence, now)
                continue
            recorder.status[request] = COMPLETED
            recorder.finish_s[request] = now
            if sequence.first_row < recorder.num_rows:
                recorder.stretches += pack_stretch(request, sequence.first_row, recorder.num_rows - 1)
            if self.left is not None:
                self.left(request, now)

    def _ring(self, delay_s: float) -> None:
        """Let an event in *delay_s* end the iterations in progress, and no other."""
        event = self._end
        if event.callbacks is not None:  # still in SimPy's queue
            event.callbacks = []  # it rings unheard
            self._end = event = Alarm(event.calls)
        self._asleep_until_s = INFINITY
        event.callbacks = event.calls
        self.env.schedule(event, AFTER_ARRIVALS, delay_s)

    def _cut(self) -> None:
        """End the leap with the iteration in progress."""
        now, planned = self.env.now, self._leap
        end_s = self._leap_until(now)
        if self._leap < planned:
            self._ring(end_s - now)

    def _leap_until(self, at_s: float) -> float:
        """Leap no further than the iteration that is in progress *at_s*; returns when that ends."""
        batch, done = self._batch, self._done
        self._until_s = at_s
        count, elapsed_s = batch.reaches(at_s - batch.start_s, done + self._leap)
        if count <= done:  # this very instant, at which the leap begins
            count, elapsed_s = done + 1, batch.elapsed_s(done + 1)
        self._leap = count - done
        return batch.start_s + elapsed_s

    def _ran_on(self, sequence: Sequence, now: float) -> None:
        """*sequence*, which was nobody's, has its last token; that is never computed."""
        self.forsaken.remove(sequence)
        self.recorder.released(sequence.index, now)
        tokens = sequence.output_tokens
        self.recorder.abandoned(sequence.index, tokens, sequence.prompt_tokens + tokens - 1)

    def _tell_readers(self, now: float) -> None:
        """Who has read enough *now* leaves at once: too late for the batch that is formed *now*."""
        stopping, self.scheduler.stopping = self.scheduler.stopping, []
        for sequence in stopping:
            Timeout(self.env, now - self.env.now, sequence).callbacks.append(self.stopped)
