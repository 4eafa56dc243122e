"""The prefix cache, which counts runs of blocks, against a pool that moves blocks one by one.

Both go through the same random scripts: requests over a tree of shared streams are admitted on what is
found, compute on in chunks, and give their blocks back, while blocks run short. After every operation both
have as many free blocks, found as much, and have lost as much content.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from reference_cases import Sent, random_tree
from reference_pool import Pool

from sim.serving.prefix_cache import NO_HIT, Content, PrefixCache


@dataclass(eq=False)
class Live:
    """Who holds blocks: *content* is None where nobody will look for them."""

    sent: Sent
    content: Content | None
    blocks: list[int]
    names: list[int]
    computed: int = 0
    filled: int = 0
    tokens: list[object] = field(default_factory=list)


class Both:
    """The cache and the pool, through one script; every method is an operation and compares."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.size = block_size
        self.pool = Pool(blocks, block_size)
        self.cache = PrefixCache(blocks, block_size)
        self.free = blocks
        self.seen: Counter[str] = Counter()

    def agree(self, settled: bool = True) -> None:
        """As many free blocks; where all taken ones are told to the cache, as much lost and kept, too."""
        assert self.free == len(self.pool.free)
        if settled:
            self.cache.settle(self.free)
            assert self.cache.evicted_blocks <= self.pool.evicted  # ours counts what could be looked for
            blank = sum(block not in self.pool.name_of for block in self.pool.free)
            assert (self.cache.blank_blocks, self.cache.cached_blocks) == (blank, self.free - blank)

    def admit(self, sent: Sent, chunk: int, plain: bool = False) -> Live | None:
        """*sent* computes up to *chunk* tokens after what is found; None where they do not fit."""
        tokens = [sent.token(i) for i in range(sent.prompt)]
        live = Live(sent, None, [], [], tokens=tokens)
        self.pool.names(live.tokens, live.names)
        hit, found = NO_HIT, []
        if not plain:
            live.content = Content(self.size, sent.shared or (), sent.tail)
            found = self.pool.find(live.names, sent.prompt)
            self.cache.settle(self.free)
            hit = self.cache.lookup(live.content, sent.prompt)
        idle = self.pool.idle(found)
        assert (hit.blocks, hit.free_blocks) == (len(found), idle)
        cached = len(found) * self.size
        computed = min(cached + chunk, sent.prompt)
        need = -(-computed // self.size) - len(found)
        if need > self.free - idle:
            self.seen["refused"] += 1
            return None
        self.seen.update(hits=bool(found), hits_in_use=idle < len(found), hits_free=idle > 0)
        self.free -= idle + need
        if live.content is not None:
            self.cache.hold(live.content, hit)
            self.cache.fill(live.content, computed)
        self.pool.touch(found)
        live.blocks = found + self.pool.take(need)
        live.computed, live.filled = computed, len(found)
        self._fill(live)
        return live

    def grow(self, live: Live, tokens: int, told: bool = True) -> bool:
        """*live* computes *tokens* more; the cache is *told* now, or when it leaves."""
        need = -(-(live.computed + tokens) // self.size) - len(live.blocks)
        if need > self.free:
            self.seen["short"] += 1
            return False
        self.free -= need
        live.computed += tokens
        if live.content is not None and told:
            self.cache.settle(self.free)
            self.cache.fill(live.content, live.computed)
        live.blocks += self.pool.take(need)
        self._fill(live)
        return True

    def leave(self, live: Live) -> None:
        """*live* gives all its blocks back."""
        self.cache.settle(self.free)
        full, before = live.computed // self.size, len(self.pool.free)
        self.pool.give_back(live.blocks)
        freed = len(self.pool.free) - before
        self.seen.update(left_shared=freed < len(live.blocks), left=1)
        if live.content is None:
            self.cache.leave(full, len(live.blocks) - full)
        else:
            self.cache.fill(live.content, live.computed)
            assert self.cache.give_back(live.content, len(live.blocks)) == freed
        self.free += freed

    def _fill(self, live: Live) -> None:
        live.tokens += [live.sent.token(i) for i in range(len(live.tokens), live.computed)]
        full = live.computed // self.size
        self.pool.fill(live.blocks, self.pool.names(live.tokens, live.names), live.filled, full)
        copies = [len(self.pool.blocks_of[name]) for name in live.names[live.filled : full]]
        self.seen["copies"] += max(copies, default=0) > 1
        live.filled = full


def play(seed: int) -> Both:
    """One random script: up to 60 operations of up to eight at a time on a pool of 2 to 40 blocks."""
    rng = random.Random(seed)
    both = Both(rng.randint(2, 40), rng.choice([1, 2, 3, 4, 8]))
    longest = max(2, min(80, both.free * both.size))
    draw = random_tree(rng, longest)
    running: list[Live] = []
    settle_often = rng.random() < 0.5
    for number in range(rng.randint(5, 60)):
        kind = rng.random()
        if kind < 0.35 and len(running) < 8:
            prompt, shared, tail = draw(rng, rng.randint(1, longest))
            sent = Sent(f"r{number}", 1, prompt, 1, 0, shared, tail)
            plain = rng.random() < 0.1
            sent = Sent(sent.name, 1, prompt, 1) if plain else sent
            live = both.admit(sent, rng.choice([1, 5, longest]), plain)
            running += [live] if live else []
        elif kind < 0.75 and running:
            live = rng.choice(running)
            shares = [end for _, end in live.sent.shared or ()]
            # its own tokens nobody looks for before it leaves: the cache may learn of them late
            own = live.content is not None and live.content.tail is None
            late = own and live.computed >= max(shares, default=0) and rng.random() < 0.5
            both.grow(live, rng.choice([1, 1, 2, both.size, 9]), told=not late)
        elif running:
            both.leave(running.pop(rng.randrange(len(running))))
        both.agree(settle_often or rng.random() < 0.2)
    for live in running:
        both.leave(live)
    both.agree()
    both.pool.take(both.free)
    both.free = 0
    both.agree()
    return both


# -- the law ---------------------------------------------------------------------------------------


def test_runs_of_blocks_are_as_good_as_blocks() -> None:
    """Two thousand random scripts: free blocks, hits and evictions agree after every operation."""
    seen: Counter[str] = Counter()
    for seed in range(2000):
        try:
            both = play(seed)
        except AssertionError as error:
            error.add_note(f"script {seed}")
            raise
        seen.update(both.seen)
        seen["evicted"] += both.pool.evicted
    happened = ("hits", "hits_in_use", "hits_free", "left_shared", "copies", "refused", "short", "evicted")
    assert {name: seen[name] for name in happened if seen[name] < 500} == {}


@pytest.mark.slow
def test_runs_of_blocks_are_as_good_as_blocks_in_many_more_scripts() -> None:
    """Another sixty thousand."""
    for seed in range(2000, 62_000):
        play(seed)


# -- what the law is made of -----------------------------------------------------------------------


def one(name: str, prompt: int, *shared: tuple[int, int], tail: int = -1) -> Sent:
    return Sent(name, 1, prompt, 1, 0, shared, tail)


def found(both: Both, *shared: tuple[int, int], tokens: int) -> int:
    """Blocks of a prompt of *tokens* that are in the cache."""
    both.cache.settle(both.free)
    return both.cache.lookup(Content(both.size, shared), tokens).blocks


def all_at_once(both: Both, *requests: Sent) -> list[Live]:
    admitted = [both.admit(sent, sent.prompt) for sent in requests]
    assert None not in admitted
    both.agree()
    return [live for live in admitted if live is not None]


def test_the_last_token_is_always_computed() -> None:
    """Of an aligned prompt of four blocks that is all there, three are found; of one token more, four."""
    both = Both(20, 4)
    both.leave(*all_at_once(both, one("a", 16, (0, 16))))
    assert [found(both, (0, 16), tokens=tokens) for tokens in (4, 5, 15, 16, 17)] == [0, 1, 3, 3, 4]


def test_the_tail_of_a_prompt_is_lost_before_its_head() -> None:
    """Six blocks, four of them cached: each block that is taken beyond the two blank ones costs the last."""
    both = Both(6, 4)
    both.leave(*all_at_once(both, one("a", 16, (0, 16))))
    left = []
    for blocks in range(1, 7):
        all_at_once(both, one(f"b{blocks}", 4 * blocks))
        left.append(found(both, (0, 16), tokens=17))
        both = Both(6, 4)
        both.leave(*all_at_once(both, one("a", 16, (0, 16))))
    assert left == [4, 4, 3, 2, 1, 0]


def test_who_used_it_last_keeps_it_longest() -> None:
    """a, then b leaves; a is used again, and the next three blocks are taken from b."""
    both = Both(6, 4)
    for live in all_at_once(both, one("a", 12, (0, 12)), one("b", 12, (1, 12))):
        both.leave(live)
    both.leave(*all_at_once(both, one("a again", 13, (0, 13))))
    both.agree()
    all_at_once(both, one("c", 12))
    assert found(both, (0, 12), tokens=13) == 3
    assert found(both, (1, 12), tokens=13) == 0


def test_equal_prompts_in_one_step_share_all_but_the_last_block() -> None:
    """Two prompts of four blocks take five; when one leaves, its own copy of the fourth alone is free."""
    both = Both(20, 4)
    first, second = all_at_once(both, one("a", 16, (0, 16)), one("b", 16, (0, 16)))
    assert both.free == 15
    both.leave(second)
    assert both.free == 16
    both.leave(first)
    assert both.free == 20
    both.agree()


def test_the_older_of_two_copies_is_found() -> None:
    """Whether it is free or not: a's fourth block is found while a runs, though b's copy of it is free."""
    both = Both(20, 4)
    first, second = all_at_once(both, one("a", 16, (0, 16)), one("b", 16, (0, 16)))
    both.leave(second)
    both.cache.settle(both.free)
    hit = both.cache.lookup(Content(4, ((0, 17),)), 17)
    assert (hit.blocks, hit.free_blocks) == (4, 0)
    both.leave(first)
    both.agree()


def test_a_look_leaves_no_trace() -> None:
    """However often a's content is looked for: what is not taken stays as old as it was."""
    both = Both(6, 4)
    for live in all_at_once(both, one("a", 12, (0, 12)), one("b", 12, (1, 12))):
        both.leave(live)
    for _ in range(5):
        assert found(both, (0, 12), tokens=13) == 3
    all_at_once(both, one("c", 12))
    assert found(both, (0, 12), tokens=13) == 0
    assert found(both, (1, 12), tokens=13) == 3
