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
_MOST_STEPS, _WINDOWS = 360, 12
_MOVES = 0.1
"""Association of kind and time (Cramer's V) from which on the mix of lengths is said to move."""


@dataclass(frozen=True)
class Drift:
    """keys: of a workload, `classes`, or `arrivals` where one mix of lengths is enough. says: how each part
    was got, by key. missed: what they do not have."""

    keys: Mapping[str, Any]
    says: Mapping[str, str]
    missed: tuple[str, ...]


def fit_drift(
    times_s: np.ndarray, prompt_tokens: np.ndarray | None = None, output_tokens: np.ndarray | None = None
) -> Drift:
    """The arrivals *times_s* (float64, never falling, from 0) as Poisson with a rate that changes in equal
    steps; where the mix of lengths (int64) moves with time, as one such process a kind of requests.

    Kinds are clusters of both lengths' logarithms, in units of their deviations (k-means, Lloyd 1982).
    """
    kind = None if prompt_tokens is None or output_tokens is None else _kinds(prompt_tokens, output_tokens)
    moves = kind is not None and _association(times_s, kind) > _MOVES
    most = len(times_s) / LEAST_IN_CELL / (KINDS if moves else 1)
    edges_s = np.linspace(0, float(times_s[-1]), round(max(min(most, _MOST_STEPS), 2)) + 1)
    rates = f"the recorded rate in {len(edges_s) - 1} equal steps, Poisson within them"
    missed = (
        f"another day: rates are those of the one recorded span of {edges_s[-1]:.0f} s, after which they "
        f"are the mean; bursts shorter than a step of {edges_s[1]:.3g} s"
    )
    if kind is None or not moves:
        return Drift({"arrivals": _arrivals(times_s, edges_s)}, {"arrivals": rates}, (missed,))
    assert prompt_tokens is not None
    assert output_tokens is not None
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


def _association(times_s: np.ndarray, kind: np.ndarray) -> float:
    """Of kind and time, from 0 to 1: Cramer's V of kinds in equal windows, less what chance gives (Bergsma,
    Journal of the Korean Statistical Society 42, 2013)."""
    window = np.minimum((times_s / times_s[-1] * _WINDOWS).astype(int), _WINDOWS - 1)
    counts = np.histogram2d(window, kind, bins=[np.arange(_WINDOWS + 1), np.arange(kind.max() + 2)])[0]
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    free = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    if not free:
        return 0.0
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    excess = float(((counts - expected) ** 2 / expected).sum()) - free
    return float(np.sqrt(max(excess, 0.0) / counts.sum() / (min(counts.shape) - 1)))
