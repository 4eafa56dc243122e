"""What the law tests share: a scenario, step times that need no profile, and a run's answer as bytes."""

from __future__ import annotations

import errno
import io
import json
import math
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import sim
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import Run
from sim.simulation.recorder import GAP, STEP, STRETCH, TURN

Called = Callable[..., tuple[int, str, str]]
"""The command line: arguments; (status, stdout, stderr)."""

NO_FRONT_END = {
    "engine.front_end_latency_s": 0.0,
    "engine.front_end_service_s": 0.0,
    "engine.front_end_prompt_token_s": 0.0,
}


@cache
def base() -> Scenario:
    """An 8B model on an H100 with Poisson arrivals, 2000 tokens in, 300 out; `replace` makes the others.

    Steps follow one another, so that schedules can be derived by hand.
    """
    return sim.load(
        {
            "name": "base",
            "hardware": "h100-80gb-sxm",
            "model": "llama-3.1-8b",
            "engine": {"async_scheduling": False},
            "workload": {
                "arrivals": {"kind": "poisson"},
                "lengths": {"kind": "fixed", "prompt_tokens": 2000, "output_tokens": 300},
            },
            "load": {"rate_per_s": 8.0},
            "run": {"requests": 2000},
        }
    )


class EvenBatch:
    """A batch whose iterations all take *step_s*."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.start_s = 0.0

    def begin(self, start_s: float, n: int, context_tokens: int) -> None:
        self.start_s = start_s

    def elapsed_s(self, iterations: int) -> float:
        return iterations * self.step_s

    def reaches(self, elapsed_s: float, last: int) -> tuple[int, float]:
        count = math.ceil(min(elapsed_s / self.step_s, last)) or 1
        return count, self.elapsed_s(count)


class EvenSteps:
    """A step-time model (`sim.simulation.Clockwork`) whose every iteration takes *step_s*, a power of two."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s

    def composition(self) -> EvenBatch:
        return EvenBatch(self.step_s)

    def mixed_s(
        self,
        decodes: int,
        context_tokens: int,
        prefills: int,
        prefill_tokens: int,
        with_cached: int,
        squares: int,
        sampled: int,
    ) -> float:
        return self.step_s

    def elapsed_s(self, n: np.ndarray, context_tokens: np.ndarray, iterations: np.ndarray) -> np.ndarray:
        return iterations * self.step_s


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    """*summary* less what the simulator says of itself: its speed, and events, which leaps save."""
    simulator = {"iterations": summary["simulator"]["iterations"]}
    return {**summary, "simulator": simulator}


def answer(run: Run) -> dict[str, bytes]:
    """All that *run* says, by name: its summary, each column of its requests, and its logs row by row."""
    result = Result(run)
    named = {name: column.to_numpy() for name, column in result.requests.items()}
    texts = {name: json.dumps(column.tolist()).encode() for name, column in named.items()}
    logs = {
        f"log.{name}": run.recorder.column(name).tobytes()
        for row in (STEP, STRETCH, GAP, TURN)
        for name in row.names or ()
    }
    return {"summary": json.dumps(without_times(result.summary())).encode(), **texts, **logs}


def on_a_full_disk(name: str = "") -> Callable[[Path, str], io.IOBase]:
    """`open` for `sim.files` on a disk that fills up half-way through files with *name* in theirs."""

    class Full(io.FileIO):
        def writelines(self, parts: Iterable[Any], /) -> None:
            first = next(iter(parts))
            self.write(first[: len(first) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(path: Path, mode: str) -> io.IOBase:
        return Full(path, mode) if name in path.name else open(path, mode)

    return opened
