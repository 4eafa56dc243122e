"""What clients do about a failure: whether they try again, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.clock import on_grid
from sim.simulation.recorder import CANCELLED, REJECTED, TIMED_OUT
from sim.workload import Streams

OUTCOMES = {"rejected": REJECTED, "timed_out": TIMED_OUT, "abandoned": CANCELLED}
"""What can be tried again, by name; what a person abandons, that person asks for again."""


@dataclass(frozen=True)
class Retries:
    """A client that tries again, as its library does.

    After failure k = 0, 1, .. of a request, at most *most* times, if its outcome is one of *on*, the next
    attempt is sent after min(base_s * 2^k, cap_s) * (1 - jitter * U) s, U uniform in [0, 1); or after
    *retry_after_s*, if the server says so and that is not more than *longest_retry_after_s*. An attempt
    without a first token is given up *timeout_s* after its send, and has then timed out.
    """

    most: int
    base_s: float
    cap_s: float
    jitter: float
    on: frozenset[int]
    timeout_s: float = float("inf")
    retry_after_s: float | None = None
    longest_retry_after_s: float = 60.0

    def tries_again(self, failures: int, status: int) -> bool:
        """Whether another attempt follows one that ended with *status*, after *failures* before it."""
        return failures < self.most and status in self.on

    def wait_s(self, failures: int, status: int, luck: float) -> float:
        """From the end of that attempt to the next, with the uniform number *luck*."""
        told_s = self.retry_after_s
        if told_s is not None and told_s <= self.longest_retry_after_s and status != CANCELLED:
            return on_grid(told_s)
        return on_grid(min(self.base_s * 2.0**failures, self.cap_s) * (1.0 - self.jitter * luck))


# Back-off of openai-python 1.x and 2.x (`_base_client.py`, `_constants.py`): Apache-2.0.
PRESETS: Mapping[str, Retries] = {
    "openai-python": Retries(2, 0.5, 8.0, 0.25, frozenset({REJECTED, TIMED_OUT}), timeout_s=600.0)
}
DEFAULT = "openai-python"


def retries_of(section: Mapping[str, Any] | None) -> Retries | None:
    """What a workload's `retries` says: a client's numbers, or those that are written; None without it."""
    if section is None:
        return None
    preset = PRESETS[section.get("client") or DEFAULT]
    on = section.get("on")
    return Retries(
        section.get("max", preset.most),
        section.get("base_s", preset.base_s),
        section.get("cap_s", preset.cap_s),
        section.get("jitter", preset.jitter),
        preset.on if on is None else frozenset(OUTCOMES[name] for name in on),
        section.get("timeout_s", preset.timeout_s),
        section.get("retry_after_s"),
    )


def luck(streams: Streams, request: int, failures: int) -> float:
    """The jitter's uniform number of a request's next attempt: its own, whatever happens to the others."""
    return float(streams.open(f"retries.{request}.{failures}").random())
