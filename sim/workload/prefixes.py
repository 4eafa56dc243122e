"""Which tokens the prompts of a run share: a trace's own ids, heads drawn by popularity, turns, answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from sim.faults import InputFault
from sim.workload.chains import chain_blocks, check_chains, compress
from sim.workload.contents import Contents
from sim.workload.distributions import fixed, lognormal, zipf_shares
from sim.workload.lengths import whole_tokens
from sim.workload.sessions import Turns
from sim.workload.streams import Streams
from sim.workload.trace import Trace, trace_of


def recorded_contents(workload: Mapping[str, Any], count: int) -> Contents | None:
    """What the first *count* requests of the workload's trace share; None where they share nothing.

    After its last row a trace is replayed from its first one, by other users: a pass shares nothing with
    the passes before it. What an answer leaves in the cache for the next turn is not among a trace's ids.
    """
    prefixes = workload["prefixes"]
    trace = trace_of(workload, "lengths")
    contents = _trace_contents(trace, prefixes.get("block_tokens"), prefixes.get("hash_of") or "prefix")
    if contents is None:
        return None
    passes, rows = np.divmod(np.arange(count), len(trace))
    return contents.take(rows, apart=passes)


@lru_cache(maxsize=4)  # a search for a knee replays one trace again and again
def _trace_contents(trace: Trace, block_tokens: int | None, hash_of: str) -> Contents | None:
    chains = trace.chains
    if chains is None:
        if not trace.is_json:
            raise InputFault(
                f"{trace.path}: prefixes.kind trace needs hash_ids (the columns are "
                f"{', '.join(trace.columns)}); leave prefixes out"
            )
        return None
    block_tokens = block_tokens or chains.block_tokens
    if block_tokens is None:
        raise InputFault(
            f"{trace.path}: how many tokens a block of hash_ids has is not told by the file's keys; "
            "write prefixes.block_tokens"
        )
    if hash_of == "block":
        chains = chain_blocks(chains)
    check_chains(chains, trace.prompt_tokens, block_tokens, trace.path)
    return compress(chains, trace.prompt_tokens, block_tokens)


def drawn_contents(workload: Mapping[str, Any], turns: Turns, streams: Streams) -> Contents | None:
    """What the requests *turns* share by `prefixes`, `sessions` and `answers`; None where nothing.

    A head takes the place of the prompt's first tokens: prompts are as long as without it, and one that is
    not longer than its head is all head. After the head comes what a session's turns, or the answers to one
    prompt, share.
    """
    prefixes = workload.get("prefixes") or {}
    groups = int(prefixes["groups"]) if prefixes.get("kind") == "groups" else 0
    count = len(turns.prompt_tokens)
    heads, reach = np.full(count, -1), np.zeros(count, dtype=np.int64)
    if groups:
        group, tokens = draw_heads(prefixes, turns.prompts, streams)
        heads = group[turns.prompt]
        reach = np.where(heads < 0, 0, np.minimum(tokens[heads], turns.first_tokens))
    own = turns.prompt if turns.body is None else turns.body
    bodies = np.where(turns.shares, groups + own, -1)
    tails = np.where(turns.goes_on, bodies, -1)
    there = np.column_stack([heads >= 0, (bodies >= 0) & (turns.prompt_tokens > reach)])
    if not there.any() and (tails < 0).all():
        return None
    ids = np.column_stack([heads, bodies])[there]
    ends = np.column_stack([reach, turns.prompt_tokens])[there]
    return Contents(np.concatenate([[0], np.cumsum(there.sum(axis=1))]), ids, ends, tails)


def draw_heads(prefixes: Mapping[str, Any], prompts: int, streams: Streams) -> tuple[np.ndarray, np.ndarray]:
    """The group of each of *prompts* (int64; -1: no shared head), and the tokens of each group's head.

    Group g of `groups` (from 1) has a weight of g^-`zipf` among the `share` of prompts with a head.
    """
    share = 1.0 if prefixes.get("share") is None else prefixes["share"]
    shares = share * np.cumsum(zipf_shares(prefixes["groups"], prefixes.get("zipf")))
    drawn = streams.open("prefixes").random(prompts)
    group = np.searchsorted(shares[:-1], drawn, side="right")
    length = (
        fixed(prefixes["tokens"])
        if prefixes.get("tokens") is not None
        else lognormal(prefixes["tokens_mean"], prefixes.get("tokens_cv") or 0.0)
    )
    tokens = whole_tokens(length.open(streams, "prefixes.tokens")(int(prefixes["groups"])))
    return np.where(drawn < share, group, -1), tokens
