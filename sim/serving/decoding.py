"""The decoding sequences of a replica, counted: none of them is touched while it decodes.

A sequence that has been decoding since iteration i with c computed tokens holds c + (t - i) of them
after iteration t. With its *origin* c - i, everything about it follows by arithmetic:

* the batch reads ``count * t + sum of origins`` tokens of KV cache in iteration t;
* it takes a block in the iterations t with (origin + t - 1) divisible by the block size, so the
  number of blocks that are taken in t depends on t modulo the block size alone (`opening`);
* the iteration of its last token is known when it starts (`finishing`).
"""

from __future__ import annotations

from heapq import heappop, heappush

from sim.serving.sequence import DECODE, Sequence


class Decoding:
    """Counters of the sequences that get one token in every iteration."""

    __slots__ = (
        "_serial",
        "batch_changed",
        "block_size",
        "finishing",
        "num_decode",
        "opening",
        "origins",
        "stopping",
    )

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_decode = 0
        self.origins = 0  # their sum
        self.opening = [0] * block_size  # iteration modulo block_size -> blocks taken in it
        self.finishing: list[tuple[int, int, Sequence]] = []  # heap; entries that went stale stay in it
        self.batch_changed = True  # somebody began or stopped decoding since this was last reset
        self.stopping: list[Sequence] = []  # just read as far as their readers do; whoever hears it clears it
        self._serial = 0

    def start(self, sequence: Sequence, origin: int, iteration: int) -> None:
        """*sequence* got a token in *iteration* and decodes from the next one on."""
        sequence.state = DECODE
        sequence.origin = origin
        self.num_decode += 1
        self.origins += origin
        self.opening[(1 - origin) % self.block_size] += 1
        self.batch_changed = True
        if sequence.read_tokens and sequence.generated == sequence.read_tokens:
            self._stop_reading(sequence)
        last = sequence.read_tokens or sequence.output_tokens
        self._finish_at(sequence, iteration + last - sequence.generated)

    def _finish_at(self, sequence: Sequence, iteration: int) -> None:
        sequence.finish_iteration = iteration
        self._serial = serial = self._serial + 1
        heappush(self.finishing, (iteration, serial, sequence))

    def _stop_reading(self, sequence: Sequence) -> None:
        sequence.read_tokens = 0
        self.stopping.append(sequence)

    def stop(self, sequence: Sequence) -> None:
        """*sequence* decodes no longer; what it holds is left to the caller."""
        origin = sequence.origin
        self.num_decode -= 1
        self.origins -= origin
        self.opening[(1 - origin) % self.block_size] -= 1
        self.batch_changed = True
        sequence.finish_iteration = 0

    def due(self, iteration: int) -> list[Sequence]:
        """Those whose last token comes in *iteration*; they stop. Those whose reader leaves with it go on."""
        finishing = self.finishing
        ended = []
        while finishing and finishing[0][0] <= iteration:
            at, _, sequence = heappop(finishing)
            if sequence.finish_iteration != at:
                continue
            if sequence.read_tokens:
                self._finish_at(sequence, at + sequence.output_tokens - sequence.read_tokens)
                self._stop_reading(sequence)
            else:
                self.stop(sequence)
                ended.append(sequence)
        return ended

    def repeats(self, iteration: int, free_blocks: int, most: int) -> int:
        """For how many iterations, at most *most*, everybody decodes on from *iteration*, included.

        The blocks of *iteration* itself have been taken; *free_blocks* must do for the others.
        """
        finishing = self.finishing
        last, _, sequence = finishing[0]
        while sequence.finish_iteration != last:
            heappop(finishing)
            last, _, sequence = finishing[0]
        repeats = last - iteration + 1
        if repeats > most:
            repeats = most
        # Enough blocks for whole cycles is enough, and nearly always there.
        if self.num_decode * ((repeats - 1) // self.block_size + 1) > free_blocks:
            return 1 + self._affordable(iteration + 1, repeats - 1, free_blocks)
        return repeats

    def opened(self, first: int, count: int) -> int:
        """Blocks taken in *count* iterations from *first* on."""
        size = self.block_size
        start = first % size
        end = start + count
        if end <= size:
            return sum(self.opening[start:end])
        cycles, rest = divmod(end, size)
        return (cycles - 1) * self.num_decode + sum(self.opening[start:]) + sum(self.opening[:rest])

    def _affordable(self, first: int, most: int, free_blocks: int) -> int:
        """How many iterations from *first* on, at most *most*, the free blocks last."""
        size = self.block_size
        cycles = min(free_blocks // self.num_decode, most // size)
        free_blocks -= cycles * self.num_decode
        count = cycles * size
        while count < most:
            free_blocks -= self.opening[(first + count) % size]
            if free_blocks < 0:
                break
            count += 1
        return count
