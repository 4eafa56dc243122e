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

from collections import deque
from typing import ClassVar

from sim.serving.caching import Caching
from sim.serving.decoding import Decoding
from sim.serving.prefix_cache import NO_HIT
from sim.serving.priorities import PriorityQueue
from sim.serving.reservation import Reservation
from sim.serving.sequence import DECODE, DONE, LEAVING, PREFILL, WAITING, Sequence
from sim.serving.walk import walk

# What kept the head of the queue waiting after a schedule.
NOTHING, TOKEN_BUDGET, SEQUENCE_LIMIT, KV_BLOCKS, PREEMPTION, RESERVED_TOKENS = range(6)
HELD_BY = ("nothing", "token_budget", "sequence_limit", "kv_blocks", "preemption", "reserved_tokens")


class Scheduler(Decoding):
    """First come, first served or *by_priority*; decode first; chunked prefill in one budget; recompute.

    *num_blocks* counts the usable KV blocks (the engine's null block excluded). The engine reserves
    nothing for answers; with a *reservation* admission does. *prefix_caching* keeps the content of blocks
    that were given back. *watermark_blocks* stay free of new sequences while others run. The order of
    calls is the engine's: `add` and `abort` at any time, then `schedule`, then `finish`, which applies
    aborts before outputs. An *asynchronous* engine forms a step before it has the outputs of the one
    before: whoever ended in that keeps slot and blocks until the next `finish`.

    After `schedule`: *chunks* holds (sequence, new tokens, tokens cached before) of each prefill in
    the step, *decoding* and *context_tokens* the decodes in it and the KV tokens that they read,
    *preempted* the sequences that lost this step and all they had, *skipped* those that lost this step
    alone, *held_by* why the queue's head stayed there.
    """

    # A continuous batch pads nothing and leaves no slot idle (see `static`).
    padded_tokens: ClassVar[int] = 0
    idle_slot_steps: ClassVar[int] = 0

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        long_prefill_token_threshold: int = 0,
        reserve_full_isl: bool = True,
        reservation: Reservation | None = None,
        *,
        by_priority: bool = False,
        prefix_caching: bool = False,
        asynchronous: bool = False,
        watermark_blocks: int = 0,
        self_preemption_ends_step: bool = True,
    ) -> None:
        super().__init__(block_size)
        self.num_blocks = num_blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.reserve_full_isl = reserve_full_isl
        self.reservation = reservation
        self.by_priority = by_priority
        self.asynchronous = asynchronous
        self.watermark_blocks = watermark_blocks
        self.self_preemption_ends_step = self_preemption_ends_step
        self.caching = Caching(num_blocks, block_size, asynchronous) if prefix_caching else None

        self.iteration = 0
        self.admissions = 0
        self.free_blocks = num_blocks
        self.blocks_in_use = 0  # in the last iteration that ended, before anybody left
        # Aborted sequences stay in the queue until they reach its head.
        self.waiting: deque[Sequence] | PriorityQueue = PriorityQueue() if by_priority else deque()
        self.num_waiting = 0
        self.running: dict[Sequence, None] = {}  # in order of admission
        self.discarded_tokens = 0  # in the KV cache, then lost to preemption
        self.preemptions = 0

        self.chunks: list[tuple[Sequence, int, int]] = []
        self.decoding = 0
        self.context_tokens = 0
        self.preempted: list[Sequence] = []
        self.skipped: list[Sequence] = []
        self.held_by = NOTHING
        self._prefilling: dict[Sequence, None] = {}  # running, prompt not yet computed, in order
        self._irregular = False  # a prefill goes on, or somebody was preempted
        self._aborting: list[Sequence] = []
        self.leaving: list[Sequence] = []

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

    def blocks_held(self) -> int:
        """By sequences that run and have not ended."""
        held = self.num_blocks - self.free_blocks
        return held - sum(s.blocks for s in self.leaving) if self.leaving else held

    def scheduled_tokens(self) -> dict[Sequence, int]:
        """The step's tokens by sequence, in running order. For people and tests: O(running)."""
        chunks = {sequence: new for sequence, new, _ in self.chunks}
        tokens = {s: 1 if s.state == DECODE else chunks.get(s, 0) for s in self.running}
        return {sequence: count for sequence, count in tokens.items() if count}

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

    def threshold(self) -> int:
        """The cap on a prefill's tokens in this step, 0 for none: a lone request is never capped."""
        alone = len(self.running) + self.num_waiting <= 1
        return 0 if alone else self.long_prefill_token_threshold

    def chunk(self, sequence: Sequence, budget: int, threshold: int) -> int:
        new = sequence.prompt_tokens + sequence.generated - sequence.computed
        if 0 < threshold < new:
            new = threshold
        return min(new, budget)

    def _has_prompt(self, sequence: Sequence) -> bool:
        """Whether *sequence* still has something to compute before it can decode."""
        return sequence.state == PREFILL and sequence.computed < sequence.prompt_tokens + sequence.generated

    def _advance(self, sequence: Sequence, new: int) -> None:
        """*sequence* computes *new* more tokens of its prompt in this step."""
        sequence.computed += new
        sequence.blocks = -(-sequence.computed // self.block_size)
        if self.caching is not None:
            self.caching.compute(sequence, sequence.computed, self.iteration + 1, self.free_blocks)
        if sequence.computed == sequence.prompt_tokens + sequence.generated:
            self._prefilling.pop(sequence, None)
        else:
            self._prefilling[sequence] = None

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

    def preempt(self, victim: Sequence, iteration: int, tokens: int = 0, blocks: int = 0) -> None:
        """*victim* loses all it has before *iteration* and waits again.

        So it does with the *tokens* and *blocks* that it was given in *iteration* itself.
        """
        del self.running[victim]
        if victim.state == DECODE:
            self.pause(victim, iteration)
        victim.blocks += blocks
        self._prefilling.pop(victim, None)
        if self.reservation is not None:
            self.reservation.give_back(victim)
        freed = victim.blocks
        if self.caching is not None:
            freed = self.caching.preempt(victim, self.free_blocks, tokens)
        self.free_blocks += freed
        self.preemptions += 1
        if victim.state == LEAVING:  # its last token is on its way
            self.leaving.remove(victim)
            victim.state = DONE
        else:
            self.discarded_tokens += victim.computed
            victim.computed = 0
            victim.state = WAITING
            self.waiting.appendleft(victim)
            self.num_waiting += 1
        victim.blocks = 0
        self.preempted.append(victim)

    def take(self, sequence: Sequence, blocks: int, computed_tokens: int) -> None:
        """*sequence* takes *blocks* to compute up to *computed_tokens* in this step."""
        self.free_blocks -= blocks
        if self.caching is not None:
            self.caching.compute(sequence, computed_tokens, self.iteration + 1, self.free_blocks)

    def pause(self, sequence: Sequence, iteration: int) -> None:
        """*sequence* does not decode in *iteration*: what it has is written down."""
        self.stop(sequence)
        sequence.computed = sequence.origin + iteration - 1
        sequence.blocks = -(-sequence.computed // self.block_size)
        sequence.generated = sequence.computed + 1 - sequence.prompt_tokens
        sequence.state = PREFILL

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

    # -- leaving -----------------------------------------------------------------------------------

    def _drop_aborted(self) -> None:
        """Take aborted sequences out, in whatever state they are."""
        for sequence in self._aborting:
            if sequence.state == WAITING:
                self.num_waiting -= 1
                sequence.state = DONE
            elif sequence.state != DONE:
                if sequence.state == DECODE:
                    self.pause(sequence, self.iteration + 1)
                    # The token of this iteration is lost, and one that is on its way.
                    sequence.generated = max(sequence.generated - 1 - self.asynchronous, 0)
                elif sequence.state == LEAVING:
                    self.leaving.remove(sequence)
                    sequence.generated -= 1
                else:
                    self._prefilling.pop(sequence, None)
                self._release(sequence, in_flight=True)
        self._aborting = []

    def _end(self, finished: list[Sequence]) -> None:
        """These have their last token; they leave in the order in which they run."""
        if self.caching is not None and len(finished) > 1:
            finished.sort(key=lambda sequence: sequence.admission)
        if self.asynchronous:
            self.leaving = finished
            for sequence in finished:
                sequence.state = LEAVING
        else:
            for sequence in finished:
                self._release(sequence)

    def _release_leaving(self) -> None:
        for sequence in self.leaving:
            self._release(sequence)
        self.leaving = []

    def _release(self, sequence: Sequence, in_flight: bool = False) -> None:
        """*sequence* is done; where its last step's token is *in_flight*, it is lost."""
        del self.running[sequence]
        if self.reservation is not None:
            self.reservation.give_back(sequence)
        freed, caching = sequence.blocks, self.caching
        if caching is not None and (sequence.content is not None or caching.blocks.cached_blocks):
            freed = caching.leave(sequence, self.free_blocks, in_flight)
        self.free_blocks += freed
        sequence.blocks = 0
        sequence.state = DONE
