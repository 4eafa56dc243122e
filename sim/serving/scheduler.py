"""vLLM V1's scheduler, counted instead of walked.

A step of the engine costs O(1) plus the sequences that come, go or are preempted in it: decoding
sequences are counted (`sim.serving.decoding`), prefills and the queue's head are looked at.

The engine walks its running list until the token budget ends, so it could end before a decode. It
never does: a sequence is admitted only with budget left after everybody ahead has had theirs, nobody
asks for more than in the step before, and the one exception, a prefill that the budget cut short, is
the last of the list. So everybody decodes in every step, and the last prefill takes what is left.
Where blocks run short and counting cannot say who gets which, the list is walked (`sim.serving.walk`).
"""

from __future__ import annotations

from sim.serving.prefix_cache import NO_HIT
from sim.serving.reservation import Reservation
from sim.serving.running import Running
from sim.serving.sequence import DECODE, DONE, PREFILL, Sequence
from sim.serving.walk import walk

# What kept the head of the queue waiting after a schedule.
NOTHING, TOKEN_BUDGET, SEQUENCE_LIMIT, KV_BLOCKS, PREEMPTION, RESERVED_TOKENS = range(6)
HELD_BY = ("nothing", "token_budget", "sequence_limit", "kv_blocks", "preemption", "reserved_tokens")


class Scheduler(Running):
    """First come, first served or *by_priority*; decode first; chunked prefill in one budget; recompute.

    *num_blocks* counts the usable KV blocks (the engine's null block excluded). The engine reserves
    nothing for answers; with a *reservation* admission does. *prefix_caching* keeps the content of blocks
    that were given back. *watermark_blocks* stay free of new sequences while others run. Whoever preempts
    itself ends the step for those behind it where *self_preemption_ends_step* (vLLM 0.32), which only
    priorities show. Without *chunked_prefill* a prompt waits for a step with room for all of it. An
    *asynchronous* engine forms a step before it has the outputs of the one before: whoever ended in that
    keeps slot and blocks until the next `finish`. The order of calls is the engine's: `add` and `abort` at
    any time, then `schedule`, then `finish`, which applies aborts before outputs.

    After `schedule`: *chunks* holds (sequence, new tokens, tokens cached before) of each prefill in
    the step, *decoding* and *context_tokens* the decodes in it and the KV tokens that they read,
    *preempted* the sequences that lost this step and all they had, *skipped* those that lost this step
    alone, *held_by* why the queue's head stayed there.
    """

    __slots__ = ()

    # -- from outside ------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> bool:
        """*sequence* enters the queue; returns whether it might be in the next batch."""
        self.waiting.append(sequence)
        self.num_waiting = waiting = self.num_waiting + 1
        return (
            (waiting == 1 or self.waiting[0] is sequence)
            and len(self.running) - len(self.leaving) < self.max_num_seqs
            and self.num_decode < self.max_num_batched_tokens
        )

    def abort(self, sequence: Sequence) -> None:
        """Give *sequence* up: its blocks are free when the iteration in progress ends.

        One that is done already is left alone.
        """
        if sequence.state != DONE:
            self._aborting.append(sequence)

    # -- a step ------------------------------------------------------------------------------------

    def schedule(self, max_leap: int = 1) -> int:
        """Form the next batch; returns for how many iterations it repeats if nobody comes or leaves.

        At most *max_leap*; 0, and an empty batch, when there is no work.
        """
        iteration = self.iteration + 1
        if self.chunks:
            self.chunks = []
        decodes = self.num_decode
        budget = self.max_num_batched_tokens - decodes
        need = self.opening[iteration % self.block_size]
        if need > self.free_blocks or self._irregular:
            budget = self._schedule_running(iteration, budget, need)
        else:
            self.free_blocks -= need
            self.decoding = decodes
            self.context_tokens = decodes * iteration + self.origins
        if self.caching is not None and self.caching.crowded:
            self.caching.catch_up(iteration)
            max_leap = 1
        if self.num_waiting:
            if not self.preempted:
                self._admit(iteration, budget)
        elif self.held_by:
            self.held_by = NOTHING
        if self.chunks or self._irregular:
            return 1 if self.decoding or self.chunks else 0
        if self.num_waiting and self._may_admit_soon():
            max_leap = 1
        return self.repeats(iteration, self.free_blocks, max_leap) if decodes else 0

    def _may_admit_soon(self) -> bool:
        """Whether the head of the queue may be admitted though nobody comes or ends in the next step."""
        if self.leaving:
            return True
        grows = self.caching is not None and self.caching.answers_grow(self.waiting[0])
        return grows and self.held_by == KV_BLOCKS

    def finish(self, iterations: int = 1) -> list[Sequence]:
        """End *iterations* repetitions of the batch: aborts first, then outputs.

        Returns the sequences that finished with their last token. Sequences whose prefill is
        complete have got a token and decode from now on.
        """
        if iterations > 1:  # the first iteration's blocks were taken by `schedule`
            if self.leaving:
                self._release_leaving()
            self.free_blocks -= self.opened(self.iteration + 2, iterations - 1)
        self.iteration = iteration = self.iteration + iterations
        self.blocks_in_use = self.num_blocks - self.free_blocks
        if self._aborting:
            self._drop_aborted()
        if self.leaving:
            self._release_leaving()
        finishing = self.finishing
        finished = self.due(iteration) if finishing and finishing[0][0] <= iteration else []
        for sequence in finished:
            sequence.generated = sequence.output_tokens
            sequence.computed = computed = sequence.origin + iteration
            sequence.blocks = -(-computed // self.block_size)
        for sequence, _, _ in self.chunks:
            length = sequence.prompt_tokens + sequence.generated
            if sequence.computed == length and sequence.state == PREFILL:
                sequence.generated += 1
                if sequence.generated < sequence.output_tokens:
                    self.start(sequence, length - iteration, iteration)
                else:
                    finished.append(sequence)
        if finished:
            self._end(finished)
        return finished

    # -- running sequences -------------------------------------------------------------------------

    def _schedule_running(self, iteration: int, budget: int, need: int) -> int:
        """Give running sequences tokens and blocks where not everybody simply decodes on.

        *budget* is what the decodes leave of it, *need* the blocks that they take; returns the
        budget that is left for the queue.
        """
        if self.preempted:
            self.preempted, self.skipped = [], []
        threshold = self.threshold()
        for sequence in self._prefilling:
            new = self.chunk(sequence, budget, threshold)
            if new:
                self.chunks.append((sequence, new, sequence.computed))
                budget -= new
                need += -(-(sequence.computed + new) // self.block_size) - sequence.blocks
        if need > self.free_blocks and (self.by_priority or (self.caching is not None and self.chunks)):
            budget = walk(self, iteration)
        else:
            while need > self.free_blocks:
                need -= self._preempt_last(iteration)
            self.free_blocks -= need
        for sequence, new, _ in self.chunks:
            self._advance(sequence, new)
        if self.skipped:
            self._prefilling = {s: None for s in self.running if self._has_prompt(s)}
        self.decoding = self.num_decode
        self.context_tokens = self.num_decode * iteration + self.origins
        self.held_by = PREEMPTION if self.preempted else NOTHING
        self._irregular = bool(self._prefilling or self.preempted)
        return budget

    def _preempt_last(self, iteration: int) -> int:
        """The last admitted gives its blocks back and returns to the front of the queue.

        Returns how many blocks it would have taken in this step.
        """
        victim = next(reversed(self.running))
        spared = 0
        if victim.state == DECODE:
            spared = 1 if (victim.origin + iteration - 1) % self.block_size == 0 else 0
        elif self.chunks and self.chunks[-1][0] is victim:
            _, new, _ = self.chunks.pop()
            spared = -(-(victim.computed + new) // self.block_size) - victim.blocks
        if self.caching is not None:
            self.caching.blocks.settle(0)  # whoever is short of a block has seen the last one go
        self.preempt(victim, iteration)
        return spared

    # -- waiting sequences -------------------------------------------------------------------------

    def _admit(self, iteration: int, budget: int) -> None:
        """Admit from the head of the queue until something is short; nobody passes the head."""
        waiting, running, size, caching = self.waiting, self.running, self.block_size, self.caching
        threshold = self.threshold() if self.long_prefill_token_threshold else 0
        self.held_by = NOTHING
        while self.num_waiting:
            sequence = waiting[0]
            if sequence.state == DONE:
                waiting.popleft()
                continue
            if len(running) >= self.max_num_seqs:
                self.held_by = SEQUENCE_LIMIT
                return
            if budget <= 0:
                self.held_by = TOKEN_BUDGET
                return
            length = sequence.prompt_tokens + sequence.generated
            hit, held, spare = NO_HIT, 0, self.free_blocks
            if caching is not None and sequence.content is not None:
                hit = caching.find(sequence, iteration, spare)
                held, spare = hit.blocks, spare - hit.free_blocks
            cached = held * size
            new = length - cached
            if 0 < threshold < new:
                new = threshold
            if new > budget:
                if not self.chunked_prefill:
                    self.held_by = TOKEN_BUDGET
                    return
                new = budget
            need = -(-(cached + new) // size) - held
            known = -(-length // size) - held if self.reserve_full_isl else need
            if known > spare or (self.watermark_blocks and running and known + self.watermark_blocks > spare):
                self.held_by = KV_BLOCKS
                return
            if self.reservation is not None and not self._promise(sequence, self.reservation):
                return
            waiting.popleft()
            self.num_waiting -= 1
            self.free_blocks = spare - need
            budget -= new
            running[sequence] = None
            sequence.state = PREFILL
            sequence.computed = cached + new
            sequence.blocks = need + held
            if caching is not None:
                self.admissions = sequence.admission = self.admissions + 1
                if sequence.content is not None:
                    caching.admit(sequence, hit)
            if cached + new < length:
                self._prefilling[sequence] = None
                self._irregular = True
            self.chunks.append((sequence, new, cached))

    def _promise(self, sequence: Sequence, reservation: Reservation) -> bool:
        """Set aside what *sequence* is to be promised, if there is so much."""
        if not reservation.has_tokens(sequence):
            self.held_by = RESERVED_TOKENS
            return False
        if not reservation.has_blocks(sequence):
            self.held_by = KV_BLOCKS
            return False
        reservation.take(sequence)
        return True
