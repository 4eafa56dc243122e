"""What a scheduler does with its prefix cache: look up, admit, and give back, sequence by sequence."""

from __future__ import annotations

from sim.serving.prefix_cache import NO_HIT, Content, Hit, PrefixCache
from sim.serving.sequence import DECODE, LEAVING, Sequence


class Caching:
    """A prefix cache and who in the running batch adds to it.

    A decoding sequence is counted, not walked: what it has answered is told to the cache when it leaves,
    or when somebody looks for it, which takes a stream that others may have too. A sequence without
    `content` is alone with its tokens: only after a preemption is there anybody to look for them, and
    before there is content in free blocks that somebody may look for, its blocks are as good as blank.
    *cached_tokens* counts what all admissions have found. An *asynchronous* engine knows a decode's token,
    hence a full block of them, one step later.
    """

    __slots__ = ("_behind", "_together", "blocks", "cached_tokens", "crowded")

    def __init__(self, num_blocks: int, block_size: int, asynchronous: bool) -> None:
        self.blocks = PrefixCache(num_blocks, block_size)
        self.cached_tokens = 0
        self.crowded = 0  # streams that several running sequences answer with
        self._together: dict[int, list[Sequence]] = {}  # of each such stream, in order of admission
        self._behind = int(asynchronous)

    def find(self, sequence: Sequence, iteration: int, free_blocks: int) -> Hit:
        """What of *sequence* is cached when *iteration* is formed and *free_blocks* are left."""
        assert sequence.content is not None
        self.blocks.settle(free_blocks)
        if self._together:
            for stream, _ in sequence.content.path:
                if stream in self._together:
                    self._catch_up(stream, iteration)
        return self.blocks.lookup(sequence.content, sequence.prompt_tokens + sequence.generated)

    def answers_grow(self, sequence: Sequence) -> bool:
        """Whether what *sequence* would find can grow while the batch repeats."""
        content = sequence.content
        return content is not None and any(stream in self._together for stream, _ in content.path)

    def catch_up(self, iteration: int) -> None:
        """What has been answered with a stream of several can be found, in the order of the batch."""
        for stream in self._together:
            self._catch_up(stream, iteration)

    def admit(self, sequence: Sequence, hit: Hit) -> None:
        """*sequence* runs from now on; what it is about to compute can be found."""
        content = sequence.content
        assert content is not None
        if hit is not NO_HIT:
            self.blocks.hold(content, hit)
            self.cached_tokens += hit.blocks * self.blocks.block_size
        self.blocks.fill(content, sequence.computed)
        if content.tail is not None:
            together = self._together.setdefault(content.tail, [])
            together.append(sequence)
            self.crowded += len(together) == 2

    def compute(self, sequence: Sequence, tokens: int, iteration: int, free_blocks: int) -> None:
        """*sequence* has *tokens* when *iteration* ends; *free_blocks* are left."""
        if sequence.content is None:
            return
        self.blocks.settle(free_blocks)
        if self._together:
            self._catch_up_others(sequence, iteration)
        self.blocks.fill(sequence.content, tokens - self._behind * (sequence.state == DECODE))

    def preempt(self, sequence: Sequence, free_blocks: int, tokens: int) -> int:
        """Blocks that are free for that *sequence* loses its own; it will come back and look for them.

        The *tokens* that it was given in the same step were known to the cache, and stay so.
        """
        if sequence.content is None:
            sequence.content = Content(self.blocks.block_size)
        return self._leave(sequence, free_blocks, self._known(sequence, sequence.computed + tokens))

    def leave(self, sequence: Sequence, free_blocks: int, in_flight: bool = False) -> int:
        """Blocks that are free for that *sequence* leaves; its last step's token is *in_flight* or known."""
        computed = sequence.computed
        return self._leave(sequence, free_blocks, self._known(sequence, computed) if in_flight else computed)

    def _known(self, sequence: Sequence, computed_tokens: int) -> int:
        """What of *computed_tokens* the engine knows while its last step is in flight: all but an answer."""
        prompt = min(computed_tokens, sequence.prompt_tokens)
        return max(computed_tokens - self._behind, prompt)

    def _leave(self, sequence: Sequence, free_blocks: int, known_tokens: int) -> int:
        blocks, content = self.blocks, sequence.content
        blocks.settle(free_blocks)
        if content is None:
            if blocks.cached_blocks:
                full = known_tokens // blocks.block_size
                blocks.leave(full, sequence.blocks - full)
            return sequence.blocks
        if content.tail is not None and sequence in (together := self._together.get(content.tail, [])):
            together.remove(sequence)
            self.crowded -= len(together) == 1
            if not together:
                del self._together[content.tail]
        blocks.fill(content, known_tokens)
        return blocks.give_back(content, sequence.blocks)

    def _catch_up_others(self, sequence: Sequence, iteration: int) -> None:
        """Who answers with what *sequence* computes is told first as far as the engine would have been."""
        assert sequence.content is not None
        for stream, _ in sequence.content.path:
            for other in () if stream is None else self._together.get(stream, ()):
                if other is not sequence:
                    ahead = other.admission < sequence.admission
                    self._tell(other, iteration if ahead else iteration - 1)

    def _catch_up(self, stream: int, iteration: int) -> None:
        for sequence in self._together[stream]:
            self._tell(sequence, iteration)

    def _tell(self, sequence: Sequence, iteration: int) -> None:
        """What *sequence* has answered when *iteration* is formed can be found."""
        assert sequence.content is not None
        if sequence.state == DECODE:
            self.blocks.fill(sequence.content, sequence.origin + iteration - self._behind)
        elif sequence.state == LEAVING:
            self.blocks.fill(sequence.content, sequence.computed - self._behind)
