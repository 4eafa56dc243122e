"""What recorded prompts share: how much of each was seen before, how long ago, and how popular heads are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.workload.chains import Chains

_CLASSES, _LEAST_IN_CLASS = 6, 50
_SHARES = (*np.round(np.linspace(0, 1, 21), 2).tolist(),)
_AGES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_COMMON = 0.95
"""A head is what at least this share of all prompts begin with."""


@dataclass(frozen=True, eq=False)
class Uses:
    """For each request what an earlier one had of its prompt. tokens: int64. age_s: float64, since the last
    request that had as much; nan where none did."""

    tokens: np.ndarray
    age_s: np.ndarray


@dataclass(frozen=True)
class Sharing:
    """keys: as `workload.prefixes`. says, found: how it was got, and what else there is, in sentences."""

    keys: Mapping[str, Any]
    says: str
    found: tuple[str, ...] = ()


def uses_of(chains: Chains, prompt_tokens: np.ndarray, times_s: np.ndarray, block_tokens: int) -> Uses:
    """By the ids of prompts' blocks, whose every id stands for its block and all before it."""
    last: dict[int, float] = {}
    ids, bounds = chains.ids.tolist(), chains.offsets.tolist()
    blocks, ages = np.zeros(len(times_s), dtype=np.int64), np.full(len(times_s), np.nan)
    for row, at_s in enumerate(times_s.tolist()):
        own = ids[bounds[row] : bounds[row + 1]]
        known = next((place for place, block in enumerate(own) if block not in last), len(own))
        if known:
            blocks[row], ages[row] = known, at_s - last[own[known - 1]]
        last.update(dict.fromkeys(own, at_s))
    return Uses(np.minimum(blocks * block_tokens, prompt_tokens), ages)


def fit_sharing(chains: Chains, prompt_tokens: np.ndarray, times_s: np.ndarray, block_tokens: int) -> Sharing:
    """Tables for `prefixes.kind: reuse`, and the popularity of what prompts begin with.

    The share seen before has a row of quantiles for each class of lengths (equal numbers of requests), ages
    one of their own, corrected for what the trace is too short to show.
    """
    uses = uses_of(chains, prompt_tokens, times_s, block_tokens)
    heads = _heads(chains)
    head = block_tokens if heads.max(initial=0) >= _COMMON * len(prompt_tokens) else 0
    more = uses.tokens > head
    if not more.any():
        return Sharing({"kind": "none"}, "no prompt has more than the head of an earlier one")
    share = np.where(more, uses.tokens / prompt_tokens, 0.0)
    keys: dict[str, Any] = {"kind": "reuse"} | ({"head_tokens": int(head)} if head else {})
    keys["seen"] = _seen(share, prompt_tokens)
    keys["age"] = _age(uses.age_s[more], times_s[more])
    says = (
        f"share of each prompt that an earlier one has, in whole blocks of {block_tokens} tokens, by length "
        f"of the prompt, and the age of its last use, of {int(more.sum()):,} of {len(more):,} prompts"
    )
    return Sharing(keys, says, (_popularity(heads),))


def _seen(share: np.ndarray, prompt_tokens: np.ndarray) -> dict[str, Any]:
    classes = max(min(_CLASSES, len(share) // _LEAST_IN_CLASS), 1)
    inner = np.arange(1, classes) / classes
    bounds = np.unique(np.quantile(prompt_tokens, inner, method="inverted_cdf")).astype(int).tolist()
    bounds = [bound for bound in bounds if bound < prompt_tokens.max()]
    group = np.searchsorted(bounds, prompt_tokens)
    rows = [np.quantile(share[group == number], _SHARES) for number in range(len(bounds) + 1)]
    shares = [[round(float(value), 4) for value in row] for row in rows]
    return ({"up_to_tokens": bounds} if bounds else {}) | {"quantiles": list(_SHARES), "rows": shares}


def _age(age_s: np.ndarray, since_s: np.ndarray) -> dict[str, Any]:
    """Quantiles of ages of which only those less than *since_s*, the time since the trace began, can be
    seen: the estimator of Lynden-Bell (1971) for data cut off at the right."""
    ages, limits = np.sort(age_s), np.sort(since_s)
    at_risk = np.arange(1, len(ages) + 1) - np.searchsorted(limits, ages, "left")
    below = np.cumprod((1 - 1 / np.maximum(at_risk, 2))[::-1])[::-1]
    seconds = np.interp(_AGES, np.append(below[1:], 1.0), ages)
    return {"quantiles": list(_AGES), "seconds": [float(f"{max(value, 0.001):.4g}") for value in seconds]}


def _heads(chains: Chains) -> np.ndarray:
    """How many prompts have each first block, the most frequent first."""
    first = chains.ids[chains.offsets[:-1][np.diff(chains.offsets) > 0]]
    return np.sort(np.unique(first, return_counts=True)[1])[::-1]


def _popularity(heads: np.ndarray) -> str:
    total = heads.sum()
    if len(heads) == 1:
        return "all prompts begin with one block"
    several = heads[heads > 1]
    exponent = _zipf(heads) if len(several) > 3 else None
    zipf = f"; their popularity falls like Zipf's law with exponent {exponent:.2f}" if exponent else ""
    return (
        f"{len(heads):,} different first blocks, of which {len(several):,} come more than once; the most "
        f"frequent begins {100 * heads[0] / total:.1f} % of the prompts, the ten most frequent "
        f"{100 * heads[:10].sum() / total:.1f} %{zipf}"
    )


def _zipf(counts: np.ndarray) -> float:
    """Exponent s of weights g^-s, by maximum likelihood: the mean of ln g is that of the ranks seen."""
    from scipy.optimize import brentq

    logs = np.log(np.arange(1, len(counts) + 1))
    mean = float(counts @ logs / counts.sum())

    def excess(exponent: float) -> float:
        weights = np.exp(-exponent * logs)
        return float(weights @ logs / weights.sum()) - mean

    return float(brentq(excess, -1.0, 20.0)) if excess(-1.0) > 0 > excess(20.0) else 0.0
