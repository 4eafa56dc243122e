"""One row a request: what it was, what became of it, and its latencies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class RequestTable:
    """Columns over the requests of a run, in order of arrival; times in s, NaN where undefined.

    ttft_s counts from the client's send, server_ttft_s from the engine's queue, tpot_s is
    (e2e - ttft) / (output tokens - 1), stall_s the largest gap between two tokens. Columns are worked
    out when asked for and not kept: a long run has many.
    """

    run: Run
    log: StepLog

    def __len__(self) -> int:
        return len(self.run.requests)

    @property
    def status(self) -> np.ndarray:
        return self.run.recorder.column("status")

    @property
    def completed(self) -> np.ndarray:
        return self.status == COMPLETED

    @cached_property
    def window(self) -> tuple[float, float]:
        """Start and end of the window: from the end of warm-up to the last arrival, in s."""
        arrival_s = self.run.requests.arrival_s
        if not len(arrival_s):
            return 0.0, 0.0
        warmup = self.run.scenario.run["warmup"]
        if isinstance(warmup, dict):
            start_s = float(warmup["seconds"])
        else:
            start_s = float(arrival_s[min(int(warmup * len(arrival_s)), len(arrival_s) - 1)])
        return min(start_s, float(arrival_s[-1])), float(arrival_s[-1])

    @property
    def traffic_class(self) -> np.ndarray:
        """Of each request: `default`, or `priority 0` and so on where they differ in priority."""
        priorities = self.run.requests.priorities
        if priorities is None:
            return np.full(len(self), "default")
        return np.char.add("priority ", priorities.astype(str))

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
    def got_tokens(self) -> np.ndarray:
        """Output tokens that each request's client has got."""
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
            "request_id": np.arange(count),
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
        return {name: own[name] if name in own else getattr(self, name) for name in COLUMNS}
