"""Which process recorded arrivals are like: renewals where gaps are independent, else a changing rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.faults import InputFault
from sim.workload.dispersion import LEAST_WINDOWS, WINDOWS_S, dispersion
from sim.workload.fitting.cascade import fit_cascade

LEAST_REQUESTS = 50
_SURE = 3.291  # standard errors, 99.9 %
_NEAR = 0.03
"""A gamma process is taken where no gap's probability is further off than this, beside sampling."""


@dataclass(frozen=True)
class Arrivals:
    """keys: as `workload.arrivals`. says: how it was got, in a sentence. missed: what it does not have."""

    keys: Mapping[str, Any]
    says: str
    missed: tuple[str, ...] = ()


def fit_arrivals(times_s: np.ndarray) -> Arrivals:
    """A process like the arrivals *times_s* (float64, never falling, from 0).

    Constant, poisson or gamma where gaps are independent and like that; else states of a Markov chain.
    """
    if (renewal := _renewal(np.diff(times_s))) is not None:
        return renewal
    span_s = float(times_s[-1])
    keys = fit_cascade(dispersion(times_s, span_s), len(times_s) / span_s, span_s).arrivals()
    return Arrivals(keys, _words(keys, span_s), (_missed(span_s),))


def _renewal(gaps: np.ndarray) -> Arrivals | None:
    """Constant, poisson or gamma; None where gaps depend on one another or are like none of them."""
    cv = gaps.std() / gaps.mean()
    if cv < 0.01:
        return Arrivals({"kind": "constant"}, f"gaps are equal (coefficient of variation {cv:.2g})")
    if not _independent(gaps) or np.mean(gaps <= 0) > 0.005:
        return None
    shape, error = gamma_shape(gaps[gaps > 0])
    if abs(shape - 1) < _SURE * error and _distance(gaps, 1.0) < _NEAR:
        return Arrivals({"kind": "poisson"}, f"gaps are independent and exponential (shape {shape:.3f})")
    if _distance(gaps, shape) > _NEAR:
        return None
    return Arrivals(
        {"kind": "gamma", "burstiness": float(f"{shape:.4g}")},
        f"gaps are independent and gamma, by maximum likelihood (coefficient of variation {cv:.3g})",
    )


def _independent(gaps: np.ndarray) -> bool:
    """Whether sums of k gaps vary as those of independent ones: the index of dispersion for intervals is
    flat (Sriram and Whitt 1986), within what sampling allows at 99.9 %."""
    kurtosis = float(np.mean((gaps - gaps.mean()) ** 4) / gaps.var() ** 2)
    for size in (4, 16, 64, 256, 1024):
        groups = len(gaps) // size
        if groups < 8:
            break
        sums = gaps[: groups * size].reshape(groups, size).sum(axis=1)
        ratio = sums.var(ddof=1) / (size * gaps.var())
        error = math.sqrt((2 + (kurtosis - 3) / size) / groups + max(kurtosis - 1, 0) / len(gaps))
        if abs(ratio - 1) > _SURE * error:
            return False
    return True


def gamma_shape(gaps: np.ndarray) -> tuple[float, float]:
    """Of gamma gaps, by maximum likelihood, and its standard error: ln k - digamma(k) = ln mean - mean ln."""
    from scipy.optimize import brentq
    from scipy.special import polygamma, psi

    spread = math.log(gaps.mean()) - float(np.log(gaps).mean())
    shape = float(brentq(lambda k: math.log(k) - psi(k) - spread, 1e-3, 1e5))
    return shape, math.sqrt(shape / (len(gaps) * (shape * float(polygamma(1, shape)) - 1)))


def _distance(gaps: np.ndarray, shape: float) -> float:
    """Kolmogorov-Smirnov distance to a gamma distribution of the same mean."""
    from scipy.stats import gamma

    ordered = gamma.cdf(np.sort(gaps), shape, scale=gaps.mean() / shape)
    places = np.arange(len(gaps) + 1) / len(gaps)
    return float(np.maximum(np.abs(ordered - places[1:]), np.abs(ordered - places[:-1])).max())


def _words(keys: Mapping[str, Any], span_s: float) -> str:
    windows_s = [window_s for window_s in WINDOWS_S if window_s * LEAST_WINDOWS <= span_s]
    states = len(keys["rates"]) if keys["kind"] == "mmpp" else 2
    return (
        f"a rate of {states} states, fitted to the index of dispersion of counts and the share of "
        f"silent windows at {len(windows_s)} lengths from {windows_s[0]:g} to {windows_s[-1]:g} s"
    )


def _missed(span_s: float) -> str:
    return (
        f"what changes more slowly than {span_s / LEAST_WINDOWS:.0f} s (a fifth of the trace) is known from "
        "so few repetitions that it is little more than a guess; --drift keeps the recorded rates"
    )


def spread_over_grid(times_s: np.ndarray, seed: int = 1) -> tuple[np.ndarray, float]:
    """*times_s* with those on a coarse grid spread evenly over its steps (sorted, from 0), and the step; 0
    where there is none. A grid has two requests a time or more on average, and all times within 1 % of it.
    """
    distinct = np.unique(times_s)
    if len(distinct) < 5 or len(times_s) < 2 * len(distinct):
        return times_s, 0.0
    step_s = float(np.median(np.diff(distinct)))
    step_s = float(np.median(distinct[1:] / np.rint(distinct[1:] / step_s).clip(1)))
    if np.abs(distinct / step_s - np.rint(distinct / step_s)).max() > 0.01:
        return times_s, 0.0
    step_s = float(f"{step_s:.3g}")
    spread = np.sort(times_s + step_s * np.random.default_rng(seed).random(len(times_s)))
    return spread - spread[0], step_s


def require_arrivals(times_s: np.ndarray, path: str) -> None:
    """Raises InputFault where there are too few arrivals, or all at one time, to say anything of them."""
    if len(times_s) < LEAST_REQUESTS:
        raise InputFault(
            f"{path}: a fit needs at least {LEAST_REQUESTS} requests (got {len(times_s)}); use the file "
            "itself as the workload"
        )
    if times_s[-1] <= 0:
        raise InputFault(
            f"{path}: all requests arrive at one time, so that there is no rate; use load: burst"
        )
