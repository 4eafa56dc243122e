"""The event loop of a replica whose engine schedules asynchronously.

The engine forms each step when the one before it *begins*, so that the GPU never waits for the host. Whoever
comes or goes while a step runs is therefore not seen by the next step but by the one after it. The loop
itself is that of `sim.simulation.replica`: a step is formed when the one before it ends, but with what was
known when that began. What has ended keeps its place one step longer (`Scheduler`, *asynchronous*).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from sim.serving.scheduler import Scheduler
from sim.serving.sequence import DONE, Sequence
from sim.simulation.recorder import CANCELLED
from sim.simulation.replica import Replica


class PipelinedReplica(Replica):
    """One asynchronous engine on one GPU group, in simulated time."""

    __slots__ = ("_began_s", "_giving_up", "_lobby")

    scheduler: Scheduler

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._lobby: deque[tuple[float, Sequence]] = deque()  # come while a step runs, and when
        self._giving_up: list[Sequence] = []  # gone while a step runs
        self._began_s: float | None = None  # when the last of the iterations in progress begins, if known

    def queued(self) -> Iterable[Sequence]:
        """Who waits, and perhaps some that are done."""
        return (*self.scheduler.waiting, *(sequence for _, sequence in self._lobby))

    def sequences(self) -> Iterable[Sequence]:
        """See `Replica`."""
        return (*super().sequences(), *self._giving_up)

    def submit(self, sequence: Sequence) -> None:
        """*sequence* comes now; a step that runs, and the next, go on without it."""
        if self._idle or not self._leap:
            super().submit(sequence)
        elif self.queue_rules is None or self._may_wait(sequence, self.queue_rules):
            alone = not (self.scheduler.num_waiting or self.in_lobby)
            self._lobby.append((self.env.now, sequence))
            self.in_lobby += 1
            if self._leap > 1 and self._until_s > self.env.now and (alone or self.scheduler.by_priority):
                self._cut()

    def abort(self, sequence: Sequence, status: int = CANCELLED) -> None:
        """*sequence* leaves; its blocks are free when the step after the one that runs ends."""
        if not self._goes(sequence, status):
            return
        entry = next((entry for entry in self._lobby if entry[1] is sequence), None)
        if entry is not None:
            self._lobby.remove(entry)
            self.in_lobby -= 1
            sequence.state = DONE
            return
        self._giving_up.append(sequence)
        if (planned := self._leap) > 1:
            self._began_s = None
            end_s = super()._leap_until(self.env.now)
            if self._leap < planned:
                self._ring(end_s - self.env.now)

    def _leap_until(self, at_s: float) -> float:
        """Leap no further than the iteration after the one in progress *at_s*: it does not see who comes.

        Who comes as one ends is seen by the one after the next, which is formed then.
        """
        batch, done, planned = self._batch, self._done, self._leap
        self._until_s = at_s
        began_s = batch.elapsed_s(done) if done else 0.0
        if at_s - batch.start_s <= began_s:  # this very instant, at which the leap begins
            count, elapsed_s = done, began_s
        else:
            count, elapsed_s = batch.reaches(at_s - batch.start_s, done + planned)
        if count < done + planned:
            self._began_s = batch.start_s + elapsed_s
            count, elapsed_s = count + 1, batch.elapsed_s(count + 1)
        else:
            self._began_s = None
        self._leap = count - done
        return batch.start_s + elapsed_s

    def _schedule(self, now: float) -> int:
        scheduler, longest = self.scheduler, self.max_leap
        if self._lobby:
            self._let_in(self._last_began_s() if self._began_s is None else self._began_s)
            if self._lobby and (scheduler.by_priority or not scheduler.num_waiting):
                longest = 1
        if self._giving_up:
            longest = 1
        self._began_s = None
        leap = scheduler.schedule(longest)
        if scheduler.preempted:
            self._hold_up(now)
        if leap:
            if self._giving_up:
                self._drop_given_up()
        elif self._lobby or self._giving_up or scheduler.leaving or scheduler.preempted:
            self._drop_given_up()  # an empty step is over at once
            scheduler.finish(0)
            self._record_aborted()
            self._let_in(now)
            return self._schedule(now)
        return leap

    def _let_in(self, until_s: float) -> None:
        """Who came until then enters the queue."""
        lobby = self._lobby
        while lobby and lobby[0][0] <= until_s:
            self.scheduler.add(lobby.popleft()[1])
            self.in_lobby -= 1

    def _drop_given_up(self) -> None:
        for sequence in self._giving_up:
            self.scheduler.abort(sequence)
            self._aborted.append(sequence)
        self._giving_up.clear()

    def _last_began_s(self) -> float:
        """When the iteration began that has just ended, of a batch of decodes."""
        return self._batch.start_s + (self._batch.elapsed_s(self._done - 1) if self._done > 1 else 0.0)

    def _mixed_step(self, now: float) -> float:
        self._began_s = now
        return super()._mixed_step(now)
