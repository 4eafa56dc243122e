"""What sessions are made of: turns, calls of tools, pauses; and the means that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.workload.distributions import Length, fixed, geometric, lognormal, quantile_table
from sim.workload.pairs import Pair
from sim.workload.streams import Streams, Take

Values = Mapping[str, Any]
_SAMPLE = 4096  # sessions whose mean is taken for that of all


@dataclass(frozen=True)
class SessionShape:
    """The distributions of a workload's sessions.

    turns, calls: whole numbers, of a session from 1 on, of a turn from 0 on. pause, tool_s: seconds before a
    turn and before a request with a tool's output. first, tool_tokens: tokens that a session's first prompt
    has (None: as many as other turns add), and that a tool gives back. waits: whether a turn waits for the
    answer before it; a request with a tool's output always does. most_tokens: of a prompt; one that would be
    longer has no more than the session's first and what is new.
    """

    turns: Length
    calls: Length
    pause: Length
    tool_s: Length
    first: Length | None
    tool_tokens: Length
    waits: bool
    most_tokens: float = math.inf

    @property
    def requests(self) -> float:
        """Mean requests of a session."""
        return self.turns.mean * (1 + self.calls.mean)

    @property
    def span_s(self) -> float:
        """Mean seconds that a session's turns take with the pauses before them, if answers took none."""
        return self.turns.mean * (self.pause.mean + self.calls.mean * self.tool_s.mean)

    def mean_prompt(self, lengths: Pair) -> float:
        """Mean prompt tokens of a request, where turns add the prompts of *lengths* and its answers."""
        if self.most_tokens < math.inf:
            return self._sampled_mean_prompt(lengths)
        return self._whole_mean_prompt(lengths.prompt, lengths.output)

    def _sampled_mean_prompt(self, lengths: Pair) -> float:
        """That of so many sessions as one cannot tell from all."""
        streams = Streams(0)
        begins, starts = steps_of(self, _SAMPLE, streams)
        count, sizes = len(begins), np.diff(np.append(starts, len(begins)))
        prompts, answers = map(np.minimum, lengths.open(streams, 1)(count), lengths.most)
        new_tokens = np.where(begins, prompts, self.tool_tokens.open(streams, "tool")(count))
        if self.first is not None:
            new_tokens[starts] = self.first.open(streams, "first")(_SAMPLE)
        return float(contexts(starts, sizes, new_tokens, answers, self.most_tokens)[0].mean())

    def _whole_mean_prompt(self, prompt: float, output: float) -> float:
        """Mean prompt tokens where nothing is ever dropped.

        All requests from the one on that adds some tokens have them. With T turns of S = 1 + C requests each:
        the first prompt is in T E[S] of them, a later turn's in E[T (T - 1) / 2] E[S], a tool's output in
        E[T] E[C (C + 1) / 2] + E[T (T - 1) / 2] E[C] E[S], an answer in E[M (M - 1) / 2] with M = sum of S.
        """
        turns, calls = self.turns, self.calls
        steps = 1 + calls.mean
        later = (turns.mean_square - turns.mean) / 2
        first = prompt if self.first is None else self.first.mean
        spread = calls.mean_square - calls.mean**2
        squared = turns.mean * spread + turns.mean_square * steps**2
        of_tools = turns.mean * (calls.mean_square + calls.mean) / 2 + later * calls.mean * steps
        total = first * turns.mean * steps + prompt * later * steps
        total += self.tool_tokens.mean * of_tools + output * (squared - turns.mean * steps) / 2
        return total / (turns.mean * steps)


def steps_of(shape: SessionShape, sessions: int, streams: Streams) -> tuple[np.ndarray, np.ndarray]:
    """The requests of so many sessions, one session after the other: which begin a turn (bool), and where
    each session begins (int64, one a session)."""
    turns = shape.turns.open(streams, "sessions.turns")(sessions).astype(np.int64)
    of_turn = 1 + shape.calls.open(streams, "sessions.calls")(int(turns.sum())).astype(np.int64)
    begins = np.zeros(int(of_turn.sum()), dtype=bool)
    turn_starts = np.cumsum(of_turn) - of_turn
    begins[turn_starts] = True
    return begins, turn_starts[np.cumsum(turns) - turns]


def contexts(
    starts: np.ndarray, sizes: np.ndarray, new_tokens: np.ndarray, output_tokens: np.ndarray, most: float
) -> tuple[np.ndarray, np.ndarray]:
    """The prompts of sessions' requests, and how often each session's context was cut before them.

    Sessions begin at *starts* and have *sizes* requests, which add *new_tokens* and get *output_tokens*. A
    prompt is all of that up to it. One that would be longer than *most* begins anew: as many tokens as the
    session's first prompt has, and what is new.
    """
    said = np.cumsum(new_tokens + output_tokens)
    before = said - new_tokens - output_tokens
    before = before - np.repeat(before[starts], sizes)
    whole = before + new_tokens
    if most == math.inf:
        return whole, np.zeros(len(whole), dtype=np.int64)
    dropped, cuts = np.zeros(len(whole)), np.zeros(len(whole), dtype=np.int64)
    ends = starts + sizes
    for start, end in np.column_stack([starts, ends])[whole[ends - 1] > most].tolist():
        at, lost = start, 0.0
        while (at := at + int(np.searchsorted(whole[at:end], most + lost, "right"))) < end:
            lost = before[at] - new_tokens[start]
            dropped[at:end] = lost
            cuts[at:end] += 1
            at += 1
    return np.minimum(whole - dropped, most), cuts


def session_shape(workload: Values) -> SessionShape:
    """The shape of *workload*'s sessions."""
    sessions = workload["sessions"]
    tools, nothing = sessions.get("tools"), _scaled(fixed(1.0), 0.0)
    first = sessions.get("first")
    return SessionShape(
        turns=_whole(sessions["turns"], 1),
        calls=_whole(tools["calls"], 0) if tools else nothing,
        pause=_seconds(sessions.get("gap") or sessions["think"]),
        tool_s=_seconds(tools["time"]) if tools else nothing,
        first=_tokens(first) if first else None,
        tool_tokens=_tokens(tools["output"]) if tools else nothing,
        waits=sessions.get("gap") is None,
        most_tokens=sessions.get("context_tokens") or math.inf,
    )


def _whole(part: Values, fewest: int) -> Length:
    """A whole number, *fewest* at least; geometric begins there."""
    if part["kind"] == "table":
        return _chosen(part["values"], part["weights"])
    mean = float(part["mean"])
    if part["kind"] == "fixed":
        return _scaled(fixed(1.0), mean)
    return _shifted(geometric(mean + 1 - fewest), fewest - 1)


def _tokens(part: Values) -> Length:
    if part["kind"] == "table":
        return quantile_table(part["quantiles"], part["tokens"])
    if part["kind"] == "lognormal":
        return lognormal(part["mean"], part["cv"])
    return {"fixed": fixed, "geometric": geometric}[part["kind"]](float(part["mean"]))


def _seconds(part: Values) -> Length:
    if part["kind"] == "table":
        return quantile_table(part["quantiles"], part["seconds"])
    unit = {"fixed": lambda: fixed(1.0), "exponential": lambda: _EXPONENTIAL,
            "lognormal": lambda: _unit_lognormal(part["cv"])}[part["kind"]]()  # fmt: skip
    return _scaled(unit, float(part["mean_s"]))


def _unit_lognormal(cv: float) -> Length:
    """Of mean 1; unlike lengths it has no least value."""
    sigma = math.sqrt(math.log1p(cv**2))

    def open_(streams: Streams, name: str) -> Take:
        normal = streams.open(name).standard_normal
        return lambda count: np.exp(sigma * normal(count) - sigma**2 / 2)

    return Length(open_, 1.0, 1.0 + cv**2)


def _chosen(values: Sequence[float], weights: Sequence[float]) -> Length:
    """One of *values*, by *weights*."""
    numbers, shares = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    shares = shares / shares.sum()
    bounds = np.cumsum(shares)[:-1]

    def open_(streams: Streams, name: str) -> Take:
        uniform = streams.open(name).random
        return lambda count: numbers[np.searchsorted(bounds, uniform(count), "right")]

    return Length(open_, float(shares @ numbers), float(shares @ numbers**2))


def _scaled(unit: Length, factor: float) -> Length:
    def open_(streams: Streams, name: str) -> Take:
        values = unit.open(streams, name)
        return lambda count: factor * values(count)

    return Length(open_, factor * unit.mean, factor**2 * unit.mean_square)


def _shifted(length: Length, by: float) -> Length:
    if not by:
        return length

    def open_(streams: Streams, name: str) -> Take:
        values = length.open(streams, name)
        return lambda count: values(count) + by

    return Length(open_, length.mean + by, length.mean_square + 2 * by * length.mean + by**2)


_EXPONENTIAL = Length(lambda streams, name: streams.open(name).standard_exponential, 1.0, 2.0)
