"""What one recorded span had of its own: kinds of requests, and the rate of each over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.workload.fitting.lengths import LEAST_IN_CELL, fit_lengths

KINDS = 12
"""Kinds of requests that are told apart: enough for the modes of a dozen templates, few enough for each to
have a rate in every step."""
_LEAST_STEP_S, _MOST_STEPS = 60.0, 288


@dataclass(frozen=True)
class Drift:
    """keys: of a workload, `classes`, or `arrivals` where lengths are not known. says: how each part was got,
    by key. missed: what they do not have."""

    keys: Mapping[str, Any]
    says: Mapping[str, str]
    missed: tuple[str, ...]


def fit_drift(
    times_s: np.ndarray, prompt_tokens: np.ndarray | None = None, output_tokens: np.ndarray | None = None
) -> Drift:
    """The arrivals *times_s* (float64, never falling, from 0) as Poisson processes whose rates change in
    equal steps, one a kind of requests: kinds are alike in both lengths (int64; without them there is one).

    Kinds are clusters of the logarithms, in units of their deviations (k-means, Lloyd 1982).
    """
    span_s = float(times_s[-1])
    most = min(span_s / _LEAST_STEP_S, len(times_s) / (KINDS * LEAST_IN_CELL), _MOST_STEPS)
    edges_s = np.linspace(0, span_s, max(round(most), 2) + 1)
    missed = (
        f"another day: rates and kinds are those of the one recorded span of {span_s:.0f} s, after which "
        f"each kind goes on at its mean; bursts shorter than a step of {edges_s[1]:.3g} s"
    )
    rates = f"the recorded rate in {len(edges_s) - 1} equal steps, Poisson within them"
    if prompt_tokens is None or output_tokens is None:
        return Drift({"arrivals": _arrivals(times_s, edges_s)}, {"arrivals": rates}, (missed,))
    kind = _kinds(prompt_tokens, output_tokens)
    classes: dict[str, Any] = {}
    for number in np.argsort(-np.bincount(kind), kind="stable").tolist():
        if (own := kind == number).any():
            classes[f"kind-{len(classes) + 1}"] = {
                "share": float(f"{own.mean():.5g}"),
                "arrivals": _arrivals(times_s[own], edges_s),
                "lengths": dict(fit_lengths(prompt_tokens[own], output_tokens[own]).keys),
            }
    says = {
        "arrivals": f"of each kind of requests {rates}",
        "lengths": f"{len(classes)} kinds of requests (clusters of both lengths), a table of each",
    }
    return Drift({"classes": classes}, says, (missed,))


def _arrivals(times_s: np.ndarray, edges_s: np.ndarray) -> dict[str, Any]:
    counts = np.histogram(times_s, edges_s)[0]
    rates = [float(f"{count / counts.mean():.3g}") for count in counts]
    steps = {"times_s": [round(at_s, 3) for at_s in edges_s.tolist()], "rates": [*rates, 1.0]}
    return {"kind": "poisson", "series": steps | {"interpolation": "step"}}


def _kinds(prompt_tokens: np.ndarray, output_tokens: np.ndarray) -> np.ndarray:
    """The kind of each request, a number from 0."""
    from scipy.cluster.vq import kmeans2

    logs = np.log(np.column_stack([prompt_tokens, output_tokens]).astype(np.float64))
    deviations = np.maximum(logs.std(axis=0), 1e-9)
    kinds = min(KINDS, len(np.unique(logs, axis=0)))
    _, kind = kmeans2((logs - logs.mean(axis=0)) / deviations, kinds, minit="++", seed=1)
    return np.asarray(kind, dtype=np.int64)
