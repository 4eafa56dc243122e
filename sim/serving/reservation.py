"""What admission sets aside for a request beyond the blocks of its known tokens."""

from __future__ import annotations

from dataclasses import dataclass

from sim.serving.sequence import Sequence


@dataclass(slots=True)
class Reservation:
    """Tokens and blocks promised to the running sequences.

    A sequence is promised its prompt and *output_tokens* more, at most *longest_tokens* in all: none
    more reserves for the prompt, the expected answer for that, and the longest permitted answer for
    the worst case, which makes preemption impossible. None is its own answer. Promises never exceed
    *num_blocks* blocks of *block_size* tokens, nor *most_tokens* tokens where that is given.
    """

    output_tokens: int | None
    longest_tokens: int
    num_blocks: int
    block_size: int
    most_tokens: int | None = None
    tokens: int = 0
    blocks: int = 0

    def tokens_of(self, sequence: Sequence) -> int:
        """What *sequence* is promised, never less than what it has."""
        output = sequence.output_tokens if self.output_tokens is None else self.output_tokens
        promised = min(sequence.prompt_tokens + output, self.longest_tokens)
        return max(promised, sequence.prompt_tokens + sequence.generated)

    def blocks_of(self, sequence: Sequence) -> int:
        """The same, in blocks."""
        return -(-self.tokens_of(sequence) // self.block_size)

    def has_tokens(self, sequence: Sequence) -> bool:
        """Whether *sequence* can be promised its tokens."""
        return self.most_tokens is None or self.tokens + self.tokens_of(sequence) <= self.most_tokens

    def has_blocks(self, sequence: Sequence) -> bool:
        """Whether *sequence* can be promised its blocks."""
        return self.blocks + self.blocks_of(sequence) <= self.num_blocks

    def take(self, sequence: Sequence) -> None:
        """*sequence* is admitted."""
        sequence.reserved_tokens = tokens = self.tokens_of(sequence)
        self.tokens += tokens
        self.blocks += -(-tokens // self.block_size)

    def give_back(self, sequence: Sequence) -> None:
        """*sequence* runs no longer."""
        self.tokens -= sequence.reserved_tokens
        self.blocks -= -(-sequence.reserved_tokens // self.block_size)
        sequence.reserved_tokens = 0
