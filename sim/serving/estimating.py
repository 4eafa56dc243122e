"""SGLang's scheduler: prompts before decodes, answers reserved by estimate, retraction."""

from __future__ import annotations

from typing import Any

from sim.serving.prefill_first import PrefillFirstScheduler
from sim.serving.scheduler import KV_BLOCKS, NOTHING, SEQUENCE_LIMIT
from sim.serving.sequence import DECODE, Sequence

LONGEST_ESTIMATE = 4096
"""Tokens of an answer beyond which nothing is reserved."""
_FIRST, _LEAST = 0.7, 0.14  # share of the answers to come that is reserved, and how much of it stays
_FALLING = 600  # steps of decodes
_AHEAD = 20  # steps for which a new share must do


class EstimatingScheduler(PrefillFirstScheduler):
    """`PrefillFirstScheduler` that reserves a share of the answers to come.

    A request is admitted if its prompt and its own whole answer fit beside *share* of what the running ones
    have still to answer; none counts beyond `LONGEST_ESTIMATE`. The share falls with every step of decodes.
    Once something was short, nobody is looked at again before somebody has left. Where a step of decodes
    finds too few blocks, those with the fewest tokens answered give theirs back and go to the end of the
    queue, and the share is set to what the others have answered of theirs. *conservativeness* scales it.
    """

    SPARE_BLOCKS = 0

    def __init__(self, *limits: Any, conservativeness: float = 1.0, **options: Any) -> None:
        super().__init__(*limits, **options)
        self._first = _FIRST * conservativeness
        self._share = self._first  # after the last change, and the steps of decodes since
        self._steps = 0
        self._full = False
        self._held_full = NOTHING
        self._reserved: float | None = None  # tokens, while a step is formed
        self._counted = 0  # chunks of the step that are in it

    @property
    def share(self) -> float:
        """Of the answers to come, what is reserved."""
        least = self._first * _LEAST
        return max(self._share - (self._first - least) / _FALLING * self._steps, least)

    def schedule(self, max_leap: int = 1) -> int:
        """Form the next batch; returns for how many iterations it repeats if nobody comes or leaves."""
        self._reserved = None
        return super().schedule(max_leap)

    def finish(self, iterations: int = 1) -> list[Sequence]:
        """End *iterations* repetitions of the batch: aborts first, then outputs."""
        count = len(self.running)
        if not self.chunks:
            self._steps += iterations
        finished = super().finish(iterations)
        if len(self.running) < count:
            self._full = False
        if not self.running and not self.num_waiting:
            self._share, self._steps = self._first, 0
        return finished

    def requeue(self, victim: Sequence) -> None:
        """*victim* waits again, behind all others."""
        self.waiting.append(victim)

    def _admit(self, iteration: int, budget: int) -> None:
        if self._full:
            self.held_by = self._held_full
            return
        super()._admit(iteration, budget)
        if self.held_by in (KV_BLOCKS, SEQUENCE_LIMIT) and self.running:
            self._full, self._held_full = True, self.held_by

    def _short_of(self, sequence: Sequence, need: int, missing: int, budget: int, spare: int) -> int:
        """What *sequence*, which takes *need* of *spare* blocks to compute *missing* tokens, waits for."""
        short = super()._short_of(sequence, need, missing, budget, spare)
        if short != NOTHING:
            return short
        wanted = missing + _to_come(sequence, sequence.generated) + self.block_size
        return KV_BLOCKS if wanted >= spare * self.block_size - self._expected() else NOTHING

    def _expected(self) -> float:
        """Tokens to come that are reserved; who was admitted in this step needs all of its own."""
        if self._reserved is None:
            self._reserved = self.share * sum(_to_come(s, self._answered(s)) for s in self.running)
            self._counted = len(self.chunks)
        new = (sequence for sequence, _, _ in self.chunks[self._counted :])
        self._reserved += sum(_to_come(s, s.generated) for s in new if not self._has_prompt(s))
        self._counted = len(self.chunks)
        return self._reserved

    def _answered(self, sequence: Sequence) -> int:
        """Tokens that *sequence* has got."""
        if sequence.state == DECODE:
            return sequence.origin + self.iteration + 1 - sequence.prompt_tokens
        return sequence.generated

    def _make_room(self, iteration: int, need: int) -> None:
        """Those with the fewest tokens answered lose their blocks, of equal ones the longest prompt first."""
        staying = sorted(
            (s for s in self.running if s.state == DECODE),
            key=lambda s: (-self._answered(s), s.prompt_tokens),
        )
        while need > self.free_blocks and len(staying) > 1:
            victim = staying.pop()
            need -= (victim.origin + iteration - 1) % self.block_size == 0
            if self.caching is not None:
                self.caching.blocks.settle(0)  # whoever is short of a block has seen the last one go
            self.preempt(victim, iteration)
        self.free_blocks -= need
        answered = sum(self._answered(s) for s in staying)
        wanted = sum(s.output_tokens for s in staying)
        self._share, self._steps = min((answered + _AHEAD * len(staying)) / (wanted + 1), 1.0), 0
        self._full = False


def _to_come(sequence: Sequence, answered: int) -> int:
    return min(sequence.output_tokens - answered, LONGEST_ESTIMATE)
