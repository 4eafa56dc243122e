"""How long prompts and outputs are: pairs of draws, or a trace's own pairs; and their moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.workload.classes import classes_of, shares
from sim.workload.distributions import length_distributions
from sim.workload.session_shape import session_shape
from sim.workload.streams import Streams, repeated
from sim.workload.trace import Trace, trace_of


@dataclass(frozen=True, eq=False)
class Lengths:
    """The lengths of a run's requests, one after the other.

    take(count): prompt and output tokens of the next *count* (int64, at least 1). notes: counts of what
    happened on the way, up to the last one taken.
    """

    take: Callable[[int], tuple[np.ndarray, np.ndarray]]
    notes: dict[str, int]


def open_lengths(workload: Mapping[str, Any], streams: Streams) -> Lengths:
    """The lengths of *workload*'s requests (nearest integer), from *streams*. Raises InputFault.

    Prompt and output are independent, except in a trace: its rows are replayed in order, and once all
    are used whole rows are drawn again at random (note `trace_rows_resampled`), or, where prompts share
    blocks with those of other rows, in order again. Several `answers` have one prompt.
    """
    lengths = workload["lengths"]
    if lengths["kind"] == "trace":
        return _replay(trace_of(workload, "lengths"), streams)
    prompt, output = length_distributions(lengths)
    answers = int(workload.get("answers") or 1)
    prompts = repeated(prompt.open(streams, "lengths.prompt"), answers)
    outputs = output.open(streams, "lengths.output")
    return Lengths(lambda count: (whole_tokens(prompts(count)), whole_tokens(outputs(count))), {})


def draw_lengths(
    workload: Mapping[str, Any], count: int, seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Prompt and output tokens of *count* requests, and notes: as `open_lengths` has them."""
    lengths = open_lengths(workload, Streams(seed))
    return *lengths.take(count), lengths.notes


def whole_tokens(tokens: np.ndarray) -> np.ndarray:
    """*tokens* as int64, rounded to the nearest integer, at least 1."""
    return np.maximum(np.rint(tokens), 1).astype(np.int64)


def mean_tokens(workload: Mapping[str, Any]) -> tuple[float, float]:
    """Mean prompt and output tokens of a request; of classes, by their shares."""
    moments = _by_class(workload)
    return (
        sum(share * own.prompt for share, own in moments),
        sum(share * own.output for share, own in moments),
    )


def mean_context_tokens(workload: Mapping[str, Any]) -> float:
    """Mean context of a running sequence, in tokens: E[o p + o^2/2] / E[o].

    A request of p prompt and o output tokens stays for o iterations, in which its context grows from p to
    p + o; so it is met in a batch o times as often as a request of one token, and long outputs weigh more
    than in the mean request. Prefill is left out. Rounding to whole tokens is too.
    """
    moments = _by_class(workload)
    if len(moments) == 1:
        return moments[0][1].context
    met = [share * own.output for share, own in moments]
    return sum(m * own.context for m, (_, own) in zip(met, moments, strict=True)) / sum(met)


class _Moments(NamedTuple):
    """Mean prompt and output of a request, and mean context of a running sequence, in tokens."""

    prompt: float
    output: float
    context: float


def _by_class(workload: Mapping[str, Any]) -> list[tuple[float, _Moments]]:
    """The share of each class in the requests, and its moments.

    Of classes at a rate; how much those with users of their own send depends on the answers. Where there
    are only those, a class is counted by its users.
    """
    classes, parts = classes_of(workload), shares(workload)
    users = {name: float(value.get("concurrency") or 0) for name, value in classes.items()}
    weights = parts or {name: count / sum(users.values()) for name, count in users.items()}
    return [(weight, _moments(classes[name])) for name, weight in weights.items()]


def _moments(workload: Mapping[str, Any]) -> _Moments:
    lengths = workload["lengths"]
    if lengths["kind"] == "trace":
        trace = trace_of(workload, "lengths")
        p, o = trace.prompt_tokens.astype(np.float64), trace.output_tokens.astype(np.float64)
        return _Moments(float(p.mean()), float(o.mean()), float((o * p + o * o / 2).sum() / o.sum()))
    prompt, output = length_distributions(lengths)
    mean_prompt = prompt.mean
    if workload.get("sessions"):
        mean_prompt = session_shape(workload).mean_prompt(prompt, output)
    return _Moments(mean_prompt, output.mean, mean_prompt + output.mean_square / (2 * output.mean))


def _replay(trace: Trace, streams: Streams) -> Lengths:
    """The trace's rows in order, and then again."""
    notes = dict(trace.notes)
    again = streams.open("lengths.rows")
    taken = 0

    def take(count: int) -> tuple[np.ndarray, np.ndarray]:
        nonlocal taken
        rows = np.arange(taken, taken + count)
        taken += count
        if taken > len(trace) and trace.chains is not None:
            rows %= len(trace)
        elif taken > len(trace):
            beyond = rows >= len(trace)
            rows[beyond] = again.integers(0, len(trace), np.count_nonzero(beyond))
            notes["trace_rows_resampled"] = taken - len(trace)
        return trace.prompt_tokens[rows], trace.output_tokens[rows]

    return Lengths(take, notes)
