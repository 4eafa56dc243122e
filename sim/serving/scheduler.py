"""vLLM V1's first-come-first-served scheduler, counted instead of walked.

One step of the engine costs O(1) plus the sequences that come, go or are preempted in it:

* every decoding sequence gets one token a step, so their number and the sum of their lengths say
  what a step costs, and both are kept by arithmetic on the iteration number;
* the iteration at which a sequence ends is known when it starts to decode (`_finishing`);
* it takes a block every ``block_size`` iterations at a fixed phase (`_opening`).

What counters cannot carry (a token budget that ends inside the running list) is walked in order by
`_schedule_in_order`, exactly as the engine does.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from sim.serving.sequence import DECODE, DONE, PREFILL, WAITING, Sequence

# What kept the head of the queue waiting after a schedule.
NOTHING, TOKEN_BUDGET, SEQUENCE_LIMIT, KV_BLOCKS, PREEMPTION = range(5)
HELD_BY = ("nothing", "token_budget", "sequence_limit", "kv_blocks", "preemption")


class Scheduler:
    """First come, first served; decode first; chunked prefill in one token budget; recompute.

    *num_blocks* counts the usable KV blocks (the engine's null block excluded). The order of calls
    is the engine's: `add` and `abort` at any time, then `schedule`, then `finish`, which applies
    aborts before outputs.

    After `schedule`: *chunks* holds (sequence, new tokens, tokens cached before) of each prefill in
    the step, *decoding* and *context_tokens* the decodes in it and the KV tokens that they read,
    *preempted* and *skipped* the sequences that lost this step, *held_by* why the queue's head
    stayed there, and *leap* for how many iterations this very batch will repeat if nobody arrives
    or leaves.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        long_prefill_token_threshold: int = 0,
        reserve_full_isl: bool = True,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.long_prefill_token_threshold = long_prefill_token_threshold
        self.reserve_full_isl = reserve_full_isl

        self.iteration = 0
        self.free_blocks = num_blocks
        self.waiting: deque[Sequence] = deque()  # aborted ones stay until they reach the head
        self.num_waiting = 0
        self.running: dict[Sequence, None] = {}  # in order of admission
        self.discarded_tokens = 0  # computed, then lost to preemption
        self.preemptions = 0

        self._prefilling: dict[Sequence, None] = {}  # running, prompt not yet computed, in order
        self._num_decode = 0
        self._origins = 0  # sum of the origins of decoding sequences
        # Counters of the decoding sequences, none of which is touched while it decodes.
        self._opening = [0] * block_size  # iteration modulo block_size -> sequences that take a block
        self._finishing: list[tuple[int, int, Sequence]] = []  # heap; stale entries are dropped late
        self._serial = 0
        self._aborting: list[Sequence] = []
        self._disturbed = False  # somebody was preempted or skipped in the step

        self.chunks: list[tuple[Sequence, int, int]] = []
        self.decoding = 0
        self.context_tokens = 0
        self.preempted: list[Sequence] = []
        self.skipped: list[Sequence] = []
        self.held_by = NOTHING
        self.leap = 0
        self.blocks_in_use = 0  # in the last iteration that ended, before anybody left
        self.batch_changed = True  # some sequence began or stopped decoding since this was last reset

    # -- from outside ------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Append *sequence* to the queue."""
        self.waiting.append(sequence)
        self.num_waiting += 1

    def abort(self, sequence: Sequence) -> None:
        """Give *sequence* up: its blocks are free when the iteration in progress ends.

        One that is done already is left alone.
        """
        if sequence.state != DONE:
            self._aborting.append(sequence)

    def may_admit(self) -> bool:
        """Whether a sequence that joins an empty queue now could be in the next batch."""
        return (
            self.num_waiting <= 1
            and len(self.running) < self.max_num_seqs
            and self._num_decode < self.max_num_batched_tokens
        )

    def scheduled_tokens(self) -> dict[Sequence, int]:
        """The step's tokens by sequence, in running order. For people and tests: O(running)."""
        chunks = {sequence: new for sequence, new, _ in self.chunks}
        skipped = set(self.skipped)
        tokens = {s: 1 for s in self.running if s.state == DECODE and s not in skipped}
        return {s: chunks.get(s, tokens.get(s, 0)) for s in self.running if s in chunks or s in tokens}

    # -- a step ------------------------------------------------------------------------------------

    def schedule(self, max_leap: int = 1) -> bool:
        """Form the next batch; False (and an empty batch) when there is no work."""
        iteration = self.iteration + 1
        decodes = self._num_decode
        budget = self.max_num_batched_tokens - decodes
        threshold = self.long_prefill_token_threshold
        if threshold and len(self.running) + self.num_waiting <= 1:
            threshold = 0  # a lone request is never capped
        self.chunks = []
        self.held_by = NOTHING
        need = self._opening[iteration % self.block_size]
        if self._prefilling or budget < 0 or need > self.free_blocks or self._disturbed:
            budget = self._schedule_running(iteration, threshold)
            decodes = self._num_decode - len(self.skipped)
        else:
            self.free_blocks -= need
        self.decoding = decodes
        self.context_tokens = decodes * iteration + self._origins
        if self.skipped:
            self.context_tokens -= sum(s.origin for s in self.skipped)
        if self.preempted:
            self.held_by = PREEMPTION
        elif self.num_waiting:
            self._admit(budget, threshold)
        if self.chunks or self._prefilling or self._disturbed:
            self.leap = 1
            return decodes > 0 or len(self.chunks) > 0
        self.leap = self._repeats(iteration, max_leap) if decodes else 0
        return decodes > 0

    def finish(self, iterations: int = 1) -> list[Sequence]:
        """End *iterations* repetitions of the batch: aborts first, then outputs.

        Returns the sequences that finished with their last token. Sequences whose prefill is
        complete have got a token and decode from now on.
        """
        if iterations > 1:  # the first iteration's blocks were taken by `schedule`
            self.free_blocks -= self._opened(self.iteration + 2, iterations - 1)
        self.iteration = iteration = self.iteration + iterations
        self.blocks_in_use = self.num_blocks - self.free_blocks
        if self._aborting:
            self._drop_aborted()
        finished = []
        for sequence, _, _ in self.chunks:
            length = sequence.prompt_tokens + sequence.generated
            if sequence.computed == length and sequence.state == PREFILL:
                sequence.generated += 1
                if sequence.generated < sequence.output_tokens:
                    self._start_decode(sequence, length - iteration, iteration)
                else:
                    self._release(sequence)
                    finished.append(sequence)
        due = self._finishing
        while due and due[0][0] <= iteration:
            at, _, sequence = heappop(due)
            if sequence.finish_iteration == at and sequence.state == DECODE:
                self._stop_decode(sequence)
                sequence.generated = sequence.output_tokens
                sequence.blocks = -(-(sequence.origin + iteration) // self.block_size)
                self._release(sequence)
                finished.append(sequence)
        return finished

    # -- running sequences -------------------------------------------------------------------------

    def _schedule_running(self, iteration: int, threshold: int) -> int:
        """Give running sequences their tokens and blocks; returns what is left of the budget.

        For steps in which not everybody simply decodes on.
        """
        if self._disturbed:
            self.preempted, self.skipped, self._disturbed = [], [], False
        budget = self.max_num_batched_tokens - self._num_decode
        need = self._opening[iteration % self.block_size]
        if self._prefilling:
            wanted = self._wanted(threshold)
            last = next(reversed(self.running))
            if budget > 0 and (wanted <= budget or (len(self._prefilling) == 1 and last in self._prefilling)):
                budget, need = self._continue_prefills(budget, need, threshold)
            else:
                return self._schedule_in_order(iteration, threshold)
        elif budget < 0:
            return self._schedule_in_order(iteration, threshold)
        while need > self.free_blocks:
            need -= self._preempt_last(iteration)
        self.free_blocks -= need
        for sequence, new, _ in self.chunks:
            self._advance(sequence, new)
        return budget

    def _wanted(self, threshold: int) -> int:
        """Tokens that the unfinished prefills would take from an unlimited budget."""
        wanted = 0
        for sequence in self._prefilling:
            left = sequence.prompt_tokens + sequence.generated - sequence.computed
            wanted += min(left, threshold) if threshold else left
        return wanted

    def _continue_prefills(self, budget: int, need: int, threshold: int) -> tuple[int, int]:
        """Next chunk of each unfinished prefill; returns the budget left and the blocks needed."""
        for sequence in self._prefilling:
            new = self._chunk(sequence, budget, threshold)
            self.chunks.append((sequence, new, sequence.computed))
            budget -= new
            need += -(-(sequence.computed + new) // self.block_size) - sequence.blocks
        return budget, need

    def _chunk(self, sequence: Sequence, budget: int, threshold: int) -> int:
        new = sequence.prompt_tokens + sequence.generated - sequence.computed
        if 0 < threshold < new:
            new = threshold
        return min(new, budget)

    def _advance(self, sequence: Sequence, new: int) -> None:
        """*sequence* computes *new* more tokens of its prompt in this step."""
        sequence.computed += new
        sequence.blocks = -(-sequence.computed // self.block_size)
        if sequence.computed == sequence.prompt_tokens + sequence.generated:
            self._prefilling.pop(sequence, None)
        else:
            self._prefilling[sequence] = None

    def _schedule_in_order(self, iteration: int, threshold: int) -> int:
        """The engine's own loop over the running list, for a budget that may end inside it."""
        budget = self.max_num_batched_tokens
        size = self.block_size
        order = list(self.running)
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = order[position]
            decodes = sequence.state == DECODE
            new = 1 if decodes else self._chunk(sequence, budget, threshold)
            held = sequence.origin + iteration - 1 if decodes else sequence.computed
            need = -(-(held + new) // size) - (-(-held // size))
            while need > self.free_blocks and len(self.running) > position:
                self._preempt_last(iteration)
            if len(self.running) <= position:
                break  # it was its own victim, and so ends the loop
            self.free_blocks -= need
            budget -= new
            if not decodes:
                self.chunks.append((sequence, new, sequence.computed))
                self._advance(sequence, new)
            position += 1
        for sequence in order[position : len(self.running)]:
            if sequence.state == DECODE:
                self._skip(sequence)
        return budget

    def _skip(self, sequence: Sequence) -> None:
        """*sequence* decodes nothing in this step: everything of it happens one iteration later."""
        self._opening[(1 - sequence.origin) % self.block_size] -= 1
        sequence.origin -= 1
        self._origins -= 1
        self._opening[(1 - sequence.origin) % self.block_size] += 1
        self._expect_finish(sequence, sequence.finish_iteration + 1)
        self.skipped.append(sequence)
        self.batch_changed = self._disturbed = True

    def _preempt_last(self, iteration: int) -> int:
        """The last admitted gives its blocks back and returns to the front of the queue.

        Returns how many blocks it would have taken in this step.
        """
        victim, _ = self.running.popitem()
        size = self.block_size
        spared = 0
        if victim.state == DECODE:
            self._stop_decode(victim)
            victim.computed = victim.origin + iteration - 1
            victim.blocks = -(-victim.computed // size)
            victim.generated = victim.computed + 1 - victim.prompt_tokens
            spared = 1 if victim.computed % size == 0 else 0
        else:
            self._prefilling.pop(victim, None)
            if self.chunks and self.chunks[-1][0] is victim:
                _, new, _ = self.chunks.pop()
                spared = -(-(victim.computed + new) // size) - victim.blocks
        self.free_blocks += victim.blocks
        self.discarded_tokens += victim.computed
        self.preemptions += 1
        victim.blocks = victim.computed = 0
        victim.state = WAITING
        self.waiting.appendleft(victim)
        self.num_waiting += 1
        self.preempted.append(victim)
        self._disturbed = True
        return spared

    # -- waiting sequences -------------------------------------------------------------------------

    def _admit(self, budget: int, threshold: int) -> None:
        """Admit from the head of the queue until something is short; nobody passes the head."""
        waiting, running, size = self.waiting, self.running, self.block_size
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
            new = self._chunk(sequence, budget, threshold)
            need = -(-new // size)
            if (-(-length // size) if self.reserve_full_isl else need) > self.free_blocks:
                self.held_by = KV_BLOCKS
                return
            waiting.popleft()
            self.num_waiting -= 1
            self.free_blocks -= need
            budget -= new
            running[sequence] = None
            sequence.state = PREFILL
            sequence.computed = new
            sequence.blocks = need
            if new < length:
                self._prefilling[sequence] = None
            self.chunks.append((sequence, new, 0))

    # -- decoding ----------------------------------------------------------------------------------

    def _start_decode(self, sequence: Sequence, origin: int, iteration: int) -> None:
        sequence.state = DECODE
        sequence.origin = origin
        self._num_decode += 1
        self._origins += origin
        self._opening[(1 - origin) % self.block_size] += 1
        self.batch_changed = True
        self._expect_finish(sequence, iteration + sequence.output_tokens - sequence.generated)

    def _stop_decode(self, sequence: Sequence) -> None:
        origin = sequence.origin
        self._num_decode -= 1
        self._origins -= origin
        self._opening[(1 - origin) % self.block_size] -= 1
        self.batch_changed = True

    def _expect_finish(self, sequence: Sequence, iteration: int) -> None:
        sequence.finish_iteration = iteration
        self._serial = serial = self._serial + 1
        heappush(self._finishing, (iteration, serial, sequence))

    def _repeats(self, iteration: int, max_leap: int) -> int:
        """For how many iterations, the one at hand included, nothing in the batch can change."""
        due = self._finishing
        while due[0][2].state != DECODE or due[0][2].finish_iteration != due[0][0]:
            heappop(due)
        repeats = due[0][0] - iteration + 1
        if repeats > max_leap:
            repeats = max_leap
        # Blocks for repeats - 1 further iterations must be there; the bound is checked first because
        # it nearly always holds.
        cycles = (repeats - 1) // self.block_size + 1
        if self._num_decode * cycles > self.free_blocks:
            repeats = 1 + self._affordable(iteration + 1, repeats - 1)
        return repeats

    def _affordable(self, first: int, most: int) -> int:
        """How many iterations from *first* on, at most *most*, the free blocks last."""
        size, free = self.block_size, self.free_blocks
        cycles = min(free // self._num_decode, most // size)
        free -= cycles * self._num_decode
        count = cycles * size
        while count < most:
            free -= self._opening[(first + count) % size]
            if free < 0:
                break
            count += 1
        return count

    def _opened(self, first: int, count: int) -> int:
        """Blocks taken by decoding sequences in *count* iterations from *first* on."""
        size = self.block_size
        cycles, rest = divmod(count, size)
        start = first % size
        end = start + rest
        taken = sum(self._opening[start:end])
        if end > size:
            taken += sum(self._opening[: end - size])
        return cycles * self._num_decode + taken

    # -- leaving -----------------------------------------------------------------------------------

    def _drop_aborted(self) -> None:
        """Take aborted sequences out, in whatever state they are."""
        for sequence in self._aborting:
            if sequence.state == WAITING:
                self.num_waiting -= 1
                sequence.state = DONE
            elif sequence.state != DONE:
                if sequence.state == DECODE:
                    self._stop_decode(sequence)
                    sequence.computed = sequence.origin + self.iteration
                    # The token of this iteration is lost; one that was skipped in it loses none.
                    lost = sequence not in self.skipped
                    sequence.generated = sequence.computed + 1 - lost - sequence.prompt_tokens
                    sequence.blocks = -(-sequence.computed // self.block_size)
                else:
                    self._prefilling.pop(sequence, None)
                self._release(sequence)
        self._aborting = []

    def _release(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self.free_blocks += sequence.blocks
        sequence.blocks = 0
        sequence.state = DONE
