"""Prompts that go on from earlier ones, by two tables: how much was seen before, and how long ago."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.workload.contents import Contents
from sim.workload.streams import Streams

_LEAST_REACH, _MOST_REACH = 8, 4096
"""How many requests on either side of an age are looked at, at first and at most."""
_TOO_LONG = np.iinfo(np.int64).max


def reused_contents(
    prefixes: Mapping[str, Any], arrival_s: np.ndarray, prompt_tokens: np.ndarray, streams: Streams
) -> Contents | None:
    """What requests in order of arrival share by `prefixes` of kind reuse; None where they share nothing.

    Each takes its first tokens, as many as the table `seen` of its class of lengths gives, from one earlier
    request near the age that the table `age` gives; the rest of its prompt nobody had before. So a cache
    without limit finds just what `seen` says, whoever else shares what, and prompts form a tree. Lengths are
    as without. Ages are conditional on the requests there are: the first of a run find less.
    """
    head = np.minimum(int(prefixes.get("head_tokens") or 0), prompt_tokens)
    share = _shares(prefixes["seen"], prompt_tokens, streams.open("prefixes.seen").random(len(arrival_s)))
    seen = np.rint(share * prompt_tokens).astype(np.int64)
    age_s, old_enough = _ages(prefixes["age"], arrival_s, streams.open("prefixes.age").random(len(arrival_s)))
    target = np.searchsorted(arrival_s, arrival_s - age_s)
    parents = _parents(target, prompt_tokens, np.where(old_enough & (seen > head), seen, 0))
    found = parents >= 0
    seen = np.where(found, np.minimum(seen, prompt_tokens[parents]), head)
    return _tree(np.where(seen > head, parents, -1), np.maximum(seen, head), head, prompt_tokens)


def _shares(seen: Mapping[str, Any], prompt_tokens: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The share of each prompt that was seen before: the quantile *uniform* of its class of lengths."""
    group = np.searchsorted(seen.get("up_to_tokens") or [], prompt_tokens)
    share = np.empty(len(uniform))
    for number, row in enumerate(seen["rows"]):
        inside = group == number
        share[inside] = np.interp(uniform[inside], seen["quantiles"], row)
    return share


def _ages(
    age: Mapping[str, Any], arrival_s: np.ndarray, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How long ago each prompt's beginning was sent, in seconds, and whether there was a request by then.

    The table is straight in ln(seconds) between its points.
    """
    quantiles, logs = np.asarray(age["quantiles"], dtype=np.float64), np.log(age["seconds"])
    since_s = arrival_s - arrival_s[:1]
    within = np.interp(np.log(np.maximum(since_s, 1e-9)), logs, quantiles, left=0.0)
    return np.exp(np.interp(uniform * within, quantiles, logs)), within > 0


def _parents(target: np.ndarray, prompt_tokens: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """For each row with *wanted* tokens an earlier row near *target* whose prompt has as many; the longest
    there is where none has; -1 for the others.

    Of those near in age the shortest that is long enough, as users go on from all that they said; and none
    twice while others are there, or its age would no longer be that of the last use.
    """
    parents = np.full(len(target), -1)
    room = prompt_tokens.copy()  # what may be gone on from: nothing of a row that was
    for row in np.flatnonzero(wanted[1:] > 0) + 1:
        at, reach = min(target[row], row - 1), max(_LEAST_REACH, (row - target[row]) // 4)
        while True:
            low, high = max(at - reach, 0), min(at + reach + 1, row)
            near = room[low:high]
            fitting = np.where(near >= wanted[row], near, _TOO_LONG)
            best = low + int(fitting.argmin())
            if fitting[best - low] < _TOO_LONG or high - low == row or reach > _MOST_REACH:
                break
            reach *= 4
        if fitting[best - low] == _TOO_LONG:
            near = prompt_tokens[low:high]
            best = low + int(np.where(near >= wanted[row], -1, -near).argmin())
        parents[row], room[best] = best, 0
    return parents


def _tree(
    parents: np.ndarray, begins: np.ndarray, head: np.ndarray, prompt_tokens: np.ndarray
) -> Contents | None:
    """The streams of a tree: row i has its own from token *begins*[i] on, and before it what its parent has.

    A stream that its own row alone has is private, and left out.
    """
    rows, ids, ends = [], [], []
    row, at, limit = np.arange(len(parents)), parents.copy(), begins.copy()
    while len(row := row[keep := at >= 0]):
        at, limit = at[keep], limit[keep]
        inside = begins[at] < limit
        rows.append(row[inside])
        ids.append(at[inside])
        ends.append(limit[inside])
        limit = np.minimum(limit, begins[at])
        at = np.where(limit > head[row], parents[at], -1)
    shared = np.unique(np.concatenate([*ids, np.empty(0, dtype=np.int64)]))
    rows += [shared, headed := np.flatnonzero(head)]
    ids += [shared, np.full(len(headed), len(parents))]
    ends += [prompt_tokens[shared], head[headed]]
    row, id_, end = np.concatenate(rows), np.concatenate(ids), np.concatenate(ends)
    if len(row) == 0:
        return None
    order = np.lexsort((end, row))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(parents)))])
    return Contents(offsets, id_[order], end[order], np.full(len(parents), -1))
