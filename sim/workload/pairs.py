"""Prompt and output of a request together: independent, correlated, or from a joint table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.workload.distributions import Length, length_distributions
from sim.workload.streams import Streams, repeated

TakePairs = Callable[[int], tuple[np.ndarray, np.ndarray]]

_FINE, _COARSE = 1 << 14, 1 << 9
"""Points of a quadrature over one normal score, and over either of two."""
_MOST_SCORE = 10.0


@dataclass(frozen=True)
class Pair:
    """The distribution of the prompt and the output of a request, in tokens.

    open(streams, answers): float64 pairs, neither rounded nor capped; so many in a row have one prompt. most:
    the caps of prompts and outputs. Before rounding, with the caps: prompt, output: their means. prompt_met:
    E[o p] / E[o], the prompt of a running sequence (see `lengths.mean_context_tokens`). output_square:
    E[o^2].
    """

    open: Callable[[Streams, int], TakePairs]
    prompt: float
    output: float
    prompt_met: float
    output_square: float
    most: tuple[float, float] = (math.inf, math.inf)


def pair_of(lengths: Mapping[str, Any]) -> Pair:
    """The pair that *lengths* describes (any kind but trace). Raises InputFault."""
    caps = [lengths.get(f"max_{side}_tokens") or math.inf for side in ("prompt", "output")]
    most = float(caps[0]), float(caps[1])
    if lengths["kind"] == "joint":
        return joint_table(lengths["prompt_edges"], lengths["output_edges"], lengths["cells"], most)
    prompt, output = map(capped, length_distributions(lengths), most)
    rho = lengths.get("correlation")
    pair = correlated(prompt, output, rho, most) if rho else independent(prompt, output)
    return replace(pair, most=most)


def independent(prompt: Length, output: Length) -> Pair:
    """*prompt* and *output* say nothing about one another."""

    def open_(streams: Streams, answers: int) -> TakePairs:
        prompts = repeated(prompt.open(streams, "lengths.prompt"), answers)
        outputs = output.open(streams, "lengths.output")
        return lambda count: (prompts(count), outputs(count))

    return Pair(open_, prompt.mean, output.mean, prompt.mean, output.mean_square)


def correlated(
    prompt: Length, output: Length, spearman: float, most: tuple[float, float] = (math.inf, math.inf)
) -> Pair:
    """Of normal scores whose rank correlation is *spearman*: a Gaussian copula, with a correlation of
    2 sin(pi spearman / 6) (W. H. Kruskal, J. Am. Stat. Assoc. 53, 1958). Values that many requests have
    in common make the lengths' own rank correlation weaker. *most*: the caps of either side.

    E[o p] is E[o] E[p] and a covariance by the trapezoidal rule over both scores, within a thousandth.
    """
    rho = 2 * math.sin(math.pi * spearman / 6)
    prompt_at, output_at = _by_score(prompt), _by_score(output)

    def open_(streams: Streams, answers: int) -> TakePairs:
        first = repeated(streams.open("lengths.prompt").standard_normal, answers)
        other = streams.open("lengths.output").standard_normal

        def take(count: int) -> tuple[np.ndarray, np.ndarray]:
            scores = first(count)
            return prompt_at(scores), output_at(rho * scores + math.sqrt(1 - rho**2) * other(count))

        return take

    scores = np.linspace(-_MOST_SCORE, _MOST_SCORE, _COARSE)
    p, o = np.minimum(prompt_at(scores), most[0]), np.minimum(output_at(scores), most[1])
    one, two = scores[:, None], scores[None, :]
    weights = np.exp(-(one**2 - 2 * rho * one * two + two**2) / (2 * (1 - rho**2)))
    weights /= weights.sum()
    covariance = float(p @ weights @ o) - float(p @ weights.sum(axis=1)) * float(weights.sum(axis=0) @ o)
    return Pair(open_, prompt.mean, output.mean, prompt.mean + covariance / output.mean, output.mean_square)


def capped(length: Length, most: float) -> Length:
    """*length* with the moments that it has where what is above *most* is set to it, by the trapezoidal rule
    over the score; what is drawn of it is cut, and counted, by who takes it."""
    if most == math.inf:
        return length
    scores = np.linspace(-_MOST_SCORE, _MOST_SCORE, _FINE)
    weights = np.exp(-(scores**2) / 2)
    values = np.minimum(_by_score(length)(scores), most)
    mean, square = (float(weights @ values**power / weights.sum()) for power in (1, 2))
    return replace(length, mean=mean, mean_square=square)


def _by_score(length: Length) -> Callable[[np.ndarray], np.ndarray]:
    assert length.at is not None, "every kind of lengths has its values by score"
    return length.at


def joint_table(
    prompt_edges: list[float],
    output_edges: list[float],
    shares: list[list[float]],
    most: tuple[float, float] = (math.inf, math.inf),
) -> Pair:
    """The share of requests in each cell between two edges of prompts (rows) and of outputs (columns);
    inside a cell both are uniform in the logarithm, and independent. *most*: the caps of either side."""
    cells = np.asarray(shares, dtype=np.float64)
    cells = cells / cells.sum()
    bounds = np.cumsum(cells.ravel())[:-1]
    logs = [np.log(np.asarray(edges, dtype=np.float64)) for edges in (prompt_edges, output_edges)]

    def open_(streams: Streams, answers: int) -> TakePairs:
        assert answers == 1, "answers to one prompt need lengths that are drawn one by one"
        share = streams.open("lengths.cell").random
        inside = [streams.open(f"lengths.{side}").random for side in ("prompt", "output")]

        def take(count: int) -> tuple[np.ndarray, np.ndarray]:
            places = np.divmod(np.searchsorted(bounds, share(count), "right"), cells.shape[1])
            prompts, outputs = (
                np.exp(edges[place] + (edges[place + 1] - edges[place]) * within(count))
                for edges, place, within in zip(logs, places, inside, strict=True)
            )
            return prompts, outputs

        return take

    (p, _), (o, square) = (
        [log_uniform_moment(power, edges[:-1], edges[1:], math.log(cap)) for power in (1, 2)]
        for edges, cap in zip(logs, most, strict=True)
    )
    mean_output = float(cells.sum(axis=0) @ o)
    met = float(p @ cells @ o) / mean_output
    squared = float(cells.sum(axis=0) @ square)
    return Pair(open_, float(cells.sum(axis=1) @ p), mean_output, met, squared, most)


def log_uniform_moment(power: int, low: np.ndarray, high: np.ndarray, most: float = math.inf) -> np.ndarray:
    """E[min(e^x, e^most)^power] of x that is uniform between *low* and *high*."""
    split = np.clip(most, low, high)
    inside = (np.exp(power * split) - np.exp(power * low)) / power
    return (inside + np.exp(power * np.minimum(split, most)) * (high - split)) / (high - low)
