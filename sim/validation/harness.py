"""How results were measured, where the rows do not say it: choices by harness, never by row."""

from __future__ import annotations

from dataclasses import dataclass

from sim.validation.points import Point

WAVES = 10
"""Requests a user of a closed loop sends where the row does not say how many there were. All users send
their first at once, and nothing is left out: the first wave is a tenth of what is averaged."""
RATE_REQUESTS = 1000
OFFLINE_REQUESTS = 3000


@dataclass(frozen=True)
class Harness:
    """Of rows whose source contains *source*: how many requests there were in all, and which share of what
    weights, activations and overhead leave was KV cache; None where the rows or the engine decide. *why* is
    where that was read."""

    source: str
    why: str
    requests: int | None = None
    kv_free_share: float | None = None


HARNESSES: tuple[Harness, ...] = (
    Harness("mlcommons/inference_results", "every sample of the set is sent once", requests=24_576),
    Harness(
        "lmdeploy docs/en/benchmark/a100_fp16.md",
        "its column mem: at rest 76.6 GB are in use with the 7B, 74.8 with the 13B",
        kv_free_share=0.93,
    ),
)


def harness_of(point: Point) -> Harness:
    """What is known of the harness of *point*; an empty one if nothing is."""
    return next((known for known in HARNESSES if known.source in point.source), Harness("", ""))


def requests_of(point: Point) -> int:
    """How many requests the row stands for, over all replicas."""
    told = point.n_requests or harness_of(point).requests
    if told is not None:
        return told
    if point.load_kind == "concurrency":
        return max(round(point.load_value or 1), 1) * WAVES
    return RATE_REQUESTS if point.load_kind == "rate" else OFFLINE_REQUESTS
