"""The front end: what lies between the client's send and the engine's queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.clock import on_grid


@dataclass(slots=True)
class FrontEnd:
    """One server process that tokenises and hands over, first come first served, then a pure delay.

    A request of p prompt tokens occupies it for ``service_s + p * prompt_token_s`` seconds, so that
    it can saturate, and reaches the engine's queue *latency_s* after that.
    """

    latency_s: float
    service_s: float
    prompt_token_s: float
    busy_s: float = 0.0
    free_at_s: float = 0.0

    def pass_through(self, arrival_s: np.ndarray, prompt_tokens: np.ndarray) -> np.ndarray:
        """When requests sent at *arrival_s* (in order, on the grid) enter the engine's queue, in s.

        Lindley's recursion, unrolled: the end of service i is the largest, over j up to i, of arrival
        j plus the services from j to i. All sums are exact on the grid.
        """
        service_s = on_grid(self.service_s + prompt_tokens * self.prompt_token_s)
        total_s = np.cumsum(service_s)
        self.busy_s += float(service_s.sum())
        begins_s = np.maximum(arrival_s, self.free_at_s)
        ends_s = total_s + np.maximum.accumulate(begins_s - (total_s - service_s))
        if len(ends_s):
            self.free_at_s = float(ends_s[-1])
        return ends_s + on_grid(self.latency_s)

    def pass_one(self, arrival_s: float, prompt_tokens: int) -> float:
        """`pass_through` of a single request."""
        service_s = on_grid(self.service_s + prompt_tokens * self.prompt_token_s)
        self.busy_s += service_s
        self.free_at_s = max(arrival_s, self.free_at_s) + service_s
        return self.free_at_s + on_grid(self.latency_s)
