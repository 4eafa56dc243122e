"""Distributions of a length: by name, each as draws and moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.faults import InputFault, did_you_mean
from sim.workload.streams import Streams, Take


@dataclass(frozen=True)
class Length:
    """The distribution of one length, in tokens.

    open(streams, name): its values (float64, not rounded), from the streams that begin with *name*.
    mean, mean_square: of the distribution before rounding. at(scores): its values where a standard normal
    has these, for lengths that hang together; None where that is not asked for.
    """

    open: Callable[[Streams, str], Take]
    mean: float
    mean_square: float
    at: Callable[[np.ndarray], np.ndarray] | None = None

    def draw(self, seed: int, name: str, count: int) -> np.ndarray:
        """The first *count* values of the streams *name* of *seed*."""
        return self.open(Streams(seed), name)(count)


def length_distributions(lengths: Mapping[str, Any]) -> tuple[Length, Length]:
    """The distributions of prompt and output that *lengths* describes. Raises InputFault."""
    kind = lengths["kind"]
    if kind not in _KINDS:
        raise InputFault(
            f"workload.lengths.kind {kind} is unknown{did_you_mean(kind, [*_KINDS, 'joint', 'trace'])}"
        )
    built, faults = [], []
    for side in ("prompt", "output"):
        try:
            built.append(_KINDS[kind](lengths, side))
        except ValueError as fault:
            faults.append(f"workload.lengths.{side}{fault}")
    if faults:
        raise InputFault(faults)
    return built[0], built[1]


def fixed(tokens: float) -> Length:
    """Always *tokens*."""
    _need(tokens >= 1, "_tokens", "be at least 1", tokens)
    return Length(
        lambda streams, name: lambda count: np.full(count, float(tokens)),
        tokens,
        tokens**2,
        lambda scores: np.full(len(scores), float(tokens)),
    )


def uniform(least: int, most: int) -> Length:
    """Every whole number from *least* to *most* alike."""
    _need(1 <= least <= most, "_min and max", "be at least 1 and in order", [least, most])
    size, mean = most - least + 1, (least + most) / 2

    def open_(streams: Streams, name: str) -> Take:
        share = streams.open(name).random
        return lambda count: np.floor(least + size * share(count))

    def at(scores: np.ndarray) -> np.ndarray:
        return np.minimum(np.floor(least + size * _share_below(scores)), most)

    return Length(open_, mean, mean**2 + (size**2 - 1) / 12, at)


def _share_below(scores: np.ndarray) -> np.ndarray:
    """The standard normal distribution function."""
    from scipy.special import ndtr

    return ndtr(scores)


def lognormal(mean: float, cv: float) -> Length:
    """Lognormal with this *mean* and coefficient of variation *cv*: sigma^2 = ln(1 + cv^2), mu = ln(mean)
    - sigma^2 / 2 (Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1, 1994, ch. 14)."""
    _need(mean >= 1, "_mean", "be at least 1", mean)
    _need(cv >= 0, "_cv", "be at least 0", cv)
    sigma = math.sqrt(math.log1p(cv**2))
    return lognormal_mixture([1.0], [math.log(mean) - sigma**2 / 2], [sigma])


def lognormal_mixture(
    weights: Sequence[float],
    mu: Sequence[float],
    sigma: Sequence[float],
    least: float = 1.0,
    most: float = math.inf,
) -> Length:
    """A mixture of lognormals (*mu* and *sigma* of the logarithm), clipped to *least* .. *most*."""
    same = len(weights) == len(mu) == len(sigma) > 0
    _need(same, ".weights, mu and sigma", "have one length", [len(weights), len(mu), len(sigma)])
    _need(min(weights) >= 0 and abs(sum(weights) - 1) < 0.01, ".weights", "add up to 1", list(weights))
    _need(min(sigma) >= 0, ".sigma", "be at least 0", list(sigma))
    _need(1 <= least <= most, ".min and max", "be at least 1 and in order", [least, most])
    cumulative = np.cumsum(weights) / sum(weights)
    mus, sigmas = np.asarray(mu, dtype=np.float64), np.asarray(sigma, dtype=np.float64)

    def open_(streams: Streams, name: str) -> Take:
        normal, share = streams.open(name).standard_normal, streams.open(f"{name}.component").random

        def take(count: int) -> np.ndarray:
            if len(cumulative) == 1:
                logs = mus[0] + sigmas[0] * normal(count)
            else:
                component = np.searchsorted(cumulative[:-1], share(count))
                logs = mus[component] + sigmas[component] * normal(count)
            return np.clip(np.exp(logs), least, most)

        return take

    def moment(power: int) -> float:
        parts = [
            weight * _clipped_moment(power, part_mu, part_sigma, least, most)
            for weight, part_mu, part_sigma in zip(weights, mu, sigma, strict=True)
        ]
        return sum(parts) / sum(weights)

    def at(scores: np.ndarray) -> np.ndarray:
        logs = mus[0] + sigmas[0] * scores if len(mus) == 1 else _mixture_at(scores, cumulative, mus, sigmas)
        return np.clip(np.exp(logs), least, most)

    return Length(open_, moment(1), moment(2), at)


def _mixture_at(
    scores: np.ndarray, cumulative: np.ndarray, mus: np.ndarray, sigmas: np.ndarray
) -> np.ndarray:
    """Where a mixture of normals has the share below that a standard normal has at *scores*: between points
    a fiftieth of each component's sigma apart, straight."""
    from scipy.special import ndtr, ndtri

    spread = np.maximum(sigmas, 1e-9)
    points = np.unique(mus[:, None] + spread[:, None] * np.linspace(-10, 10, 1001))
    units = (points - mus[:, None]) / spread[:, None]
    weights = np.diff(cumulative, prepend=0.0)
    below, above = weights @ ndtr(units), weights @ ndtr(-units)
    reached = np.where(below < 0.5, ndtri(below), -ndtri(above))
    rising = np.flatnonzero(np.isfinite(reached) & (np.diff(reached, prepend=-math.inf) > 0))
    return np.interp(scores, reached[rising], points[rising])


def _clipped_moment(power: int, mu: float, sigma: float, least: float, most: float) -> float:
    """E[X^power] of a lognormal clipped to *least* .. *most*: its partial moments (as for `lognormal`,
    ch. 14) between the limits, and the probability at either limit."""
    if sigma == 0:
        return min(max(math.exp(mu), least), most) ** power

    def below(limit: float, shift: float) -> float:
        """P(ln X < ln limit) when mu is moved by *shift*."""
        return 0.5 * (1 + math.erf((math.log(limit) - mu - shift) / (sigma * math.sqrt(2))))

    tilted = power * sigma**2
    inside = below(most, tilted) - below(least, tilted)
    above = 1 - below(most, 0)
    at_most = most**power * above if above > 0 else 0.0
    return least**power * below(least, 0) + math.exp(power * mu + power * tilted / 2) * inside + at_most


def quantile_table(quantiles: Sequence[float], tokens: Sequence[float]) -> Length:
    """The inverse distribution through the points (quantile, tokens), straight in ln(tokens) between them.

    Moments: the integral of v^k over each piece, dq (b^k - a^k) / (k ln(b / a)).
    """
    _need(len(quantiles) == len(tokens) > 1, ".quantiles and tokens", "have one length, at least 2",
          [len(quantiles), len(tokens)])  # fmt: skip
    q, v = np.asarray(quantiles, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    rising = q[0] == 0 and q[-1] == 1 and bool(np.all(np.diff(q) > 0))
    _need(rising, ".quantiles", "rise from 0 to 1", list(quantiles))
    _need(v[0] > 0 and bool(np.all(np.diff(v) >= 0)), ".tokens", "be above 0 and never fall", list(tokens))
    logs = np.log(v)

    def open_(streams: Streams, name: str) -> Take:
        share = streams.open(name).random
        return lambda count: np.exp(np.interp(share(count), q, logs))

    def moment(power: int) -> float:
        steps = power * np.diff(logs)
        flat = steps < 1e-9
        pieces = np.where(flat, v[1:] ** power, np.diff(v**power) / np.where(flat, 1.0, steps))
        return float(np.sum(np.diff(q) * pieces))

    def at(scores: np.ndarray) -> np.ndarray:
        return np.exp(np.interp(_share_below(scores), q, logs))

    return Length(open_, moment(1), moment(2), at)


def geometric(mean: float) -> Length:
    """Geometric on 1, 2, ... with this *mean*: an exponential rounded up. Its memorylessness is what
    queueing formulas ask for."""
    _need(mean >= 1, "_mean", "be at least 1", mean)
    if mean == 1:
        return fixed(1)
    rate = -math.log1p(-1 / mean)

    def open_(streams: Streams, name: str) -> Take:
        exponential = streams.open(name).standard_exponential
        return lambda count: np.ceil(exponential(count) / rate)

    def at(scores: np.ndarray) -> np.ndarray:
        from scipy.special import log_ndtr

        return np.maximum(np.ceil(-log_ndtr(-scores) / rate), 1.0)

    return Length(open_, mean, 2 * mean**2 - mean, at)


def _of_mixture(lengths: Mapping[str, Any], side: str) -> Length:
    part = lengths[side]
    limits = part.get("min") or 1.0, part.get("max") or math.inf
    return lognormal_mixture(part["weights"], part["mu"], part["sigma"], *limits)


def _of_geometric(lengths: Mapping[str, Any], side: str) -> Length:
    tokens = lengths.get(f"{side}_tokens")
    return geometric(lengths[f"{side}_mean"]) if tokens is None else fixed(tokens)


def _of_lognormal(lengths: Mapping[str, Any], side: str) -> Length:
    cv = lengths.get(f"{side}_cv")
    return lognormal(lengths[f"{side}_mean"], lengths["cv"] if cv is None else cv)


_KINDS: dict[str, Callable[[Mapping[str, Any], str], Length]] = {
    "uniform": lambda lengths, side: uniform(lengths[f"{side}_min"], lengths[f"{side}_max"]),
    "fixed": lambda lengths, side: fixed(lengths[f"{side}_tokens"]),
    "lognormal": _of_lognormal,
    "mixture": _of_mixture,
    "table": lambda lengths, side: quantile_table(lengths[side]["quantiles"], lengths[side]["tokens"]),
    "geometric": _of_geometric,
}


def _need(holds: bool, what: str, requirement: str, got: object) -> None:
    if not holds:
        raise ValueError(f"{what} must {requirement} (got {got})")


def zipf_shares(count: int, exponent: float | None) -> np.ndarray:
    """The share of each of *count*, the most popular first: k^-exponent in proportion (1 where None)."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -(1.0 if exponent is None else exponent)
    return weights / weights.sum()
