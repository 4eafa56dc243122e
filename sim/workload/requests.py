"""The requests of a run: four columns, drawn at once before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.clock import on_grid
from sim.faults import InputFault
from sim.workload.arrivals import arrival_times
from sim.workload.lengths import draw_lengths
from sim.workload.streams import stream


@dataclass(frozen=True, eq=False)
class Requests:
    """What the clients send, in order of arrival; row i of every column is request i.

    arrival_s: float64, never falling, multiples of 2^-32 s. prompt_tokens, output_tokens: int64, at
    least 1. patience_s: float64, how long after its send a client leaves, or None when nobody does.
    notes: what happened to the input on the way, by name, with counts (absent when it did not happen).
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    patience_s: np.ndarray | None = None
    notes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrival_s)


def generate(workload: Mapping[str, Any], load: Mapping[str, Any], run: Mapping[str, Any]) -> Requests:
    """The requests of *run* (`requests` or `duration_s`, `seed`), under *load*, of *workload*.

    Every column has its own stream, read from its start: a longer run begins with the shorter one, and
    another rate sends the same requests at proportionally other times. Raises InputFault.
    """
    seed = int(run.get("seed", 1))
    arrival_s, notes = arrival_times(workload, load, run)
    prompt_tokens, output_tokens, length_notes = draw_lengths(workload, len(arrival_s), seed)
    patience_s = draw_patience(workload.get("patience"), len(arrival_s), seed)
    return Requests(arrival_s, prompt_tokens, output_tokens, patience_s, notes | length_notes)


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
