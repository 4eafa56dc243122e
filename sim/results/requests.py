"""One row a request: what it was, what became of it, and its latencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sim.results.steps import StepLog
from sim.simulation import Run
from sim.simulation.recorder import COMPLETED, STATUS

COLUMNS = (
    "request_id",
    "traffic_class",
    "replica",
    "status",
    "in_window",
    "arrival_s",
    "first_scheduled_s",
    "first_token_s",
    "finish_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "queue_s",
    "ttft_s",
    "tpot_s",
    "stall_s",
    "e2e_s",
)


def window_of(
    count: int, last_arrival_s: Callable[[], float], arrival_s: Callable[[int], float], warmup: Any
) -> tuple[float, float]:
    """Start and end of the window: from the end of *warmup* (`run.warmup`) to the last arrival, in s.

    *count* requests arrive, each at *arrival_s*, in s.
    """
    if not count:
        return 0.0, 0.0
    last_s = last_arrival_s()
    if isinstance(warmup, dict):
        return min(float(warmup["seconds"]), last_s), last_s
    return min(arrival_s(min(int(warmup * count), count - 1)), last_s), last_s


@dataclass(frozen=True)
class RequestTable:
    """Columns over requests of a run, in order of arrival; times in s, NaN where undefined.

    The window (s) is that of the whole run, whose other requests may be in other tables.

    ttft_s counts from the client's send, server_ttft_s from the engine's queue, tpot_s is
    (e2e - ttft) / (output tokens - 1), stall_s the largest gap between two tokens. Columns are worked
    out when asked for and not kept: a long run has many.
    """

    run: Run
    log: StepLog
    window: tuple[float, float]
    first: int = 0  # the row of its first request in the run

    @classmethod
    def of(cls, run: Run) -> RequestTable:
        """The table of a whole run."""
        arrival_s, warmup = run.requests.arrival_s, run.scenario.run["warmup"]
        window = window_of(
            len(arrival_s), lambda: float(arrival_s.max()), lambda row: float(arrival_s[row]), warmup
        )
        return cls(run, StepLog(run.recorder, run.step_time), window)

    def __len__(self) -> int:
        return len(self.run.requests)

    @property
    def status(self) -> np.ndarray:
        return self.run.recorder.column("status")

    @property
    def completed(self) -> np.ndarray:
        return self.status == COMPLETED

    @property
    def traffic_class(self) -> np.ndarray:
        """Of each request: its class, or else `priority 0` and so on where they differ, or `default`."""
        requests = self.run.requests
        if (classes := requests.classes) is not None:
            return np.array(requests.class_names)[classes]
        priorities = requests.priorities
        if priorities is None:
            return np.full(len(self), "default")
        return np.char.add("priority ", priorities.astype(str))

    def by_class(self) -> dict[str, np.ndarray]:
        """The rows of each traffic class, by its name; of all of them where the workload names them."""
        requests = self.run.requests
        if (classes := requests.classes) is not None:
            return {name: np.flatnonzero(classes == i) for i, name in enumerate(requests.class_names)}
        if requests.priorities is None:
            return {}
        levels = np.unique(requests.priorities).tolist()
        return {f"priority {level}": np.flatnonzero(requests.priorities == level) for level in levels}

    @cached_property
    def in_window(self) -> np.ndarray:
        return self.run.requests.arrival_s >= self.window[0]

    @cached_property
    def measured(self) -> np.ndarray:
        """Requests whose latencies count: arrived in the window and completed."""
        return self.in_window & self.completed

    @property
    def finish_s(self) -> np.ndarray:
        return self.run.recorder.column("finish_s")

    @property
    def queue_s(self) -> np.ndarray:
        return self.run.recorder.column("first_scheduled_s") - self.run.recorder.column("queued_s")

    @property
    def ttft_s(self) -> np.ndarray:
        return self.run.recorder.column("first_token_s") - self.run.requests.arrival_s

    @property
    def server_ttft_s(self) -> np.ndarray:
        return self.run.recorder.column("first_token_s") - self.run.recorder.column("queued_s")

    @property
    def e2e_s(self) -> np.ndarray:
        return np.where(self.completed, self.finish_s - self.run.requests.arrival_s, np.nan)

    @property
    def tpot_s(self) -> np.ndarray:
        output = self.run.requests.output_tokens
        return np.divide(
            self.e2e_s - self.ttft_s, output - 1, out=np.full(len(output), np.nan), where=output > 1
        )

    @property
    def stall_s(self) -> np.ndarray:
        return self.log.stalls_s(len(self))

    @property
    def send_delay_s(self) -> np.ndarray:
        """How long after its client meant to send it each request was first sent: waits for connections."""
        return self.run.recorder.column("sent_s") - self.run.requests.arrival_s

    @property
    def delayed(self) -> bool:
        """Whether sends may have been later than meant."""
        return self.run.recorder.sent_s is not None

    @property
    def tried_again(self) -> bool:
        """Whether any request was tried again."""
        return bool(self.run.recorder.attempts)

    @property
    def retries(self) -> np.ndarray:
        """How often each request was tried again."""
        return np.bincount(self.run.recorder.column("attempt_request"), minlength=len(self))

    @property
    def got_tokens(self) -> np.ndarray:
        """Output tokens that each request's client has got, or left without a word and did not see."""
        got = np.where(self.completed, self.run.requests.output_tokens, 0)
        partial = self.run.recorder.partial_answers
        got[list(partial)] = list(partial.values())
        return got

    def values(self, metric: str, which: np.ndarray) -> np.ndarray:
        """The defined values of a latency *metric* (its name without ``_s``) among *which* requests."""
        values = getattr(self, f"{metric}_s")[which]
        return values[np.isfinite(values)]

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of requests.csv, in order."""
        run, recorder = self.run, self.run.recorder
        count = len(self)
        own = {
            "request_id": np.arange(self.first, self.first + count),
            "traffic_class": self.traffic_class,
            "replica": np.zeros(count, dtype=np.int64),
            "status": np.array(STATUS)[self.status],
            "arrival_s": run.requests.arrival_s,
            "first_scheduled_s": recorder.column("first_scheduled_s"),
            "first_token_s": recorder.column("first_token_s"),
            "prompt_tokens": run.requests.prompt_tokens,
            "output_tokens": self.got_tokens,
            "cached_tokens": recorder.column("cached_tokens"),
            "preemptions": recorder.column("preemptions"),
        }
        present = {"send_delay_s": self.delayed, "retries": self.tried_again}
        names = (*COLUMNS, *(name for name, there in present.items() if there))
        return {name: own[name] if name in own else getattr(self, name) for name in names}
