"""How long prompts and outputs are: pairs of draws, or a trace's own pairs; and their moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.workload.classes import classes_of, shares
from sim.workload.pairs import pair_of
from sim.workload.session_shape import session_shape
from sim.workload.streams import Streams
from sim.workload.trace import Trace, trace_of

_SIDES = ("prompt", "output")


@dataclass(eq=False)
class Lengths:
    """The lengths of a run's requests, one after the other.

    take(count): prompt and output tokens of the next *count* (int64, at least 1). notes: counts of what
    happened on the way, up to the last one taken. rows: of a trace, which were taken last; else None.
    """

    take: Callable[[int], tuple[np.ndarray, np.ndarray]]
    notes: dict[str, int]
    rows: np.ndarray | None = None


def open_lengths(workload: Mapping[str, Any], streams: Streams) -> Lengths:
    """The lengths of *workload*'s requests (nearest integer), from *streams*. Raises InputFault.

    The rows of a trace are replayed in order, and once all are used whole rows are drawn again at random
    (note `trace_rows_resampled`), or, where prompts share blocks with those of other rows, in order again.
    Several `answers` have one prompt. What is above a cap is set to it, and counted.
    """
    lengths = workload["lengths"]
    if lengths["kind"] == "trace":
        drawn = _replay(trace_of(workload, "lengths"), streams)
    else:
        take = pair_of(lengths).open(streams, int(workload.get("answers") or 1))
        drawn = Lengths(lambda count: _whole_pairs(*take(count)), {})
    return _capped(drawn, lengths)


def _whole_pairs(prompts: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return whole_tokens(prompts), whole_tokens(outputs)


def _capped(drawn: Lengths, lengths: Mapping[str, Any]) -> Lengths:
    """*drawn* with what is above `max_prompt_tokens` and `max_output_tokens` set to them."""
    most = [lengths.get(f"max_{side}_tokens") for side in _SIDES]
    if most == [None, None]:
        return drawn

    def take(count: int) -> tuple[np.ndarray, np.ndarray]:
        prompts, outputs = (
            tokens if cap is None else _cut(tokens, cap, f"{side}s_capped", drawn.notes)
            for tokens, cap, side in zip(drawn.take(count), most, _SIDES, strict=True)
        )
        return prompts, outputs

    return Lengths(take, drawn.notes)


def _cut(tokens: np.ndarray, most: int, note: str, notes: dict[str, int]) -> np.ndarray:
    if above := int(np.count_nonzero(tokens > most)):
        notes[note] = notes.get(note, 0) + above
    return np.minimum(tokens, most)


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
        p, o = (
            np.minimum(tokens, lengths.get(f"max_{side}_tokens") or np.inf)
            for side, tokens in zip(_SIDES, (trace.prompt_tokens, trace.output_tokens), strict=True)
        )
        return _Moments(float(p.mean()), float(o.mean()), float((o * p + o * o / 2).sum() / o.sum()))
    pair = pair_of(lengths)
    prompt = pair.prompt
    if workload.get("sessions"):
        prompt = session_shape(workload).mean_prompt(pair)
    met = prompt + (pair.prompt_met - pair.prompt)
    return _Moments(prompt, pair.output, met + pair.output_square / (2 * pair.output))


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
        lengths.rows = rows
        return trace.prompt_tokens[rows], trace.output_tokens[rows]

    lengths = Lengths(take, notes)
    return lengths
