"""Throughput of a GPU against speed for a user: which configurations no other beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.planning.wording import output_rate

Speeds = tuple[float, float]
"""Output tokens per second a GPU, and a user: of all answers together, and of one that is being written."""


def speeds(summary: Mapping[str, Any] | None, gpus: int) -> Speeds | None:
    """Of a run on so many *gpus*; None where no steady state has both. A user's speed is 1 / mean TPOT."""
    if summary is None or not summary["stable"]:
        return None
    rate, tpot_s = output_rate(summary), summary["tpot_s"]["mean"]
    return (rate / gpus, 1.0 / tpot_s) if rate and tpot_s else None


def front(pairs: Sequence[Speeds | None]) -> list[bool]:
    """Which of *pairs* are on the Pareto front: no other is as good in one and better in the other."""

    def beaten(pair: Speeds) -> bool:
        return any(
            other is not None and other != pair and other[0] >= pair[0] and other[1] >= pair[1]
            for other in pairs
        )

    return [pair is not None and not beaten(pair) for pair in pairs]
