"""What a replica asks of whatever tells it how long iterations take."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Batch(Protocol):
    """What a replica asks of an unchanging batch (`sim.serving.step_time.Composition`)."""

    start_s: float

    def begin(self, start_s: float, n: int, context_tokens: int) -> None: ...

    def elapsed_s(self, iterations: int) -> float: ...

    def reaches(self, elapsed_s: float, last: int) -> tuple[int, float]: ...


class Clockwork(Protocol):
    """What a replica asks of a step-time model (`sim.serving.step_time.StepTime`)."""

    def composition(self) -> Batch: ...

    def mixed_s(
        self,
        decodes: int,
        context_tokens: int,
        prefills: int,
        prefill_tokens: int,
        with_cached: int,
        squares: int,
        sampled: int,
    ) -> float: ...

    def elapsed_s(self, n: np.ndarray, context_tokens: np.ndarray, iterations: np.ndarray) -> np.ndarray: ...
