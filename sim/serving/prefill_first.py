"""Prompts first, in steps of their own, whole or in chunks: vLLM V0 without chunked prefill, and others.

Decoding sequences stand still while a prompt is computed, so *iteration* counts the steps of decodes alone:
on that clock everybody decodes in every iteration, and all that `sim.serving.decoding` counts holds.
"""

from __future__ import annotations

from collections import deque

from sim.serving.prefix_cache import NO_HIT, Hit
from sim.serving.reservation import Reservation
from sim.serving.scheduler import (
    KV_BLOCKS,
    NOTHING,
    PREEMPTION,
    RESERVED_TOKENS,
    SEQUENCE_LIMIT,
    TOKEN_BUDGET,
    Scheduler,
)
from sim.serving.sequence import DECODE, DONE, PREFILL, Sequence


class PrefillFirstScheduler(Scheduler):
    """First come, first served; a step is prompts, up to the token budget, or all decodes; recompute.

    With *chunked_prefill* the budget cuts the last prompt, which goes on first in the next step. Of
    *num_blocks*, *watermark_blocks* stay free of every prompt that is admitted; a prompt takes all its blocks
    then. A prompt that could never be admitted is dropped when it is the head of the queue, and listed in
    *ignored*. *prefix_caching* and an *asynchronous* engine are as in `Scheduler`. *resuming* says that the
    step in progress is the first after a step of prompts: the decodes in it have waited for that.
    """

    SPARE_BLOCKS = 1
    """Blocks that must be free beyond those that a step of decodes takes: each looks for one in its turn."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        watermark_blocks: int = 0,
        reservation: Reservation | None = None,
        *,
        chunked_prefill: bool = False,
        prefix_caching: bool = False,
        asynchronous: bool = False,
    ) -> None:
        super().__init__(
            num_blocks,
            block_size,
            max_num_seqs,
            max_num_batched_tokens,
            reservation=reservation,
            watermark_blocks=watermark_blocks,
            chunked_prefill=chunked_prefill,
            prefix_caching=prefix_caching,
            asynchronous=asynchronous,
        )
        self.ignored: list[Sequence] = []
        self.resuming = False
        self._stood_still = False  # decodes did, in the last step

    def add(self, sequence: Sequence) -> bool:
        """*sequence* enters the queue; returns whether it might be in the next batch."""
        super().add(sequence)
        return self.num_waiting == 1 and len(self.running) - len(self.leaving) < self.max_num_seqs

    def scheduled_tokens(self) -> dict[Sequence, int]:
        """The step's tokens by sequence, in running order. For people and tests: O(running)."""
        if self.chunks:
            return {sequence: new for sequence, new, _ in self.chunks}
        return super().scheduled_tokens() if self.decoding else {}

    def schedule(self, max_leap: int = 1) -> int:
        """Form the next batch; returns for how many iterations it repeats if nobody comes or leaves."""
        if self.chunks:
            self.chunks = []
        if self.preempted:
            self.preempted = []
        self.held_by = NOTHING
        budget = self._go_on(self.max_num_batched_tokens)
        if self.num_waiting:
            self._admit(self.iteration, budget)  # in a step of prompts nobody else computes a token
        self.resuming = False
        if self.chunks:
            self._stood_still = self._stood_still or self.num_decode > 0
            self.decoding = self.context_tokens = 0
            return 1
        return self._decode(self.iteration + 1, max_leap) if self.running else self._rest()

    def _go_on(self, budget: int) -> int:
        """Give the prompt that a budget has cut its next chunk; returns the budget that is left."""
        for sequence in list(self._prefilling):
            cached, new = sequence.computed, self.chunk(sequence, budget, 0)
            sequence.computed += new
            self.chunks.append((sequence, new, cached))
            budget -= new
            if self.caching is not None:
                self.caching.compute(sequence, sequence.computed, self.iteration, self.free_blocks)
            if not self._has_prompt(sequence):
                del self._prefilling[sequence]
        return budget

    def _rest(self) -> int:
        self.decoding = self.context_tokens = 0
        return 0

    def _decode(self, iteration: int, max_leap: int) -> int:
        """Everybody decodes in *iteration*; returns for how many."""
        self.resuming, self._stood_still = self._stood_still, False
        need = self.opening[iteration % self.block_size]
        if need + self.SPARE_BLOCKS <= self.free_blocks:
            self.free_blocks -= need
        else:
            self._make_room(iteration, need)
        if self.caching is not None and self.caching.crowded:
            self.caching.catch_up(iteration)
            max_leap = 1
        self.decoding = self.num_decode
        self.context_tokens = self.num_decode * iteration + self.origins
        if self.preempted:
            self.held_by = PREEMPTION
            return 1 if self.decoding else 0
        if not self.decoding:  # all that run have ended
            return 0
        if self.resuming or self.free_blocks < self.SPARE_BLOCKS or (self.leaving and self.num_waiting):
            return 1
        return self.repeats(iteration, self.free_blocks - self.SPARE_BLOCKS, max_leap)

    def _make_room(self, iteration: int, need: int) -> None:
        """Each in its turn must find a free block, needed or not; else the last admitted loses its own."""
        queue = deque(sequence for sequence in self.running if sequence.state == DECODE)
        while queue:
            sequence = queue.popleft()
            while not self.free_blocks:
                victim = queue.pop() if queue else sequence
                self.preempt(victim, iteration)
                if victim is sequence:
                    break
            else:
                self.free_blocks -= (sequence.origin + iteration - 1) % self.block_size == 0

    def _admit(self, iteration: int, budget: int) -> None:
        """Take prompts from the head of the queue until something is short; *iteration* is the last one."""
        size, caching = self.block_size, self.caching
        while self.num_waiting:
            sequence = self.waiting[0]
            if sequence.state == DONE:
                self.waiting.popleft()
                continue
            length = sequence.prompt_tokens + sequence.generated
            if self._never_fits(length):
                self._ignore(sequence)
                continue
            hit, spare = NO_HIT, self.free_blocks
            if caching is not None and sequence.content is not None:
                hit = caching.find(sequence, iteration, spare)
                spare -= hit.free_blocks
            missing, need = length - hit.blocks * size, -(-length // size) - hit.blocks
            self.held_by = self._short_of(sequence, need, missing, budget, spare)
            if self.held_by:
                return
            self._begin(sequence, min(missing, budget), hit, spare - need)
            budget -= min(missing, budget)

    def _never_fits(self, length: int) -> bool:
        """Whether a prompt of *length* tokens could not even be admitted to an empty engine."""
        too_long = length > self.max_num_batched_tokens and not self.chunked_prefill
        return too_long or -(-length // self.block_size) > self.num_blocks - self.watermark_blocks

    def _begin(self, sequence: Sequence, new: int, hit: Hit, free_blocks: int) -> None:
        """*sequence*, the queue's head, computes *new* tokens after its *hit*; *free_blocks* are left."""
        length, cached = sequence.prompt_tokens + sequence.generated, hit.blocks * self.block_size
        if self.reservation is not None:
            self.reservation.take(sequence)
        self.waiting.popleft()
        self.num_waiting -= 1
        self.free_blocks = free_blocks
        self.running[sequence] = None
        sequence.state = PREFILL
        sequence.computed = cached + new
        sequence.blocks = -(-length // self.block_size)
        if self.caching is not None:
            self.admissions = sequence.admission = self.admissions + 1
            if sequence.content is not None:
                self.caching.admit(sequence, hit)
        if sequence.computed < length:
            self._prefilling[sequence] = None
        self.chunks.append((sequence, new, cached))

    def _short_of(self, sequence: Sequence, need: int, missing: int, budget: int, spare: int) -> int:
        """What *sequence*, which takes *need* of *spare* blocks to compute *missing* tokens, waits for."""
        if need + self.watermark_blocks > spare:
            return KV_BLOCKS
        if len(self.running) >= self.max_num_seqs:
            return SEQUENCE_LIMIT
        if budget < (1 if self.chunked_prefill else missing):
            return TOKEN_BUDGET
        if self.reservation is not None:
            if not self.reservation.has_tokens(sequence):
                return RESERVED_TOKENS
            if not self.reservation.has_blocks(sequence):
                return KV_BLOCKS
        return NOTHING

    def _ignore(self, sequence: Sequence) -> None:
        self.waiting.popleft()
        self.num_waiting -= 1
        sequence.state = DONE
        self.ignored.append(sequence)

    def finish(self, iterations: int = 1) -> list[Sequence]:
        """End *iterations* repetitions of the batch: aborts first, then outputs.

        A step of prompts is no iteration of the decodes.
        """
        finished = super().finish(0 if self.chunks else iterations)
        if self.resuming:
            self.batch_changed = True  # what follows waits for no prompt
        return finished

    def _drop_aborted(self) -> None:
        """Take aborted sequences out; a step of prompts loses no token of a decode."""
        standing = [s for s in self._aborting if s.state == DECODE] if self.chunks else []
        super()._drop_aborted()
        for sequence in standing:
            sequence.generated += 1
