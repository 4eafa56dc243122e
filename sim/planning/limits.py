"""Latency limits (the scenario's `slo`) and what a run's summary says about them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.faults import InputFault
from sim.planning.wording import NAMES, duration
from sim.results.statistics import fewest_values

_NAME = re.compile(r"(?P<metric>[a-z0-9_]+?)_(?P<statistic>mean|max|p\d+(?:\.\d+)?)_s")


@dataclass(frozen=True)
class Limit:
    """One limit: *statistic* (`mean`, `max`, `p99`) of *metric* (`ttft`) is at most *bound_s* seconds."""

    name: str
    metric: str
    statistic: str
    bound_s: float

    @property
    def label(self) -> str:
        """What people call it: `TTFT p99`."""
        return f"{NAMES.get(self.metric, self.metric)} {self.statistic}"

    def __str__(self) -> str:
        return f"{self.label} \N{LESS-THAN OR EQUAL TO} {duration(self.bound_s)}"

    def value_s(self, summary: Mapping[str, Any]) -> float | None:
        """The statistic in a run's summary, in seconds; None where it is undefined there."""
        return summary.get(f"{self.metric}_s", {}).get(self.statistic)

    def why_undefined(self, summary: Mapping[str, Any]) -> str:
        """Why `value_s` is None: the summary's own reason, or that the summary has no such statistic."""
        statistics = summary.get(f"{self.metric}_s", {})
        if self.statistic in statistics:
            return str(statistics.get("reason") or "undefined in this run")
        return f"a run's summary has no {self.statistic} of {self.metric}_s"

    @property
    def fewest_requests(self) -> int:
        """How many requests a run needs for the statistic to be one of theirs: 100 for a p99."""
        return fewest_values(self.statistic)

    def beyond(self, summary: Mapping[str, Any]) -> float | None:
        """How many of the run's values lie beyond the percentile; None for a mean or a maximum."""
        count = summary.get(f"{self.metric}_s", {}).get("n")
        if count is None or not self.statistic.startswith("p"):
            return None
        return count * (1 - float(self.statistic[1:]) / 100)

    def broken_by(self, summary: Mapping[str, Any]) -> bool:
        """Whether the run is known to miss the limit; an undefined statistic breaks nothing."""
        value_s = self.value_s(summary)
        return value_s is not None and value_s > self.bound_s


def turned_away_share(summary: Mapping[str, Any]) -> float:
    """Of all requests offered, the share that was rejected, timed out in the queue or gave up.

    Pooled over replications where the summary is. What could never run at any load is not in it.
    """
    if (pooled := summary.get("turned_away_share")) is not None:
        return float(pooled)
    counts = summary["requests"]
    lost = sum(counts.get(kind, 0) for kind in ("rejected", "timed_out", "cancelled"))
    return float(lost / counts["offered"]) if counts["offered"] else 0.0


def limits_of(slo: Mapping[str, float]) -> tuple[Limit, ...]:
    """The limits of a scenario's `slo` section, in its order; `InputFault` if there are none."""
    if not slo:
        raise InputFault(
            "slo must hold at least one limit for a knee to exist (got none); "
            "for example slo.ttft_p99_s=2.0 slo.tpot_p99_s=0.05"
        )
    found = {name: _NAME.fullmatch(name) for name in slo}
    if strange := [name for name, match in found.items() if match is None]:
        raise InputFault([f"slo.{name} is no limit; a limit is named like ttft_p99_s" for name in strange])
    return tuple(
        Limit(name, match["metric"], match["statistic"], float(slo[name]))
        for name, match in found.items()
        if match is not None
    )
