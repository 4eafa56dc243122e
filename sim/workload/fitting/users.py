"""What a trace tells of its users: turns of sessions, and how much of the traffic few tenants make."""

from __future__ import annotations

import numpy as np

from sim.workload.chains import Chains
from sim.workload.trace import Trace


def sessions_of(trace: Trace, times_s: np.ndarray) -> list[str]:
    """In a sentence: turns, and the gaps between them, by ids of sessions or else by prompts that go on."""
    sessions, how = getattr(trace, "sessions", None), "by the file's sessions"
    if sessions is None and trace.chains is not None:
        sessions, how = _continued(trace.chains), "a follow-up has all but one block of an earlier prompt"
    if sessions is None:
        return []
    order = np.lexsort((times_s, sessions))
    again = sessions[order][1:] == sessions[order][:-1]
    if not again.any():
        return []
    gaps = np.diff(times_s[order])[again]
    logs = np.log(np.maximum(gaps, 1e-3))
    turns = len(sessions) / len(np.unique(sessions))
    return [
        f"{turns:.3g} turns a session on average ({how}); from one turn to the next a median of "
        f"{np.median(gaps):.3g} s, 90 % within {np.quantile(gaps, 0.9):.3g} s, and as a lognormal a mean of "
        f"{np.exp(logs.mean() + logs.var() / 2):.3g} s with a coefficient of variation of "
        f"{np.sqrt(np.expm1(logs.var())):.3g}"
    ]


def _continued(chains: Chains) -> np.ndarray:
    """A session's number for each request: that of the last prompt all but one block of which it begins
    with, and which has more than one; else its own."""
    last: dict[int, int] = {}  # of the id of a prompt's last block but one, or last: the request
    session = np.arange(len(chains.lines))
    ids, bounds = chains.ids.tolist(), chains.offsets.tolist()
    for row in range(len(session)):
        own = ids[bounds[row] : bounds[row + 1]]
        before = next((last[block] for block in reversed(own[1:]) if block in last), None)
        if before is not None:
            session[row] = session[before]
        for block in own[1:][-2:]:
            last[block] = row
    return session


def tenants_of(trace: Trace) -> list[str]:
    """In a sentence: the share of the requests that the largest classes or tenants make."""
    classes = getattr(trace, "classes", None)
    if classes is None:
        return []
    counts = np.sort(np.bincount(classes))[::-1]
    shares = np.cumsum(counts) / counts.sum()
    for_most = int(np.searchsorted(shares, 0.9)) + 1
    return [
        f"{len(counts):,} classes or tenants: the largest makes {100 * shares[0]:.0f} % of the requests, "
        f"{for_most:,} make 90 %"
    ]
