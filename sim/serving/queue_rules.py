"""Who may wait, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sim.serving.sequence import DECODE, DONE, LEAVING, Sequence

_MEMORY = 1 / 16  # weight of the newest interval in the estimate of how fast the queue moves


@dataclass(slots=True)
class QueueRules:
    """Limits on a replica's queue; None and infinity where there is none.

    A request is refused on arrival when *max_requests* already wait, or when the prompts that wait and
    its own have more than *max_tokens* tokens, or, with *refuse_late*, when it would wait longer than
    *deadline_s* at the pace at which the queue has moved. One that has waited *deadline_s* without
    being scheduled leaves.

    vLLM's own limits, for which its server answers 503: a request is refused when with it more than
    *most_in_flight* would wait or run, or when the prompts that have no token of an answer yet have
    *most_prefill_tokens* already. A prompt counts whole until then, and its own does not.
    """

    max_requests: int | None = None
    max_tokens: int | None = None
    deadline_s: float = float("inf")
    refuse_late: bool = False
    most_in_flight: int | None = None
    most_prefill_tokens: int | None = None
    _interval_s: float = 0.0
    _last_s: float = 0.0
    _moving: bool = False

    def refuses(
        self,
        sequence: Sequence,
        waiting: Iterable[Sequence],
        num_waiting: int,
        running: Iterable[Sequence] = (),
    ) -> bool:
        """Whether *sequence* is turned away; *num_waiting* of those in *waiting* are not done."""
        if self._overflows(waiting, num_waiting, running):
            return True
        if self.max_requests is not None and num_waiting >= self.max_requests:
            return True
        if self.max_tokens is not None:
            ahead = sum(other.prompt_tokens for other in waiting if other.state != DONE)
            if ahead + sequence.prompt_tokens > self.max_tokens:
                return True
        return self.refuse_late and num_waiting * self._interval_s > self.deadline_s

    def _overflows(self, waiting: Iterable[Sequence], num_waiting: int, running: Iterable[Sequence]) -> bool:
        if self.most_in_flight is not None:
            in_flight = num_waiting + sum(other.state != LEAVING for other in running)
            if in_flight + 1 > self.most_in_flight:
                return True
        if self.most_prefill_tokens is None:
            return False
        without_token = (
            other.prompt_tokens
            for other in (*waiting, *running)
            if not other.generated and other.state not in (DECODE, DONE, LEAVING)
        )
        return sum(without_token) >= self.most_prefill_tokens

    def admitted(self, count: int, now: float, still_waiting: int) -> None:
        """*count* left the queue for a batch *now*; keeps the mean time between two such.

        Only time in which somebody waited counts.
        """
        if count:
            if self._moving:
                newest = (now - self._last_s) / count
                self._interval_s += _MEMORY * (newest - self._interval_s)
            self._last_s = now
        self._moving = still_waiting > 0
