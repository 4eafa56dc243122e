"""The requests of a run: four columns, drawn at once before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.clock import on_grid
from sim.faults import InputFault
from sim.workload.arrivals import arrival_times
from sim.workload.contents import Contents
from sim.workload.lengths import draw_lengths
from sim.workload.prefixes import drawn_contents, recorded_contents
from sim.workload.sessions import Turns, draw_turns, single_turns
from sim.workload.sharing import reusable_tokens
from sim.workload.streams import stream


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
    least 1. patience_s: float64, how long after its send a client leaves, or None when nobody does.
    notes: what happened to the input on the way, by name, with counts (absent when it did not happen).
    priorities: int64, smaller is more urgent, or None where all are equal.
    contents: which tokens requests share, or None when none do. follows: who waits for whose answer, or
    None when nobody does.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    patience_s: np.ndarray | None = None
    notes: Mapping[str, int] = field(default_factory=dict)
    contents: Contents | None = None
    follows: Follows | None = None
    priorities: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)


def generate(workload: Mapping[str, Any], load: Mapping[str, Any], run: Mapping[str, Any]) -> Requests:
    """The requests of *run* (`requests` or `duration_s`, `seed`), under *load*, of *workload*.

    Every column has its own stream, read from its start: a longer run begins with the shorter one, and
    another rate sends the same requests at proportionally other times. Raises InputFault.
    """
    seed = int(run.get("seed", 1))
    notes: dict[str, int] = {}
    if workload.get("sessions"):
        turns = draw_turns(workload, load, run)
    else:
        arrival_s, notes = arrival_times(workload, load, run)
        prompt_tokens, output_tokens, length_notes = draw_lengths(workload, len(arrival_s), seed)
        turns = single_turns(arrival_s, prompt_tokens, output_tokens, int(workload.get("answers") or 1))
        notes |= length_notes
    patience_s = draw_patience(workload.get("patience"), len(turns), seed)
    contents = _contents(workload, turns, seed)
    if contents is not None:
        seen = reusable_tokens(contents, turns.prompt_tokens, turns.output_tokens)
        notes |= {"prompt_tokens_seen_before": int(seen.sum())}
    return Requests(
        turns.arrival_s,
        turns.prompt_tokens,
        turns.output_tokens,
        patience_s,
        notes,
        contents,
        _follows(workload, turns),
        _priorities(workload, len(turns), seed),
    )


def _priorities(workload: Mapping[str, Any], count: int, seed: int) -> np.ndarray | None:
    weights = np.asarray((workload.get("priorities") or {}).get("weights") or [1.0])
    if len(weights) < 2:
        return None
    return np.searchsorted(
        np.cumsum(weights / weights.sum())[:-1], stream(seed, "priorities").random(count), "right"
    )


def _contents(workload: Mapping[str, Any], turns: Turns, seed: int) -> Contents | None:
    if (workload.get("prefixes") or {}).get("kind") == "trace":
        return recorded_contents(workload, len(turns))
    return drawn_contents(workload, turns, seed)


def _follows(workload: Mapping[str, Any], turns: Turns) -> Follows | None:
    """Who waits, where users think after an answer rather than come at a pace of their own."""
    if turns.previous is None or turns.gap_s is None or not workload["sessions"].get("think"):
        return None
    return Follows(turns.previous, np.where(turns.previous < 0, 0.0, turns.gap_s))


def draw_patience(patience: Mapping[str, Any] | None, count: int, seed: int) -> np.ndarray | None:
    """How long each client stays at most, in seconds on the clock's grid; None when *patience* is absent."""
    return _draw_times("workload.patience", patience, count, seed) if patience else None


def draw_think(load: Mapping[str, Any], count: int, seed: int) -> np.ndarray:
    """How long users think after each of *count* requests, in seconds on the clock's grid."""
    think = load.get("think")
    return _draw_times("load.think", think, count, seed) if think else np.zeros(count)


def _draw_times(key: str, times: Mapping[str, Any], count: int, seed: int) -> np.ndarray:
    mean_s = times["mean_s"]
    if times["kind"] == "fixed":
        return on_grid(np.full(count, float(mean_s)))
    if times["kind"] == "exponential":
        return on_grid(mean_s * stream(seed, key.rpartition(".")[2]).standard_exponential(count))
    raise InputFault(f"{key}.kind must be fixed or exponential (got {times['kind']})")
