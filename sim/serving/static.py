"""Static batching: groups that start and end together."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from sim.serving.scheduler import NOTHING, SEQUENCE_LIMIT
from sim.serving.sequence import DECODE, DONE, PREFILL, WAITING, Sequence


class StaticScheduler:
    """A group of *group_size* requests, or fewer after a wait, padded to its longest prompt.

    Nobody joins a group, and nobody's slot is free before its longest answer ends: ended sequences go
    on as padding. Each sequence holds one contiguous reservation of *reserved_blocks*, so memory may
    make groups smaller than asked. It is driven like `sim.serving.scheduler.Scheduler` and has the
    same outcome after `schedule`. A group that is not full starts only when *overdue* is set, which
    whoever has a clock does once the head of the queue has waited long enough.
    """

    caching: ClassVar[None] = None  # prompts are padded, and computed each

    def __init__(
        self, num_blocks: int, block_size: int, group_size: int, reserved_blocks: int, batch_wait_s: float
    ) -> None:
        self.num_blocks = self.free_blocks = num_blocks
        self.block_size = block_size
        self.group_size = min(group_size, num_blocks // reserved_blocks)
        self.reserved_blocks = reserved_blocks
        self.batch_wait_s = batch_wait_s
        self.overdue = False  # set by whoever has a clock, once the head has waited so long

        self.iteration = 0
        self.waiting: deque[Sequence] = deque()
        self.num_waiting = 0
        self.running: dict[Sequence, None] = {}
        self.discarded_tokens = self.preemptions = 0
        self.padded_tokens = 0  # prompt padding, and tokens of slots whose answer had ended
        self.idle_slot_steps = 0  # the latter alone

        self.chunks: list[tuple[Sequence, int, int]] = []
        self.decoding = 0
        self.context_tokens = 0
        self.preempted: list[Sequence] = []
        self.skipped: list[Sequence] = []
        self.held_by = NOTHING
        self.blocks_in_use = 0
        self.batch_changed = True
        self.stopping: list[Sequence] = []  # just read as far as their readers do
        self._group: list[Sequence] = []
        self._started = 0  # iteration of the group's prefill
        self._padded_prompt = 0
        self._aborting: list[Sequence] = []

    @property
    def most_context_tokens(self) -> int:
        """More than a step can read: padding may make a slot's context longer than its reservation."""
        return 2 * self.group_size * self.reserved_blocks * self.block_size

    def blocks_held(self) -> int:
        """By sequences that run."""
        return self.num_blocks - self.free_blocks

    def add(self, sequence: Sequence) -> bool:
        """Append *sequence* to the queue; returns whether a full group could start."""
        self.waiting.append(sequence)
        self.num_waiting += 1
        return not self._group and self.num_waiting == self.group_size

    def abort(self, sequence: Sequence) -> None:
        """Give *sequence* up: its slot idles until its group ends; where none runs, it leaves at once."""
        if not self._group:
            self._drop(sequence)
        elif sequence.state != DONE:
            self._aborting.append(sequence)

    def schedule(self, max_leap: int = 1) -> int:
        """Start a group or go on with the running one; returns for how many iterations that repeats."""
        self.chunks = []
        self.held_by = SEQUENCE_LIMIT if self.num_waiting and self._group else NOTHING
        if not self._group:
            self._start_group()
            return 1 if self._group else 0
        self.decoding = len(self._group)
        since = self.iteration + 1 - self._started
        self.context_tokens = self.decoding * (self._padded_prompt + since)
        next_end = min(s.finish_iteration for s in self.running)
        return min(next_end - self.iteration, max_leap)

    def _start_group(self) -> None:
        while self.waiting and self.waiting[0].state == DONE:
            self.waiting.popleft()
        self.decoding = self.context_tokens = 0
        if self.num_waiting < self.group_size and not self.overdue:
            return
        self.overdue = False
        while self.waiting and len(self._group) < self.group_size:
            sequence = self.waiting.popleft()
            if sequence.state == WAITING:
                self.num_waiting -= 1
                sequence.state = PREFILL
                self._group.append(sequence)
                self.running[sequence] = None
        if not self._group:
            return
        self._started = self.iteration + 1
        self._padded_prompt = longest = max(s.prompt_tokens for s in self._group)
        for sequence in self._group:
            sequence.computed = sequence.prompt_tokens
            self.padded_tokens += longest - sequence.prompt_tokens
            self.chunks.append((sequence, longest, 0))
        self.free_blocks -= len(self._group) * self.reserved_blocks

    def finish(self, iterations: int = 1) -> list[Sequence]:
        """End *iterations*: aborts first, then outputs; returns those that got their last token."""
        self.iteration = iteration = self.iteration + iterations
        self.blocks_in_use = self.num_blocks - self.free_blocks
        if iterations:
            self._count_idle(iterations)
        for sequence in self._aborting:
            self._drop(sequence)
        self._aborting = []
        finished = []
        for sequence in list(self.running):
            if sequence.state == PREFILL:
                sequence.generated = 1
                sequence.state = DECODE
                sequence.finish_iteration = iteration + (sequence.read_tokens or sequence.output_tokens) - 1
                self.batch_changed = True
            if sequence.finish_iteration <= iteration and sequence.read_tokens:
                sequence.finish_iteration += sequence.output_tokens - sequence.read_tokens
                sequence.read_tokens = 0
                self.stopping.append(sequence)
            if sequence.finish_iteration <= iteration:
                sequence.generated = sequence.output_tokens
                self._end(sequence)
                finished.append(sequence)
        if self._group and not self.running:
            self.free_blocks = self.num_blocks
            self._group = []
        return finished

    def _count_idle(self, iterations: int) -> None:
        if not self.chunks:
            idle = (len(self._group) - len(self.running)) * iterations
            self.idle_slot_steps += idle
            self.padded_tokens += idle

    def _drop(self, sequence: Sequence) -> None:
        if sequence.state == WAITING:
            self.num_waiting -= 1
            sequence.state = DONE
        elif sequence.state != DONE:
            since = self.iteration - self._started  # decodes, the one whose token is lost included
            sequence.computed = sequence.prompt_tokens + since
            sequence.generated = since
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        sequence.state = DONE
        del self.running[sequence]
        self.batch_changed = True
