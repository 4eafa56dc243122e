"""The sequences that run, and what they hold: slots, tokens, blocks.

How sequences come to run, lose what they have and leave; who does so when is the scheduler's business.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from sim.serving.caching import Caching
from sim.serving.decoding import Decoding
from sim.serving.priorities import PriorityQueue
from sim.serving.reservation import Reservation
from sim.serving.sequence import DECODE, DONE, LEAVING, PREFILL, WAITING, Sequence


class Running(Decoding):
    """The running sequences in order of admission, the queue behind them, and a pool of blocks.

    See `sim.serving.scheduler.Scheduler` for what the parameters mean and which fields tell of a step.
    """

    # A continuous batch pads nothing and leaves no slot idle (see `static`).
    padded_tokens: ClassVar[int] = 0
    idle_slot_steps: ClassVar[int] = 0

    __slots__ = (
        "_aborting",
        "_irregular",
        "_prefilling",
        "admissions",
        "asynchronous",
        "blocks_in_use",
        "by_priority",
        "caching",
        "chunked_prefill",
        "chunks",
        "context_tokens",
        "decoding",
        "discarded_tokens",
        "free_blocks",
        "held_by",
        "iteration",
        "leaving",
        "long_prefill_token_threshold",
        "max_num_batched_tokens",
        "max_num_seqs",
        "num_blocks",
        "num_waiting",
        "preempted",
        "preemptions",
        "reservation",
        "reserve_full_isl",
        "running",
        "self_preemption_ends_step",
        "skipped",
        "waiting",
        "watermark_blocks",
    )

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
        chunked_prefill: bool = True,
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
        self.chunked_prefill = chunked_prefill
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
        self.held_by = 0
        self._prefilling: dict[Sequence, None] = {}  # running, prompt not yet computed, in order
        self._irregular = False  # a prefill goes on, or somebody was preempted
        self._aborting: list[Sequence] = []
        self.leaving: list[Sequence] = []

    def blocks_held(self) -> int:
        """By sequences that run and have not ended."""
        held = self.num_blocks - self.free_blocks
        return held - sum(s.blocks for s in self.leaving) if self.leaving else held

    def scheduled_tokens(self) -> dict[Sequence, int]:
        """The step's tokens by sequence, in running order. For people and tests: O(running)."""
        chunks = {sequence: new for sequence, new, _ in self.chunks}
        tokens = {s: 1 if s.state == DECODE else chunks.get(s, 0) for s in self.running}
        return {sequence: count for sequence, count in tokens.items() if count}

    def threshold(self) -> int:
        """The cap on a prefill's tokens in this step, 0 for none: a lone request is never capped."""
        alone = len(self.running) + self.num_waiting <= 1
        return 0 if alone else self.long_prefill_token_threshold

    def chunk(self, sequence: Sequence, budget: int, threshold: int) -> int:
        """Tokens of its prompt that *sequence* computes in a step, with so much *budget* left."""
        new = sequence.prompt_tokens + sequence.generated - sequence.computed
        if 0 < threshold < new:
            new = threshold
        return min(new, budget)

    # -- computing ---------------------------------------------------------------------------------

    def take(self, sequence: Sequence, blocks: int, computed_tokens: int) -> None:
        """*sequence* takes *blocks* to compute up to *computed_tokens* in this step."""
        self.free_blocks -= blocks
        if self.caching is not None:
            self.caching.compute(sequence, computed_tokens, self.iteration + 1, self.free_blocks)

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

    def _has_prompt(self, sequence: Sequence) -> bool:
        """Whether *sequence* still has something to compute before it can decode."""
        return sequence.state == PREFILL and sequence.computed < sequence.prompt_tokens + sequence.generated

    # -- losing a step -----------------------------------------------------------------------------

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
            self.requeue(victim)
            self.num_waiting += 1
        victim.blocks = 0
        self.preempted.append(victim)

    def requeue(self, victim: Sequence) -> None:
        """*victim* waits again: at the front of the queue, or in its place by priority."""
        self.waiting.appendleft(victim)

    def pause(self, sequence: Sequence, iteration: int) -> None:
        """*sequence* does not decode in *iteration*: what it has is written down."""
        self.stop(sequence)
        sequence.computed = sequence.origin + iteration - 1
        sequence.blocks = -(-sequence.computed // self.block_size)
        sequence.generated = sequence.computed + 1 - sequence.prompt_tokens
        sequence.state = PREFILL

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
