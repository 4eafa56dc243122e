"""Users who come back: the turns of sessions, whose prompts are all that was said before and what is new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.clock import on_grid
from sim.faults import InputFault
from sim.workload.arrivals import expected_requests, open_times
from sim.workload.distributions import Length, fixed, lognormal
from sim.workload.lengths import open_lengths, turn_counts
from sim.workload.streams import Streams, Take

_SPANS_BEFORE = 10
"""How many mean sessions before t = 0 the first ones begin, so that the load is level from the start: of
exponential spans one in 20000 is longer."""


@dataclass(frozen=True, eq=False)
class Turns:
    """Requests in order of arrival, and what each is a part of.

    prompt: int64, the prompt (of several answers) or session that a request belongs to; *prompts* in all.
    first_tokens: of that session's first prompt. shares: whether others belong to it too. goes_on: whether
    a later prompt continues the answer. previous: the row of the turn before, -1 where there is none in
    this run; None without sessions. gap_s: from that turn to this one.
    """

    prompts: int
    prompt: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    first_tokens: np.ndarray
    shares: np.ndarray
    goes_on: np.ndarray
    arrival_s: np.ndarray
    previous: np.ndarray | None = None
    gap_s: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)


def single_turns(
    arrival_s: np.ndarray, prompt_tokens: np.ndarray, output_tokens: np.ndarray, answers: int
) -> Turns:
    """Requests without sessions: *answers* to each prompt, one after the other."""
    count = len(arrival_s)
    several, none = np.full(count, answers > 1), np.zeros(count, dtype=bool)
    prompt = np.arange(count) // answers
    prompts = -(-count // answers)
    return Turns(prompts, prompt, prompt_tokens, output_tokens, prompt_tokens, several, none, arrival_s)


def draw_turns(
    workload: Mapping[str, Any], load: Mapping[str, Any], run: Mapping[str, Any], streams: Streams
) -> Turns:
    """The turns that arrive within *run*, at the mean rate of *load*, of sessions like *workload*'s.

    Sessions begin as `arrivals` has it, the first ones before t = 0; a turn comes one gap after the turn
    before it. `lengths` is what each turn adds: a prompt is all prompts and answers of the session so far
    and that. A longer run begins with the shorter one. Raises InputFault.
    """
    turns = turn_counts(workload)
    if load.get("rate_per_s") is None:
        raise InputFault("sessions need load.rate_per_s")
    sessions_per_s = float(load["rate_per_s"]) / turns.mean
    before_s = _SPANS_BEFORE * turns.mean * _gap(workload).mean
    count, duration_s = run.get("requests"), run.get("duration_s")
    expected = expected_requests(load["rate_per_s"], run) / turns.mean
    sessions = math.ceil(before_s * sessions_per_s + expected + 5 * math.sqrt(expected)) + 16
    while True:
        begin_s = open_times(workload, sessions_per_s, streams, -before_s)(sessions)
        drawn = _turns_of(workload, begin_s, streams)
        kept = np.flatnonzero(drawn.arrival_s >= 0)
        kept = kept[np.argsort(drawn.arrival_s[kept], kind="stable")]
        kept = kept[:count] if duration_s is None else kept[drawn.arrival_s[kept] < duration_s]
        until_s = drawn.arrival_s[kept[-1]] if duration_s is None and len(kept) == count else duration_s
        if until_s is not None and begin_s[-1] > until_s:
            break
        sessions *= 2
    return _rows(drawn, kept)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Turns session by session: session, place in it, turns of it, new columns."""

    sessions: int
    session: np.ndarray
    place: np.ndarray
    turns: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    first_tokens: np.ndarray
    gap_s: np.ndarray
    arrival_s: np.ndarray


def _turns_of(workload: Mapping[str, Any], begin_s: np.ndarray, streams: Streams) -> _Drawn:
    """Every turn of the sessions that begin at *begin_s*."""
    turns = turn_counts(workload).open(streams, "sessions.turns")(len(begin_s)).astype(np.int64)
    first = np.cumsum(turns) - turns
    total = int(turns.sum())
    place = np.arange(total) - np.repeat(first, turns)
    new_tokens, output_tokens = open_lengths(workload, streams).take(total)
    said = np.cumsum(new_tokens + output_tokens)
    before = said - new_tokens - output_tokens
    gap_s = np.where(place == 0, 0.0, on_grid(_gap(workload).open(streams, "sessions.gap")(total)))
    passed_s = np.cumsum(gap_s)
    return _Drawn(
        len(begin_s),
        np.repeat(np.arange(len(begin_s)), turns),
        place,
        np.repeat(turns, turns),
        before - np.repeat(before[first], turns) + new_tokens,
        output_tokens,
        np.repeat(new_tokens[first], turns),
        gap_s,
        on_grid(np.repeat(begin_s - passed_s[first], turns) + passed_s),
    )


def _rows(drawn: _Drawn, kept: np.ndarray) -> Turns:
    """The turns *kept*, in that order."""
    row = np.full(len(drawn.session), -1)
    row[kept] = np.arange(len(kept))
    return Turns(
        drawn.sessions,
        drawn.session[kept],
        drawn.prompt_tokens[kept],
        drawn.output_tokens[kept],
        drawn.first_tokens[kept],
        drawn.turns[kept] > 1,
        drawn.place[kept] < drawn.turns[kept] - 1,
        drawn.arrival_s[kept],
        np.where(drawn.place[kept] > 0, row[kept - 1], -1),
        drawn.gap_s[kept],
    )


def _gap(workload: Mapping[str, Any]) -> Length:
    """The time from a turn (with `gap`: its arrival; with `think`: its answer) to the next, in seconds."""
    sessions = workload["sessions"]
    gap = sessions.get("gap") or sessions["think"]
    mean_s = float(gap["mean_s"])
    unit = {"fixed": lambda: fixed(1.0), "exponential": lambda: _EXPONENTIAL,
            "lognormal": lambda: lognormal(1.0, gap["cv"])}[gap["kind"]]()  # fmt: skip

    def open_(streams: Streams, name: str) -> Take:
        units = unit.open(streams, name)
        return lambda count: mean_s * units(count)

    return Length(open_, mean_s, mean_s**2 * unit.mean_square)


_EXPONENTIAL = Length(lambda streams, name: streams.open(name).standard_exponential, 1.0, 2.0)
