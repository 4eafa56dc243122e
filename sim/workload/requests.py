"""The requests of a run: columns, drawn at once before the clock starts, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sim.faults import InputFault
from sim.workload.arrivals import arrivals_of
from sim.workload.classes import generate_classes
from sim.workload.contents import Contents
from sim.workload.lengths import open_lengths
from sim.workload.patience import PATIENCE_COLUMNS, open_patience
from sim.workload.prefixes import drawn_contents, recorded_contents
from sim.workload.recorded import recorded_columns
from sim.workload.reuse import reused_contents
from sim.workload.sessions import Turns, draw_turns, single_turns
from sim.workload.sharing import reusable_tokens
from sim.workload.streams import Streams, Take
from sim.workload.times import seconds

CHUNK_ROWS = 1 << 17


@dataclass(frozen=True, eq=False)
class Follows:
    """Which requests wait for the end of others; row i is request i.

    previous: int64, the row (a lower one) that must have ended before, or -1. think_s: float64, from that
    end to the send, on the clock's grid. The arrival of a request that waits is still to come: until then
    `Requests.arrival_s` has the time at which it would be sent if answers took none.
    """

    previous: np.ndarray
    think_s: np.ndarray


@dataclass(frozen=True, eq=False)
class Requests:
    """What the clients send, in order of arrival; row i of every column is request i.

    arrival_s: float64, never falling, multiples of 2^-32 s. prompt_tokens, output_tokens: int64, at
    least 1. patience_s, first_token_patience_s, queue_patience_s: float64, how long after its send a client
    leaves that has no whole answer, no token or no place in a batch by then; stop_after: int64, tokens of its
    answer that a client reads before it leaves, 0 for all; silent: bool, whether it leaves without a word.
    None when nobody does.
    notes: what happened to the input on the way, by name, with counts (absent when it did not happen).
    priorities: int64, smaller is more urgent, or None where all are equal.
    contents: which tokens requests share, or None when none do. follows: who waits for whose answer, or
    None when nobody does. classes: int16, the traffic class of each, an index into class_names; None
    without classes.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    patience_s: np.ndarray | None = None
    notes: Mapping[str, int] = field(default_factory=dict)
    contents: Contents | None = None
    follows: Follows | None = None
    priorities: np.ndarray | None = None
    classes: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    first_token_patience_s: np.ndarray | None = None
    queue_patience_s: np.ndarray | None = None
    stop_after: np.ndarray | None = None
    silent: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)


def generate(workload: Mapping[str, Any], load: Mapping[str, Any], run: Mapping[str, Any]) -> Requests:
    """The requests of *run* (`requests` or `duration_s`, `seed`), under *load*, of *workload*.

    Every column has its own stream, read from its start: a longer run begins with the shorter one, and
    another rate sends the same requests at proportionally other times. Raises InputFault.
    """
    if workload.get("classes"):
        requests = generate_classes(workload, load, run, _whole)
    else:
        requests = _whole(workload, load, run, Streams(int(run.get("seed", 1))))
    if not len(requests):
        raise _nobody(run)
    return requests if requests.contents is None else _with_seen(requests)


def _nobody(run: Mapping[str, Any]) -> InputFault:
    return InputFault(
        f"no request arrives within run.duration_s {run['duration_s']:g}; give a longer duration"
    )


def _whole(
    workload: Mapping[str, Any], load: Mapping[str, Any], run: Mapping[str, Any], streams: Streams
) -> Requests:
    """The requests of a workload without classes, or of one class; perhaps none."""
    if not workload.get("sessions"):
        return _Single(workload, load, run, streams).rest()
    turns = draw_turns(workload, load, run, streams)
    return _requests(workload, turns, _Columns(workload, streams), _contents(workload, turns, streams), {})


def _with_seen(requests: Requests) -> Requests:
    """*requests* with a note of the tokens that an earlier one has."""
    assert requests.contents is not None
    seen = reusable_tokens(requests.contents, requests.prompt_tokens, requests.output_tokens)
    return replace(requests, notes={**requests.notes, "prompt_tokens_seen_before": int(seen.sum())})


def generate_chunks(
    workload: Mapping[str, Any], load: Mapping[str, Any], run: Mapping[str, Any], rows: int = CHUNK_ROWS
) -> Iterator[Requests]:
    """The rows of `generate` in pieces of *rows*; the notes of each are those of the run up to its end.

    In constant memory, except where prompts share tokens or sessions go on: those are drawn whole. Rows that
    `follows` and `contents` name are counted in the whole run. Raises InputFault.
    """
    if workload.get("classes") or workload.get("sessions") or _shares(workload):
        whole = generate(workload, load, run)
        yield from (_slice(whole, first, first + rows) for first in range(0, len(whole), rows))
        return
    source = _Single(workload, load, run, Streams(int(run.get("seed", 1))))
    if not len(chunk := source.take(rows)):
        raise _nobody(run)
    while len(chunk):
        yield chunk
        chunk = source.take(rows)


class _Columns:
    """The columns that need nothing of the others."""

    def __init__(self, workload: Mapping[str, Any], streams: Streams) -> None:
        self.patience = open_patience(workload.get("patience"), streams)
        self.priorities = _priorities(workload, streams)


class _Single:
    """Requests without sessions, one after the other."""

    def __init__(
        self,
        workload: Mapping[str, Any],
        load: Mapping[str, Any],
        run: Mapping[str, Any],
        streams: Streams,
    ) -> None:
        self.workload, self.load, self.streams = workload, load, streams
        self.arrivals = arrivals_of(workload, load, run, streams)
        self.lengths = open_lengths(workload, streams)
        self.columns = _Columns(workload, streams)

    def take(self, count: int) -> Requests:
        """The next *count*; fewer, or none, at the end of the run."""
        return self._of(self.arrivals.take(count))

    def rest(self) -> Requests:
        """All that are left."""
        return self._of(self.arrivals.rest())

    def _of(self, arrival_s: np.ndarray) -> Requests:
        tokens = self.lengths.take(len(arrival_s))
        turns = single_turns(arrival_s, *tokens, int(self.workload.get("answers") or 1))
        contents = _contents(self.workload, turns, self.streams)
        notes = {**self.arrivals.notes, **self.lengths.notes}
        requests = _requests(self.workload, turns, self.columns, contents, notes)
        if self.lengths.rows is None:
            return requests
        told = recorded_columns(self.workload, self.load, self.lengths.rows)
        if "follows" in told:
            told["follows"] = Follows(*told["follows"])
        return replace(requests, **told)


def _requests(
    workload: Mapping[str, Any],
    turns: Turns,
    columns: _Columns,
    contents: Contents | None,
    notes: dict[str, int],
) -> Requests:
    count = len(turns)
    return Requests(
        turns.arrival_s,
        turns.prompt_tokens,
        turns.output_tokens,
        notes=notes,
        contents=contents,
        follows=_follows(workload, turns),
        priorities=None if columns.priorities is None else columns.priorities(count),
        **columns.patience(turns.output_tokens),
    )


def _slice(whole: Requests, first: int, last: int) -> Requests:
    """Rows *first* up to *last* of *whole*."""
    rows, follows, contents = slice(first, min(last, len(whole))), whole.follows, whole.contents

    def cut(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else column[rows]

    patience: dict[str, Any] = {name: cut(getattr(whole, name)) for name in PATIENCE_COLUMNS}
    return replace(
        whole,
        arrival_s=whole.arrival_s[rows],
        prompt_tokens=whole.prompt_tokens[rows],
        output_tokens=whole.output_tokens[rows],
        **patience,
        priorities=cut(whole.priorities),
        classes=cut(whole.classes),
        contents=contents.take(np.arange(rows.start, rows.stop)) if contents is not None else None,
        follows=Follows(follows.previous[rows], follows.think_s[rows]) if follows else None,
    )


def _priorities(workload: Mapping[str, Any], streams: Streams) -> Take | None:
    weights = np.asarray((workload.get("priorities") or {}).get("weights") or [1.0])
    if len(weights) < 2:
        return None
    bounds, uniform = np.cumsum(weights / weights.sum())[:-1], streams.open("priorities").random
    return lambda count: np.searchsorted(bounds, uniform(count), "right")


def _shares(workload: Mapping[str, Any]) -> bool:
    """Whether requests may share tokens."""
    kind = (workload.get("prefixes") or {}).get("kind") or "none"
    return kind != "none" or int(workload.get("answers") or 1) > 1


def _contents(workload: Mapping[str, Any], turns: Turns, streams: Streams) -> Contents | None:
    prefixes = workload.get("prefixes") or {}
    if prefixes.get("kind") == "trace":
        return recorded_contents(workload, len(turns))
    if prefixes.get("kind") == "reuse":
        return reused_contents(prefixes, turns.arrival_s, turns.prompt_tokens, streams)
    return drawn_contents(workload, turns, streams)


def _follows(workload: Mapping[str, Any], turns: Turns) -> Follows | None:
    """Who waits, where users think after an answer rather than come at a pace of their own."""
    if turns.previous is None or turns.gap_s is None or workload["sessions"].get("gap"):
        return None
    return Follows(turns.previous, np.where(turns.previous < 0, 0.0, turns.gap_s))


def draw_think(load: Mapping[str, Any], count: int, seed: int) -> np.ndarray:
    """How long users think after each of *count* requests, in seconds on the clock's grid."""
    think = load.get("think")
    return seconds(think, Streams(seed), "think")(count) if think else np.zeros(count)
