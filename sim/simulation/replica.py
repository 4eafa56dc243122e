"""The event loop of one serving replica.

Iteration after iteration: the scheduler forms a batch, the step-time model says how long it takes,
one event ends it. Iterations that would repeat an unchanged batch are one event, a *leap*. What
could change the batch in the middle of a leap (an arrival that may be admitted, an abort) shortens
it to the iteration in progress. ``max_leap=1`` is the step-by-step simulator; both give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Any

from simpy import Environment, Event, Timeout
from simpy.events import EventPriority

from sim.serving.queue_rules import QueueRules
from sim.serving.scheduler import Scheduler
from sim.serving.sequence import DONE, PREFILL, WAITING, Sequence
from sim.serving.static import StaticScheduler
from sim.simulation.clockwork import Clockwork
from sim.simulation.recorder import (
    CANCELLED,
    COMPLETED,
    DECODING_AGAIN,
    PREEMPTED,
    REJECTED,
    RESUMED,
    TIMED_OUT,
    UNFINISHED,
    Recorder,
    pack_step,
    pack_stretch,
)

# Arrivals, aborts and deadlines of an instant are seen by the schedule that is formed at it: SimPy
# triggers smaller priorities first, and its own timeouts have 1.
AFTER_ARRIVALS = EventPriority(2)
INFINITY = float("inf")


class IterationsEnd(Event):
    """An event that is triggered from the start and only waits for its time; it can ring again."""

    _ok = True
    _value = None

    def __init__(self) -> None:
        self.callbacks = None  # type: ignore[assignment]  # SimPy's own mark of an event that has rung


class Replica:
    """One engine on one GPU group, in simulated time."""

    __slots__ = (
        "_aborted",
        "_batch",
        "_blocks_first",
        "_composing",
        "_context_tokens",
        "_decodes",
        "_done",
        "_end",
        "_held_by",
        "_idle",
        "_leap",
        "_planned_s",
        "_sent_back",
        "_when_it_rings",
        "env",
        "left",
        "max_leap",
        "queue_rules",
        "recorder",
        "scheduler",
        "step_time",
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
        self.env = env
        self.scheduler = scheduler
        self.step_time = step_time
        self.recorder = recorder
        self.max_leap = max_leap
        self.queue_rules = queue_rules
        self.left: Callable[[int, float], None] | None = None  # told who is done with this replica, and when
        self._when_it_rings: list[Callable[[Event], None]] = [self._iterations_end]
        self._idle = True
        self._end = IterationsEnd()  # of the iterations in progress
        self._leap = 0  # iterations in progress
        self._batch = step_time.composition()
        self._composing = False  # the same sequences decode, iteration after iteration
        self._done = 0  # iterations of the batch before those in progress
        self._planned_s = 0.0  # from the batch's start to the end of those in progress
        self._decodes = 0
        self._context_tokens = 0
        self._blocks_first = 0
        self._held_by = 0
        self._aborted: list[Sequence] = []
        self._sent_back: set[int] = set()  # requests that were preempted and are not scheduled again yet

    def submit(self, sequence: Sequence) -> None:
        """*sequence* enters the queue now, if the rules let it."""
        if self.queue_rules is not None and not self._may_wait(sequence, self.queue_rules):
            return
        may_join = self.scheduler.add(sequence)
        if self._idle:
            self._idle = False
            self._ring(0.0)
        elif may_join and self._leap > 1:
            self._cut()
        elif may_join and not self._leap:  # the last of a static group
            self._end.callbacks = []
            self._ring(0.0)

    def give_up(self, event: Event) -> None:
        """The client of the sequence that *event* carries has gone: what a patience timer calls."""
        sequence: Any = event.value
        self.abort(sequence)

    def abort(self, sequence: Sequence, status: int = CANCELLED) -> None:
        """*sequence* leaves; its blocks are free when the iteration in progress ends."""
        if sequence.state == DONE or self.recorder.status[sequence.index] != UNFINISHED:
            return
        self.scheduler.abort(sequence)
        self._aborted.append(sequence)
        self._turn_away(sequence, status)
        if self._leap > 1:
            self._cut()

    def _may_wait(self, sequence: Sequence, rules: QueueRules) -> bool:
        if rules.refuses(sequence, self.scheduler.waiting, self.scheduler.num_waiting):
            self._turn_away(sequence, REJECTED)
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
        """Finish the iterations in progress and begin the next, over and over.

        An end before which nothing else can happen needs no event: the loop goes on with it at once.
        """
        now, finish, peek = self.env.now, self.scheduler.finish, self.env.peek
        while True:
            finished = finish(self._leap)
            if self._composing:
                self._done += self._leap
                if self.scheduler.batch_changed:
                    self._close(now)
            else:
                self._first_tokens(now)
            if self._aborted:
                self._record_aborted()
            if finished:
                self._record(finished, now)
            end_s = self._begin(now)
            if end_s < peek():
                now = end_s
            elif end_s < INFINITY:
                self._ring(end_s - self.env.now)
                return
            else:
                self._idle = True
                return

    def _begin(self, now: float) -> float:
        """Form the next batch; returns when its iterations end, never where there is no work."""
        scheduler = self.scheduler
        self._leap = leap = scheduler.schedule(self.max_leap)
        if scheduler.preempted:
            self._hold_up(now)
        if scheduler.chunks:
            return now + self._mixed_step(now)
        if not leap:
            return self._wait_for_company(now) if scheduler.num_waiting else INFINITY
        if scheduler.batch_changed or not self._composing:
            self._open(now)
        batch = self._batch
        self._planned_s = planned_s = batch.elapsed_s(self._done + leap)
        return batch.start_s + planned_s

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
        status, finish_s, last_row = recorder.status, recorder.finish_s, recorder.num_rows - 1
        for sequence in finished:
            request, first_row = sequence.index, sequence.first_row
            status[request] = COMPLETED
            finish_s[request] = now
            if first_row <= last_row:
                recorder.stretches += pack_stretch(request, first_row, last_row)
            if self.left is not None:
                self.left(request, now)

    def _ring(self, delay_s: float) -> None:
        """Let an event in *delay_s* end the iterations in progress."""
        event = self._end
        if event.callbacks is not None:  # cut short, and still in SimPy's queue
            self._end = event = IterationsEnd()
        event.callbacks = self._when_it_rings
        self.env.schedule(event, AFTER_ARRIVALS, delay_s)

    def _cut(self) -> None:
        """End the leap with the iteration in progress."""
        batch, now, last = self._batch, self.env.now, self._done + self._leap
        count, reached_s = batch.reaches(now - batch.start_s, last, self._planned_s)
        if count <= self._done:  # somebody came at the very instant at which this leap began
            count, reached_s = self._done + 1, batch.elapsed_s(self._done + 1)
        if count < last:
            self._end.callbacks = []  # it rings unheard
            self._leap, self._planned_s = count - self._done, reached_s
            self._ring(batch.start_s + reached_s - now)

    # -- batches -----------------------------------------------------------------------------------

    def _open(self, now: float) -> None:
        """Start a composition: these sequences decode until one comes, ends or is preempted."""
        if self._composing:
            self._close(now)
        scheduler = self.scheduler
        scheduler.batch_changed = False
        self._done = 0
        self._decodes = decodes = scheduler.decoding
        self._context_tokens = context_tokens = scheduler.context_tokens
        self._blocks_first = scheduler.num_blocks - scheduler.free_blocks
        self._held_by = scheduler.held_by
        self._batch.begin(now, decodes, context_tokens)
        self._composing = True

    def _close(self, now: float) -> None:
        """Write the row of the composition that ends *now*."""
        recorder, scheduler = self.recorder, self.scheduler
        recorder.num_rows += 1
        recorder.steps += pack_step(
            self._batch.start_s,
            now,
            0.0,
            self._done,
            self._context_tokens,
            0,
            self._blocks_first,
            scheduler.blocks_in_use,
            scheduler.num_waiting,
            self._decodes,
            0,
            self._held_by,
        )
        self._composing = False

    def _mixed_step(self, now: float) -> float:
        """Write the row of a step with prefill in it; returns its duration."""
        scheduler, recorder = self.scheduler, self.recorder
        if self._composing:
            self._close(now)
        chunks, decodes, context_tokens = scheduler.chunks, scheduler.decoding, scheduler.context_tokens
        tokens, with_cached, squares, sampled, admitted = 0, 0, 0, decodes, 0
        for sequence, new, cached in chunks:
            tokens += new
            with_cached += new * cached
            squares += new * new
            if sequence.computed == sequence.prompt_tokens + sequence.generated:
                sampled += 1
            if isnan(recorder.first_scheduled_s[sequence.index]):
                recorder.first_scheduled_s[sequence.index] = now
                admitted += 1
            elif sequence.index in self._sent_back:
                self._sent_back.remove(sequence.index)
                recorder.turn(sequence.index, now, RESUMED)
        if self.queue_rules is not None:
            self.queue_rules.admitted(admitted, now, scheduler.num_waiting)
        duration_s = self.step_time.mixed_s(
            decodes, context_tokens, len(chunks), tokens, with_cached, squares, sampled
        )
        blocks = scheduler.num_blocks - scheduler.free_blocks
        recorder.num_rows += 1
        recorder.steps += pack_step(
            now,
            now + duration_s,
            with_cached + 0.5 * squares,
            1,
            context_tokens,
            tokens,
            blocks,
            blocks,
            scheduler.num_waiting,
            decodes,
            len(chunks),
            scheduler.held_by,
        )
        return duration_s

    def _first_tokens(self, now: float) -> None:
        """Sequences whose prefill is complete have a token: their first, or the one after a gap."""
        recorder = self.recorder
        for sequence, _, _ in self.scheduler.chunks:
            request = sequence.index
            if sequence.state == PREFILL or recorder.status[request]:  # not complete, or aborted
                continue
            if sequence.gap_since_s < 0.0:
                recorder.first_token_s[request] = now
            else:
                recorder.gap(request, now - sequence.gap_since_s)
                recorder.turn(request, now, DECODING_AGAIN)
                sequence.gap_since_s = -1.0
            sequence.first_row = recorder.num_rows

    # -- rare ----------------------------------------------------------------------------------------

    def _hold_up(self, now: float) -> None:
        """Preempted sequences that were decoding got their last token for some time *now*."""
        recorder = self.recorder
        if self._composing:
            self._close(now)
        for sequence in self.scheduler.preempted:
            recorder.preemptions[sequence.index] += 1
            recorder.turn(sequence.index, now, PREEMPTED)
            self._sent_back.add(sequence.index)
            if sequence.generated and sequence.gap_since_s < 0.0:
                recorder.stretch(sequence.index, sequence.first_row)
                sequence.gap_since_s = now

    def _record_aborted(self) -> None:
        recorder = self.recorder
        for sequence in self._aborted:
            recorder.partial_answers[sequence.index] = sequence.generated
            recorder.abandoned_tokens += sequence.computed
        self._aborted.clear()
