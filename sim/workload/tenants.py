"""Tenants: many who send at rates of their own, a few of them most of the load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim.workload.distributions import zipf_shares
from sim.workload.streams import Take


def tenant_shares(workload: Mapping[str, Any]) -> np.ndarray:
    """Each tenant's share of the arrivals, the largest first; one has it all where there are no tenants.

    The first ones as `tenant_shares` has them; of what is left the others by Zipf's law: tenant k a weight of
    k^-`tenant_zipf`.
    """
    tenants, told = int(workload.get("tenants") or 1), workload.get("tenant_shares") or []
    others = zipf_shares(tenants, workload.get("tenant_zipf"))[len(told) :]
    left = (1.0 - sum(told)) * others / others.sum() if len(others) else others
    shares = np.concatenate([told, left])
    return shares / shares.sum()


def merged_times(sources: Sequence[Take], rates_per_s: np.ndarray, begin_s: float) -> Take:
    """The times of all *sources*, in order: each has its own from *begin_s* on, at its mean rate.

    However many are taken at once, the times are the same.
    """
    total_per_s = float(rates_per_s.sum())
    drawn = [np.empty(0) for _ in sources]
    ready, until_s = np.empty(0), begin_s

    def take(count: int) -> np.ndarray:
        nonlocal ready, until_s
        while len(ready) < count:
            span_s = max(count - len(ready), 64) / total_per_s
            until_s += span_s
            passed = []
            for number, (source, rate_per_s) in enumerate(zip(sources, rates_per_s, strict=True)):
                own = _up_to(drawn[number], source, until_s, math.ceil(rate_per_s * span_s) + 4)
                here = int(np.searchsorted(own, until_s, "right"))
                passed.append(own[:here])
                drawn[number] = own[here:]
            ready = np.concatenate([ready, np.sort(np.concatenate(passed))])
        times_s, ready = ready[:count], ready[count:]
        return times_s

    return take


def _up_to(own: np.ndarray, source: Take, until_s: float, count: int) -> np.ndarray:
    """*own* times and as many more of *source*, *count* at a time, as it takes to pass *until_s*."""
    while not len(own) or own[-1] <= until_s:
        own = np.concatenate([own, source(count)])
    return own
