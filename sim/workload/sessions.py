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
from sim.workload.lengths import open_lengths, whole_tokens
from sim.workload.session_shape import SessionShape, contexts, session_shape, steps_of
from sim.workload.streams import Streams

_SPANS_BEFORE = 10
"""How many mean sessions before t = 0 the first ones begin, so that the load is level from the start: of
exponential spans one in 20000 is longer."""


@dataclass(frozen=True, eq=False)
class Turns:
    """Requests in order of arrival, and what each is a part of.

    prompt: int64, the prompt (of several answers) or session that a request belongs to; *prompts* in all.
    first_tokens: of that session's first prompt. shares: whether others belong to it too. goes_on: whether
    a later prompt continues the answer. previous: the row of the turn before, -1 where there is none in
    this run; None without sessions. gap_s: from that turn to this one. body: int64, the text that shared
    prompts and answers are of; None where it is the prompt's.
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
    body: np.ndarray | None = None

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
    """The requests that come within *run*, at the mean rate of *load*, of sessions like *workload*'s.

    Sessions begin as `arrivals` has it, the first ones before t = 0; a turn comes one pause after the request
    before it, one with a tool's output so much later as the tool takes. `lengths` is what each turn adds: a
    prompt is all prompts, answers and outputs of tools of the session so far and that. A longer run begins
    with the shorter one. Raises InputFault.
    """
    shape = session_shape(workload)
    if load.get("rate_per_s") is None:
        raise InputFault("sessions need load.rate_per_s")
    sessions_per_s = float(load["rate_per_s"]) / shape.requests
    before_s = _SPANS_BEFORE * shape.span_s
    count, duration_s = run.get("requests"), run.get("duration_s")
    expected = expected_requests(load["rate_per_s"], run) / shape.requests
    sessions = math.ceil(before_s * sessions_per_s + expected + 5 * math.sqrt(expected)) + 16
    while True:
        begin_s = open_times(workload, sessions_per_s, streams, -before_s)(sessions)
        drawn = _requests_of(workload, shape, begin_s, streams)
        kept = np.flatnonzero(drawn.arrival_s >= 0)
        kept = kept[np.argsort(drawn.arrival_s[kept], kind="stable")]
        kept = kept[:count] if duration_s is None else kept[drawn.arrival_s[kept] < duration_s]
        until_s = drawn.arrival_s[kept[-1]] if duration_s is None and len(kept) == count else duration_s
        if until_s is not None and begin_s[-1] > until_s:
            return _rows(drawn, kept)
        sessions *= 2


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Requests session by session: session, body of text, place in the session, new columns."""

    sessions: int
    session: np.ndarray
    body: np.ndarray
    place: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    first_tokens: np.ndarray
    gap_s: np.ndarray
    arrival_s: np.ndarray


def _requests_of(
    workload: Mapping[str, Any], shape: SessionShape, begin_s: np.ndarray, streams: Streams
) -> _Drawn:
    """Every request of the sessions that begin at *begin_s*."""
    begins, first = steps_of(shape, len(begin_s), streams)
    total = len(begins)
    requests = np.diff(np.append(first, total))
    new_tokens, output_tokens = _tokens_of(workload, shape, begins, first, streams)
    prompt_tokens, cuts = contexts(first, requests, new_tokens, output_tokens, shape.most_tokens)
    gap_s = np.where(begins, on_grid(shape.pause.open(streams, "sessions.gap")(total)), 0.0)
    if not begins.all():
        tool_s = shape.tool_s.open(streams, "sessions.tools.time")
        gap_s[~begins] = on_grid(tool_s(int(np.count_nonzero(~begins))))
    gap_s[first] = 0.0
    passed_s = np.cumsum(gap_s)
    anew = np.diff(cuts, prepend=0) != 0
    anew[first] = True
    return _Drawn(
        len(begin_s),
        np.repeat(np.arange(len(begin_s)), requests),
        np.cumsum(anew) - 1,
        np.arange(total) - np.repeat(first, requests),
        prompt_tokens.astype(np.int64),
        output_tokens,
        np.repeat(new_tokens[first], requests),
        gap_s,
        on_grid(np.repeat(begin_s - passed_s[first], requests) + passed_s),
    )


def _tokens_of(
    workload: Mapping[str, Any],
    shape: SessionShape,
    begins: np.ndarray,
    first: np.ndarray,
    streams: Streams,
) -> tuple[np.ndarray, np.ndarray]:
    """What each request adds to the prompt, and its answer: *begins* says which begin a turn, *first* where
    sessions begin."""
    new_tokens, output_tokens = open_lengths(workload, streams).take(len(begins))
    if shape.first is not None:
        new_tokens[first] = whole_tokens(shape.first.open(streams, "sessions.first")(len(first)))
    if not begins.all():
        given = shape.tool_tokens.open(streams, "sessions.tools.output")
        new_tokens[~begins] = whole_tokens(given(int(np.count_nonzero(~begins))))
    return new_tokens, output_tokens


def _rows(drawn: _Drawn, kept: np.ndarray) -> Turns:
    """The turns *kept*, in that order."""
    row = np.full(len(drawn.session), -1)
    row[kept] = np.arange(len(kept))
    goes_on = np.append(drawn.body[1:] == drawn.body[:-1], False)
    shared = goes_on | np.insert(goes_on[:-1], 0, False)
    return Turns(
        drawn.sessions,
        drawn.session[kept],
        drawn.prompt_tokens[kept],
        drawn.output_tokens[kept],
        drawn.first_tokens[kept],
        shared[kept],
        goes_on[kept],
        drawn.arrival_s[kept],
        np.where(drawn.place[kept] > 0, row[kept - 1], -1),
        drawn.gap_s[kept],
        drawn.body[kept],
    )
