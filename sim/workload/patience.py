"""How long clients wait and how much they read: what each request's client will put up with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sim.workload.streams import Streams, Take
from sim.workload.times import seconds, unit_mean

LIMITS = {"total": "patience_s", "first_token": "first_token_patience_s", "queue": "queue_patience_s"}
"""What can be waited for, and the column of `sim.workload.Requests` that says for how long."""

PATIENCE_COLUMNS = (*LIMITS.values(), "stop_after", "silent")

Columns = dict[str, Any]
"""Arrays by the name of their column."""


def limits_of(patience: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The limits that *patience* sets, by name; its own kind and mean are those of `total`."""
    limits = {name: patience[name] for name in LIMITS if patience.get(name)}
    return {"total": patience, **limits} if patience.get("kind") else limits


def open_patience(patience: Mapping[str, Any] | None, streams: Streams) -> Callable[[np.ndarray], Columns]:
    """A source of the columns of the next requests, given their output tokens (int64).

    Columns are there where *patience* asks for them: times in s after the send (float64, on the clock's grid,
    infinite for who is patient), stop_after (int64: tokens read before leaving; 0: all) and silent (bool).
    Every one has streams of its own. Raises InputFault.
    """
    if not patience:
        return lambda output_tokens: {}
    takes = {LIMITS[name]: _of_some(name, part, streams) for name, part in limits_of(patience).items()}
    stops = _stops(patience["stop_after"], streams) if patience.get("stop_after") else None
    share = patience.get("silent_share") or 0.0
    silence = streams.open("patience.silent")

    def take(output_tokens: np.ndarray) -> Columns:
        count = len(output_tokens)
        columns = {name: next_times(count) for name, next_times in takes.items()}
        if stops is not None:
            columns["stop_after"] = stops(output_tokens)
        if share:
            columns["silent"] = silence.random(count) < share
        return columns

    return take


def again_s(
    patience: Mapping[str, Any] | None, limit: str, streams: Streams, request: int, asked: int
) -> float | None:
    """How long the client of *request* waits when it asks again, after *asked* times, in s.

    None where *patience* does not set this *limit*.
    """
    part = limits_of(patience or {}).get(limit)
    if part is None:
        return None
    return float(seconds(part, streams, f"{_name(limit)}.{request}.{asked}")(1)[0])


def _name(limit: str) -> str:
    return "patience" if limit == "total" else f"patience.{limit}"


def _of_some(limit: str, part: Mapping[str, Any], streams: Streams) -> Take:
    """Times of the share of clients that have this limit; infinity for the others."""
    times, share = seconds(part, streams, _name(limit)), part.get("share", 1.0)
    if share >= 1.0:
        return times
    chosen = streams.open(f"{_name(limit)}.share")
    return lambda count: np.where(chosen.random(count) < share, times(count), np.inf)


def _stops(part: Mapping[str, Any], streams: Streams) -> Callable[[np.ndarray], np.ndarray]:
    """After how many tokens of answers of so many their readers leave; 0 where they read to the end."""
    name, share = "patience.stop_after", part.get("share", 1.0)
    chosen = streams.open(f"{name}.share")
    if part["kind"] == "uniform":
        uniform = streams.open(name)

        def stops(output_tokens: np.ndarray) -> np.ndarray:
            """Anywhere before the last token."""
            return np.ceil((1.0 - uniform.random(len(output_tokens))) * (output_tokens - 1))
    else:
        units, mean = unit_mean(part, streams, name), float(part["mean"])

        def stops(output_tokens: np.ndarray) -> np.ndarray:
            return np.maximum(np.rint(mean * units(len(output_tokens))), 1.0)

    def take(output_tokens: np.ndarray) -> np.ndarray:
        read = stops(output_tokens)
        leaves = (chosen.random(len(output_tokens)) < share) & (read < output_tokens)
        return np.where(leaves, read, 0.0).astype(np.int64)

    return take
