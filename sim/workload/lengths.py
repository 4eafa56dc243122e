"""How long prompts and outputs are: distributions by name, or a trace's own pairs; drawing and moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.faults import InputFault, did_you_mean
from sim.workload.streams import stream
from sim.workload.trace import Trace, read_trace


@dataclass(frozen=True)
class Length:
    """The distribution of one length, in tokens.

    draw(seed, name, count): *count* values (float64, not rounded), from the streams that begin with
    *name*. mean, mean_square: of the distribution before rounding.
    """

    draw: Callable[[int, str, int], np.ndarray]
    mean: float
    mean_square: float


def draw_lengths(
    workload: Mapping[str, Any], count: int, seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Prompt and output tokens of *count* requests (int64, nearest integer, at least 1), and notes.

    Prompt and output are independent, except in a trace: its rows are replayed in order, and once all
    are used whole rows are drawn again at random (note `trace_rows_resampled`), or, where prompts share
    blocks with those of other rows, in order again. Several `answers` have one prompt.
    """
    lengths = workload["lengths"]
    if lengths["kind"] == "trace":
        return _replay(trace_of(workload), count, seed)
    prompt, output = length_distributions(lengths)
    answers = int(workload.get("answers") or 1)
    prompt_tokens = whole_tokens(prompt.draw(seed, "lengths.prompt", -(-count // answers)))
    prompt_tokens = np.repeat(prompt_tokens, answers)[:count]
    return prompt_tokens, whole_tokens(output.draw(seed, "lengths.output", count)), {}


def whole_tokens(tokens: np.ndarray) -> np.ndarray:
    """*tokens* as int64, rounded to the nearest integer, at least 1."""
    return np.maximum(np.rint(tokens), 1).astype(np.int64)


def mean_tokens(workload: Mapping[str, Any]) -> tuple[float, float]:
    """Mean prompt and output tokens of a request."""
    prompt, output, _ = _moments(workload)
    return prompt, output


def mean_context_tokens(workload: Mapping[str, Any]) -> float:
    """Mean context of a running sequence, in tokens: E[o p + o^2/2] / E[o].

    A request of p prompt and o output tokens stays for o iterations, in which its context grows from p to
    p + o; so it is met in a batch o times as often as a request of one token, and long outputs weigh more
    than in the mean request. Prefill is left out. Rounding to whole tokens is too.
    """
    return _moments(workload)[2]


def _moments(workload: Mapping[str, Any]) -> tuple[float, float, float]:
    """Mean prompt, mean output, mean context of a running sequence."""
    lengths = workload["lengths"]
    if lengths["kind"] == "trace":
        trace = trace_of(workload)
        p, o = trace.prompt_tokens.astype(np.float64), trace.output_tokens.astype(np.float64)
        return float(p.mean()), float(o.mean()), float((o * p + o * o / 2).sum() / o.sum())
    prompt, output = length_distributions(lengths)
    mean_prompt = prompt.mean + mean_turns_before(workload) * (prompt.mean + output.mean)
    return mean_prompt, output.mean, mean_prompt + output.mean_square / (2 * output.mean)


def turn_counts(workload: Mapping[str, Any]) -> Length:
    """The number of turns of a session."""
    turns = workload["sessions"]["turns"]
    return fixed(turns["mean"]) if turns["kind"] == "fixed" else geometric(turns["mean"])


def mean_turns_before(workload: Mapping[str, Any]) -> float:
    """Mean turns of its session before a request: with n in a session, E[n (n - 1) / 2] / E[n]."""
    if not workload.get("sessions"):
        return 0.0
    turns = turn_counts(workload)
    return (turns.mean_square - turns.mean) / (2 * turns.mean)


def length_distributions(lengths: Mapping[str, Any]) -> tuple[Length, Length]:
    """The distributions of prompt and output that *lengths* describes. Raises InputFault."""
    kind = lengths["kind"]
    if kind not in _KINDS:
        raise InputFault(f"workload.lengths.kind {kind} is unknown{did_you_mean(kind, [*_KINDS, 'trace'])}")
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
    return Length(lambda seed, name, count: np.full(count, float(tokens)), tokens, tokens**2)


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

    def draw(seed: int, name: str, count: int) -> np.ndarray:
        normal = stream(seed, name).standard_normal(count)
        if len(cumulative) == 1:
            logs = mus[0] + sigmas[0] * normal
        else:
            component = np.searchsorted(cumulative[:-1], stream(seed, f"{name}.component").random(count))
            logs = mus[component] + sigmas[component] * normal
        return np.clip(np.exp(logs), least, most)

    def moment(power: int) -> float:
        parts = [
            weight * _clipped_moment(power, part_mu, part_sigma, least, most)
            for weight, part_mu, part_sigma in zip(weights, mu, sigma, strict=True)
        ]
        return sum(parts) / sum(weights)

    return Length(draw, moment(1), moment(2))


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

    def draw(seed: int, name: str, count: int) -> np.ndarray:
        return np.exp(np.interp(stream(seed, name).random(count), q, logs))

    def moment(power: int) -> float:
        steps = power * np.diff(logs)
        flat = steps < 1e-9
        pieces = np.where(flat, v[1:] ** power, np.diff(v**power) / np.where(flat, 1.0, steps))
        return float(np.sum(np.diff(q) * pieces))

    return Length(draw, moment(1), moment(2))


def geometric(mean: float) -> Length:
    """Geometric on 1, 2, ... with this *mean*: an exponential rounded up. Its memorylessness is what
    queueing formulas ask for."""
    _need(mean >= 1, "_mean", "be at least 1", mean)
    if mean == 1:
        return fixed(1)
    rate = -math.log1p(-1 / mean)

    def draw(seed: int, name: str, count: int) -> np.ndarray:
        return np.ceil(stream(seed, name).standard_exponential(count) / rate)

    return Length(draw, mean, 2 * mean**2 - mean)


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
    "fixed": lambda lengths, side: fixed(lengths[f"{side}_tokens"]),
    "lognormal": _of_lognormal,
    "mixture": _of_mixture,
    "table": lambda lengths, side: quantile_table(lengths[side]["quantiles"], lengths[side]["tokens"]),
    "geometric": _of_geometric,
}


def _need(holds: bool, what: str, requirement: str, got: object) -> None:
    if not holds:
        raise ValueError(f"{what} must {requirement} (got {got})")


def trace_of(workload: Mapping[str, Any]) -> Trace:
    """The trace whose lengths *workload* has."""
    return read_trace(workload["lengths"]["path"], workload.get("zero_output") or "drop")


def _replay(trace: Trace, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    beyond = count - len(trace)
    notes = dict(trace.notes)
    if beyond <= 0:
        return trace.prompt_tokens[:count], trace.output_tokens[:count], notes
    if trace.chains is not None:
        rows = np.arange(count) % len(trace)
        return trace.prompt_tokens[rows], trace.output_tokens[rows], notes
    again = stream(seed, "lengths.rows").integers(0, len(trace), beyond)
    rows = np.concatenate([np.arange(len(trace)), again])
    return trace.prompt_tokens[rows], trace.output_tokens[rows], notes | {"trace_rows_resampled": beyond}
