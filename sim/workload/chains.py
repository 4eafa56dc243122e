"""The block ids of a trace's prompts, checked, and told as the streams that requests share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from sim.workload.contents import Contents, ragged
from sim.workload.readers.faults import Fault, at_lines

USUAL_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, eq=False)
class Chains:
    """For each request the ids of its prompt's blocks, from the first token on.

    offsets: int64 [n + 1] into ids (int64, numbered from 0 in the file's order). names: what the file calls
    each id. lines: int64 [n], where each request stands in the file. block_tokens: the tokens of a block by
    the file's format; None where it has no format's marks.
    """

    offsets: np.ndarray
    ids: np.ndarray
    names: tuple[Hashable, ...]
    lines: np.ndarray
    block_tokens: int | None

    @classmethod
    def of(
        cls, ids: Sequence[Sequence[Hashable]], lines: Sequence[int], block_tokens: int | None = None
    ) -> Chains:
        """From each request's *ids* and its line in the file."""
        numbers: dict[Hashable, int] = {}
        numbered = [numbers.setdefault(name, len(numbers)) for name in chain.from_iterable(ids)]
        offsets = np.concatenate([[0], np.cumsum(list(map(len, ids)), dtype=np.int64)])
        flat = np.array(numbered, dtype=np.int64)
        return cls(offsets, flat, tuple(numbers), np.array(lines, dtype=np.int64), block_tokens)

    def take(self, rows: np.ndarray) -> Chains:
        """Those of the requests *rows*."""
        offsets, index = ragged(self.offsets, rows)
        return Chains(offsets, self.ids[index], self.names, self.lines[rows], self.block_tokens)

    @property
    def rows(self) -> np.ndarray:
        """The request of each id."""
        return np.repeat(np.arange(len(self.lines)), np.diff(self.offsets))

    @property
    def positions(self) -> np.ndarray:
        """Which block of its prompt each id stands for."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

    @property
    def parents(self) -> np.ndarray:
        """The id before each id; -1 before the first of a prompt."""
        before = np.concatenate([[-1], self.ids[:-1]])[: len(self.ids)]
        return np.where(self.positions == 0, -1, before)


def chain_blocks(chains: Chains) -> Chains:
    """For ids that stand for a block's own tokens: ids that stand for those and all tokens before them."""
    numbers: dict[tuple[int, int], int] = {}
    ids = np.empty_like(chains.ids)
    names: list[Hashable] = []
    before = -1
    for place, (block, position) in enumerate(
        zip(chains.ids.tolist(), chains.positions.tolist(), strict=True)
    ):
        key = (before if position else -1, block)
        before = numbers.setdefault(key, len(numbers))
        if before == len(names):
            names.append(chains.names[block])
        ids[place] = before
    return Chains(chains.offsets, ids, tuple(names), chains.lines, chains.block_tokens)


def check_chains(chains: Chains, prompt_tokens: np.ndarray, block_tokens: int, path: str) -> None:
    """Raises InputFault, by line, unless every prompt has as many ids as blocks (the last, if it is not
    full, may have none), and an id always comes after the same ids."""
    faults = _miscounted(chains, prompt_tokens, block_tokens) or _contradictions(chains)
    if faults:
        raise at_lines(path, faults)


def _miscounted(chains: Chains, prompt_tokens: np.ndarray, block_tokens: int) -> list[Fault]:
    counts = np.diff(chains.offsets)
    odd = _odd(counts, prompt_tokens, block_tokens)
    if not odd.any():
        return []
    fitting = [size for size in USUAL_BLOCKS if not _odd(counts, prompt_tokens, size).any()]
    hint = f"; prefixes.block_tokens: {fitting[0]} fits every prompt" if fitting else ""
    return [
        (
            int(chains.lines[row]),
            f"hash_ids has {counts[row]} ids for a prompt of {prompt_tokens[row]} tokens, which in blocks of "
            f"{block_tokens} has {-(-prompt_tokens[row] // block_tokens)}{hint}",
        )
        for row in np.flatnonzero(odd)
    ]


def _odd(counts: np.ndarray, prompt_tokens: np.ndarray, block_tokens: int) -> np.ndarray:
    """Whether a prompt's ids are neither none, nor one for each block, nor one for each full block."""
    full = prompt_tokens // block_tokens
    return (counts != 0) & (counts != full) & (counts != -(-prompt_tokens // block_tokens))


def _contradictions(chains: Chains) -> list[Fault]:
    """A fault for each id that comes after other ids than where it stands first."""
    parents, rows = chains.parents, chains.rows
    _, first = np.unique(chains.ids, return_index=True)
    first = first[np.searchsorted(chains.ids[first], chains.ids)]  # the first place of each place's id
    faults: list[Fault] = []
    for place in np.flatnonzero(parents != parents[first]).tolist():
        name = chains.names[chains.ids[place]]
        here, there = _before(chains, parents[place]), _before(chains, parents[first[place]])
        faults.append((
            int(chains.lines[rows[place]]),
            f"hash id {name} comes {here} here and {there} on line {chains.lines[rows[first[place]]]}, but "
            "an id stands for its block and all before it: the hash chains contradict each other; if ids "
            "stand for their own block alone, write prefixes.hash_of: block",
        ))  # fmt: skip
    return faults


def _before(chains: Chains, parent: int) -> str:
    return "first" if parent < 0 else f"after {chains.names[parent]}"


def compress(chains: Chains, prompt_tokens: np.ndarray, block_tokens: int) -> Contents | None:
    """The streams that requests share, where ids come after the same ids always; None if none do.

    Ids of one request alone are private. An id and the only shared one that ever follows it are one
    stream: where a prompt ends or goes on alone in between, its segment ends there.
    """
    shared = np.flatnonzero(np.bincount(chains.ids, minlength=1)[chains.ids] > 1)
    if len(shared) == 0:
        return None
    ids, positions = chains.ids[shared], chains.positions[shared]
    parents, rows = chains.parents[shared], chains.rows[shared]
    _, first = np.unique(ids, return_index=True)
    followers = np.bincount(parents[first] + 1, minlength=ids.max() + 2)[1:]  # kinds of ids after each id
    head = (positions == 0) | (followers[parents] != 1)
    last = np.append(head[1:], True)
    _, segments = np.unique(ids[head], return_inverse=True)
    counts = np.bincount(rows[head], minlength=len(prompt_tokens))
    ends = np.minimum((positions[last] + 1) * block_tokens, prompt_tokens[rows[last]])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Contents(offsets, segments.astype(np.int64), ends, np.full(len(prompt_tokens), -1))
