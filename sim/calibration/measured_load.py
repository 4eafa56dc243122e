"""One load that was put on a real server, and what it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

LATENCIES = ("ttft", "tpot", "itl", "e2e")
STATISTICS = ("mean", "p50", "p99")
_NO_SERVER_S = 1e-4  # shorter than any model's token


@dataclass(frozen=True, eq=False)
class Sent:
    """What was sent, in order; one row a request that was answered.

    prompt_tokens, output_tokens: int64, at least 1. sent_s: float64, never falling, from 0; None where
    the file does not say when requests were sent.
    """

    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    sent_s: np.ndarray | None = None


@dataclass(frozen=True)
class MeasuredLoad:
    """One load of one result file.

    kind: `rate` (value requests a second, open loop), `concurrency` (value users who send again when
    answered) or `burst` (all at once, value None). metrics: `ttft_mean_s`, `tpot_p50_s` and the like in
    seconds (sim.scenario.schema.METRICS), output_throughput in tokens a second over the time from the
    first send to the last answer. Absent is what the file does not say.
    """

    place: str
    """The file, with the line or the benchmark in it where it has several."""
    tool: str
    kind: str
    value: float | None
    completed: int
    failed: int
    duration_s: float
    prompt_tokens_mean: float
    output_tokens_mean: float
    metrics: Mapping[str, float]
    arrivals: str = "poisson"
    """Of kind `rate`: poisson or constant."""
    sent: Sent | None = None

    def __str__(self) -> str:
        return f"{self.place} ({self.load_words()})"

    def load_words(self) -> str:
        """The load in words: `8 users`, `2.5 requests/s`, `burst of 1000`."""
        if self.kind == "rate":
            return f"{self.value:g} requests/s"
        return f"{self.value:g} users" if self.kind == "concurrency" else f"burst of {self.completed}"


class Record:
    """A mapping of a result file whose numbers are asked for by dotted path; gathers what is wrong."""

    def __init__(self, place: str, values: Mapping[str, Any], faults: list[str]) -> None:
        self.place, self.values, self.faults = place, values, faults

    def get(self, path: str) -> Any:
        """The value at the dotted *path*, or None."""
        value: Any = self.values
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def fault(self, sentence: str) -> None:
        """What is wrong here."""
        self.faults.append(f"{self.place}: {sentence}")

    def number(self, path: str, least: float = 0.0) -> float:
        """The number at *path*, at least *least*; a fault, and *least* or 1, where there is none."""
        value = self.get(path)
        if value is None:
            self.fault(f"has no {path}; the file is truncated or of an unknown version")
        elif not _is_number(value) or not least <= value < np.inf:
            self.fault(f"{path} must be a finite number >= {least:g} (got {value!r:.40})")
        else:
            return float(value)
        return least or 1.0

    def metric(self, path: str, seconds: float = 1.0) -> float | None:
        """The number > 0 at *path* times *seconds*; None where the file does not say (or says 0)."""
        value = self.get(path)
        if value is None or value == 0:
            return None
        if not _is_number(value) or not 0 < value < np.inf:
            self.fault(f"{path} must be a finite number > 0 (got {value!r:.40})")
            return None
        return float(value) * seconds

    def tokens(self, path: str, least: int = 1) -> np.ndarray | None:
        """The list of whole numbers at *path*; None where there is none."""
        values = self.get(path)
        if values is None:
            return None
        fits = isinstance(values, list) and all(_is_number(v) and v >= least and v == int(v) for v in values)
        if not fits:
            self.fault(f"{path} must be a list of whole numbers >= {least}")
            return None
        return np.array(values, dtype=np.int64)

    def times(self, path: str) -> np.ndarray | None:
        """The list of finite numbers at *path*, in s; None where there is none."""
        values = self.get(path)
        if values is None:
            return None
        if not isinstance(values, list) or not all(_is_number(v) and abs(v) < np.inf for v in values):
            self.fault(f"{path} must be a list of finite numbers")
            return None
        return np.array(values, dtype=float)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def statistics_of(name: str, values: np.ndarray) -> dict[str, float]:
    """`name_mean_s`, `name_p50_s`, `name_p99_s` of *values* in s; nothing where there are none."""
    if not len(values):
        return {}
    return {
        f"{name}_mean_s": float(values.mean()),
        f"{name}_p50_s": float(np.percentile(values, 50)),
        f"{name}_p99_s": float(np.percentile(values, 99)),
    }


def present(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """*metrics* without those that are not there."""
    return {name: value for name, value in metrics.items() if value is not None}


def check_load(load: MeasuredLoad, record: Record) -> None:
    """Faults of what does not go together: nobody answered, many failed, a rate that the totals deny."""
    if not load.completed:
        record.fault("no request was answered")
        return
    if load.failed > 0.05 * (load.completed + load.failed):
        record.fault(
            f"{load.failed} of {load.completed + load.failed} requests failed, which the simulated load "
            "would not show; measure a load that the server answers"
        )
    for name in ("tpot", "e2e"):
        mean_s = load.metrics.get(f"{name}_mean_s", _NO_SERVER_S)
        if mean_s < _NO_SERVER_S:
            record.fault(
                f"its mean {name.upper()} is {mean_s:.3g} s, which no server reaches; is the unit another?"
            )
    stated = load.metrics.get("output_throughput")
    if stated is not None and load.duration_s > 0:
        counted = load.completed * load.output_tokens_mean / load.duration_s
        if abs(stated / counted - 1.0) > 0.05:
            record.fault(
                f"says {stated:g} output tokens/s, but its totals make {counted:g} (tokens over duration); "
                "it was edited or is of an unknown version"
            )
    e2e_s, ttft_s = load.metrics.get("e2e_mean_s"), load.metrics.get("ttft_mean_s")
    if e2e_s is not None and ttft_s is not None and ttft_s > e2e_s * 1.001:
        record.fault(f"its mean TTFT ({ttft_s:g} s) is longer than its mean E2E latency ({e2e_s:g} s)")
