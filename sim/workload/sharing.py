"""How much of a workload's prompts an earlier request had already: what prefix caching has to gain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from sim.workload.contents import Contents


def reusable_tokens(
    contents: Contents, prompt_tokens: np.ndarray, output_tokens: np.ndarray, block_tokens: int = 1
) -> np.ndarray:
    """For each request (int64) the prompt tokens that a cache without limit would have, if each request
    were done before the next comes.

    Whole blocks of *block_tokens*, and never the prompt's last token, which must be computed to have a
    next one. The last token of an answer never comes to the cache.
    """
    rows = np.repeat(np.arange(len(contents)), np.diff(contents.offsets))
    continued = np.flatnonzero(contents.tails >= 0)  # answers that later prompts go on from
    ids = np.concatenate([contents.ids, contents.tails[continued]])
    ends = np.concatenate([contents.ends, (prompt_tokens + output_tokens - 1)[continued]])
    order = np.lexsort((np.concatenate([rows, continued]), ids))  # stable: a request's answer comes last
    known = np.empty_like(ends)
    known[order] = _most_before(ids[order], ends[order])
    found = np.minimum(known[: len(rows)], contents.ends)
    shared = np.zeros(len(contents), dtype=np.int64)
    np.maximum.at(shared, rows, found)
    return np.minimum(shared, prompt_tokens - 1) // block_tokens * block_tokens


def _most_before(ids: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """For each place the largest of the ends before it that have its id (0: none). *ids* are sorted."""
    first = np.concatenate([[True], ids[1:] != ids[:-1]])[: len(ids)]
    step = 1 + int(ends.max(initial=0))
    group = (np.cumsum(first) - 1) * step  # lifts each id's ends above those of the ids before
    so_far = np.maximum.accumulate(group + ends)
    return np.where(first, 0, np.concatenate([[0], so_far[:-1]])[: len(ids)] - group)


def lru_hit_ratio(
    contents: Contents, prompt_tokens: np.ndarray, block_tokens: int, capacity_blocks: int
) -> float:
    """Share of the prompts' blocks, full or not, that a cache of *capacity_blocks* has when each request
    comes, if requests are done one after the other and the block that was used longest ago gives way.

    Answers take no room. A block is found only if all before it are; of one request the first block counts
    as used last, as where sequences give back their blocks from the tail.
    """
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = blocks = 0
    for request, prompt in enumerate(prompt_tokens.tolist()):
        own = list(_blocks(contents, request, prompt, block_tokens))
        blocks += len(own)
        found = next((place for place, block in enumerate(own) if block not in cache), len(own))
        hits += found
        for block in reversed(own):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity_blocks:
            cache.popitem(last=False)
    return hits / blocks


def _blocks(contents: Contents, request: int, prompt: int, block_tokens: int) -> Iterator[tuple[int, int]]:
    """What tells each block of a prompt from others: the stream of its last token, and its place."""
    segments: Sequence[tuple[int, int]] = (*contents.of(request)[0], (-1 - request, prompt))
    block, blocks = 0, -(-prompt // block_tokens)
    for stream, end in segments:
        until = min(blocks, -(-end // block_tokens) if end == prompt else end // block_tokens)
        for place in range(block, until):
            yield stream, place
        block = max(block, until)
