"""From the words of a row to a distribution of lengths: what the words leave open is assumed here, by kind.

No row has an assumption of its own. A cap is part of a distribution: the mean is that of the capped lengths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from sim.validation.points import Point

CONVERSATION_SIGMA = 1.0
"""Standard deviation of the logarithm of lengths in samples of conversations (ShareGPT, OpenOrca)."""
CONVERSATION_CAP = 1024
"""Longest prompt and answer that the benchmarks keep of such a sample."""
ANSWER_SIGMA = 0.6
"""The same of answers that end by themselves, to one kind of prompts."""
NOMINAL_SPREAD = 0.1
"""Coefficient of variation that stands for "not in lockstep"; 0.1 and 0.6 give the same answers."""
KNOWN_MEANS: Mapping[str, tuple[float | None, float | None]] = {
    "mlperf openorca": (294.0, 295.0),
    "sharegpt": (217.0, 200.0),
    "short chat questions": (40.0, None),
}
"""Prompt and output tokens of well-known sets, where a row does not say them."""

_UNIFORM_SIGMA = 1 / 9 / math.sqrt(3)  # of 0.8 to 1.0 of a nominal length

Lengths = dict[str, Any]


def lengths_of(point: Point, in_lockstep: bool) -> Lengths | str:
    """The workload's `lengths`, or why the row does not tell them."""
    prompt = _side(point, point.isl_dist, point.isl_mean, 0)
    output = _side(point, point.osl_dist, point.osl_mean, 1)
    if prompt is None or output is None:
        return f"the row does not say how long {'prompts' if prompt is None else 'answers'} are"
    if _is_nominal(point) and not in_lockstep and output["kind"] == "fixed":
        output = lognormal(output["mean"], NOMINAL_SPREAD)
    return {"kind": "mixture", "prompt": _mixture(prompt), "output": _mixture(output)}


def mean_output_tokens(lengths: Lengths) -> float:
    """Mean of the answers in *lengths*, in tokens."""
    side = lengths["output"]
    return capped_mean(side["mu"][0], side["sigma"][0], side.get("max", math.inf))


def lognormal(mean: float, sigma: float, cap: float = math.inf) -> Lengths:
    """A lognormal whose lengths, those above *cap* set to it, have *mean*."""
    return {"kind": "lognormal", "mean": mean, "sigma": sigma, "cap": cap}


def capped_mean(mu: float, sigma: float, cap: float) -> float:
    """Mean of min(X, cap), ln X normal: exp(mu + s^2/2) Phi((c - mu - s^2)/s) + cap (1 - Phi((c - mu)/s))."""
    if sigma == 0 or math.isinf(cap):
        return min(math.exp(mu + sigma * sigma / 2), cap)
    at = (math.log(cap) - mu) / sigma
    return math.exp(mu + sigma * sigma / 2) * _phi(at - sigma) + cap * (1 - _phi(at))


def _phi(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _is_nominal(point: Point) -> bool:
    return "nominal" in point.osl_dist


def _side(point: Point, words: str, mean: float | None, which: int) -> Lengths | None:
    """What *words* say of one side: kind, mean, and sigma and cap; None if not enough."""
    said = words.casefold()
    if found := re.search(r"p50 (\d+) / p90 (\d+)", said):
        median, tail = float(found[1]), float(found[2])
        sigma = math.log(tail / median) / 1.2816
        return lognormal(median * math.exp(sigma * sigma / 2), sigma)
    if mean is None:
        mean = _known_mean(point.isl_dist.casefold(), which)
    cap = re.search(r"capped (\d+)|max_tokens (\d+)|\bmax (\d+)\b", said) if which else None
    most = float(next(group for group in cap.groups() if group)) if cap else math.inf
    if mean is None:
        return None
    if "0.8-1.0 of nominal" in said or (which and "0.8-1.0 of nominal" in point.isl_dist):
        return lognormal(0.9 * mean, _UNIFORM_SIGMA, mean)
    if "natural eos" in said:
        return lognormal(mean, ANSWER_SIGMA, max(most, mean + 1))
    if any(word in said for word in ("sharegpt", "openorca", "chat")) and "longctx" not in said:
        return lognormal(mean, CONVERSATION_SIGMA, max(CONVERSATION_CAP, 2 * mean))
    return {"kind": "fixed", "mean": mean}


def _known_mean(said: str, which: int) -> float | None:
    if "longctx" in said:  # another set than its name says
        return None
    return next((known[which] for key, known in KNOWN_MEANS.items() if key in said), None)


def _mixture(side: Lengths) -> dict[str, Any]:
    """One side as a mixture of one lognormal with a largest length (the one kind that has a cap)."""
    mean, sigma, cap = side["mean"], side.get("sigma", 0.0), side.get("cap", math.inf)
    mu = math.log(mean) - sigma * sigma / 2
    if sigma and math.isfinite(cap):
        mu = _solved(mean, sigma, cap)
    told: dict[str, Any] = {"weights": [1.0], "mu": [mu], "sigma": [sigma]}
    return told if math.isinf(cap) else {**told, "max": round(cap)}


def _solved(mean: float, sigma: float, cap: float) -> float:
    """The mu at which lengths capped at *cap* have *mean* (below it), by bisection."""
    low, high = math.log(mean) - 2, math.log(cap) + 8 * sigma
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if capped_mean(middle, sigma, cap) < mean else (low, middle)
    return (low + high) / 2
