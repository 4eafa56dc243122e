"""Traffic classes: each is a workload of its own, and the run has the requests of all in order of arrival."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.workload.contents import Contents
from sim.workload.streams import Streams
from sim.workload.times import seconds

if TYPE_CHECKING:
    from sim.workload.requests import Follows, Requests

Values = Mapping[str, Any]
Generate = Callable[[Values, Values, Values, Streams], "Requests"]
_APART = 40
"""Bits of a stream's id within a class; what is above them is the class."""
_WHERE_ABSENT = {"priorities": 0, "stop_after": 0, "silent": False}
"""What a class without a column has in it; times are without end."""


def classes_of(workload: Values) -> dict[str, Values]:
    """The traffic classes of *workload* by name: itself, called `default`, where it has none."""
    return dict(workload.get("classes") or {"default": workload})


def shares(workload: Values) -> dict[str, float]:
    """The share of `load.rate_per_s` of each class by name; those with users of their own have none."""
    weights = {
        name: float(value.get("share") or 1.0)
        for name, value in classes_of(workload).items()
        if value.get("concurrency") is None
    }
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def streams_of(workload: Values, name: str, seed: int) -> Streams:
    """The streams of the class *name*."""
    return Streams(seed).within(f"classes.{name}") if workload.get("classes") else Streams(seed)


@dataclass(frozen=True, eq=False)
class Users:
    """*count* users of the class number *of_class*, who send its requests *rows* (int64), in that order.

    They think think_s[i] after the i-th of these.
    """

    of_class: int
    count: int
    rows: np.ndarray
    think_s: np.ndarray


def users_of(workload: Values, requests: Requests, seed: int) -> list[Users]:
    """The users of each class of *workload* that has some, and what of *requests* they send."""
    found = []
    for number, (name, value) in enumerate(classes_of(workload).items()):
        if value.get("concurrency") is None or requests.classes is None:
            continue
        rows, think = np.flatnonzero(requests.classes == number), value.get("think")
        streams = streams_of(workload, name, seed)
        think_s = seconds(think, streams, "think")(len(rows)) if think else np.zeros(len(rows))
        found.append(Users(number, value["concurrency"], rows, think_s))
    return found


def answers_decide(workload: Values) -> bool:
    """Whether some requests are sent upon the end of others, at times that no draw tells beforehand."""
    return any(
        value.get("concurrency") is not None
        or bool(value.get("sessions") and value["sessions"].get("gap") is None)
        for value in classes_of(workload).values()
    )


def generate_classes(workload: Values, load: Values, run: Values, generate: Generate) -> Requests:
    """The requests of all classes of *workload*, each of which *generate* makes, in order of arrival.

    Of classes at a rate `run.requests` are sent altogether, or what comes before `run.duration_s`. Those with
    users of their own come first, at 0, as many as `run.user_requests` says of each (default: as many as are
    sent at a rate, or `run.requests`): when they are sent is for the simulation to tell.
    """
    names, seed = list(classes_of(workload)), int(run.get("seed", 1))
    at_rates = shares(workload)

    def part(name: str, own_load: Values, own_run: Values) -> Requests:
        return generate(workload["classes"][name], own_load, own_run, streams_of(workload, name, seed))

    parts = _at_rates(at_rates, load, run, part) if at_rates else {}
    sent = sum(map(len, parts.values())) if run.get("requests") is None else run["requests"]
    users = {"requests": int(run.get("user_requests") or sent)}
    closed = {
        name: part(name, {"concurrency": workload["classes"][name]["concurrency"]}, users)
        for name in names
        if name not in at_rates
    }
    return merge([closed.get(name) or parts[name] for name in names], names, _priorities(workload))


def _at_rates(
    at_rates: Mapping[str, float], load: Values, run: Values, part: Callable[[str, Values, Values], Requests]
) -> dict[str, Requests]:
    """The requests of the classes that come at a rate or with times of their own."""
    rate_per_s, count = load.get("rate_per_s"), run.get("requests")
    if rate_per_s is None or count is None:
        loads = {
            name: load if rate_per_s is None else {"rate_per_s": rate_per_s * share}
            for name, share in at_rates.items()
        }
        limits = {} if run.get("duration_s") is None else {"duration_s": run["duration_s"]}
        drawn = {name: part(name, own, limits) for name, own in loads.items()}
        return drawn if count is None else _first(drawn, count)
    span_s = (count + 5 * math.sqrt(count) + 16) / rate_per_s
    while True:
        drawn = {
            name: part(name, {"rate_per_s": rate_per_s * share}, {"duration_s": span_s})
            for name, share in at_rates.items()
        }
        if sum(map(len, drawn.values())) >= count:
            return _first(drawn, count)
        span_s *= 2


def _first(drawn: dict[str, Requests], count: int) -> dict[str, Requests]:
    """The *count* of the requests that come first; of those that come at once, those of the first class."""
    arrival_s = np.concatenate([requests.arrival_s for requests in drawn.values()])
    owner = np.repeat(np.arange(len(drawn)), [len(requests) for requests in drawn.values()])
    kept = np.bincount(owner[np.argsort(arrival_s, kind="stable")[:count]], minlength=len(drawn)).tolist()
    return {
        name: take(requests, np.arange(most))
        for (name, requests), most in zip(drawn.items(), kept, strict=True)
    }


def merge(parts: Sequence[Requests], names: Sequence[str], priorities: Sequence[int] | None) -> Requests:
    """The requests of all *parts*, each a class of *names*, by time of arrival; ties in that order.

    Prompts of different classes share nothing.
    """
    lengths = [len(part) for part in parts]
    owner = np.repeat(np.arange(len(parts), dtype=np.int16), lengths)
    order = np.argsort(np.concatenate([part.arrival_s for part in parts]), kind="stable")
    columns: dict[str, Any] = {name: _joined(name, parts) for name in _column_names(parts[0])}
    whole = replace(
        parts[0],
        **columns,
        notes=_all_notes(parts),
        contents=_all_contents(parts),
        follows=_all_follows(parts),
        priorities=None if priorities is None else np.asarray(priorities)[owner],
        classes=owner,
        class_names=tuple(names),
    )
    return take(whole, order)


def take(requests: Requests, rows: np.ndarray) -> Requests:
    """The *requests* of these *rows* (int64, each at most once), in that order."""
    columns: dict[str, Any] = {
        name: None if (column := getattr(requests, name)) is None else column[rows]
        for name in (*_column_names(requests), "priorities", "classes")
    }
    contents, follows = requests.contents, requests.follows
    return replace(
        requests,
        **columns,
        contents=None if contents is None else contents.take(rows),
        follows=None if follows is None else _renumbered(follows, rows),
    )


def _renumbered(follows: Follows, rows: np.ndarray) -> Follows:
    place = np.full(len(follows.previous) + 1, -1)  # the last is that of nobody
    place[rows] = np.arange(len(rows))
    return replace(follows, previous=place[follows.previous[rows]], think_s=follows.think_s[rows])


def _column_names(requests: Requests) -> list[str]:
    """The columns that every class draws for itself."""
    other = ("notes", "contents", "follows", "priorities", "classes", "class_names")
    return [column.name for column in fields(requests) if column.name not in other]


def _joined(name: str, parts: Sequence[Requests]) -> np.ndarray | None:
    columns = [getattr(part, name) for part in parts]
    if all(column is None for column in columns):
        return None
    absent = _WHERE_ABSENT.get(name, np.inf)
    return np.concatenate(
        [
            np.full(len(part), absent) if column is None else column
            for part, column in zip(parts, columns, strict=True)
        ]
    )


def _all_notes(parts: Sequence[Requests]) -> dict[str, int]:
    """The parts' notes, added up."""
    notes: dict[str, int] = {}
    for part in parts:
        for name, count in part.notes.items():
            notes[name] = notes.get(name, 0) + count
    return notes


def _all_contents(parts: Sequence[Requests]) -> Contents | None:
    if all(part.contents is None for part in parts):
        return None
    told = [part.contents or Contents.none(len(part)) for part in parts]
    apart = [np.int64(number) << _APART for number in range(len(parts))]
    counts = np.concatenate([np.diff(one.offsets) for one in told])
    return Contents(
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([one.ids + lift for one, lift in zip(told, apart, strict=True)]),
        np.concatenate([one.ends for one in told]),
        np.concatenate(
            [
                np.where(one.tails < 0, one.tails, one.tails + lift)
                for one, lift in zip(told, apart, strict=True)
            ]
        ),
    )


def _all_follows(parts: Sequence[Requests]) -> Follows | None:
    some = next((part.follows for part in parts if part.follows), None)
    if some is None:
        return None
    first = np.cumsum([0, *(len(part) for part in parts)])
    previous, think_s = [], []
    for part, before in zip(parts, first[:-1], strict=True):
        own = part.follows
        none = np.full(len(part), -1)
        previous.append(none if own is None else np.where(own.previous < 0, -1, own.previous + before))
        think_s.append(np.zeros(len(part)) if own is None else own.think_s)
    return replace(some, previous=np.concatenate(previous), think_s=np.concatenate(think_s))


def _priorities(workload: Values) -> list[int] | None:
    told = [value.get("priority") for value in classes_of(workload).values()]
    return None if all(one is None for one in told) else [int(one or 0) for one in told]
