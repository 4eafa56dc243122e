"""Latency limits (the scenario's `slo`) and what a run's summary says about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sim.faults import InputFault
from sim.planning.wording import NAMES, duration
from sim.results.statistics import fewest_values
from sim.results.windows import TURNED_AWAY

_NAME = re.compile(r"(?P<metric>[a-z0-9_]+?)_(?P<statistic>mean|max|p\d+(?:\.\d+)?)_s")


@dataclass(frozen=True)
class Limit:
    """One limit: *statistic* (`mean`, `max`, `p99`) of *metric* (`ttft`) is at most *bound_s* seconds.

    Where *missed_windows* is a share, a run that has windows is judged by them, and so many may miss it; else
    (None) by all its requests.
    """

    name: str
    metric: str
    statistic: str
    bound_s: float
    missed_windows: float | None = None

    @property
    def label(self) -> str:
        """What people call it: `TTFT p99`."""
        return f"{NAMES.get(self.metric, self.metric)} {self.statistic}"

    def __str__(self) -> str:
        return f"{self.label} \N{LESS-THAN OR EQUAL TO} {duration(self.bound_s)}"

    def value_s(self, summary: Mapping[str, Any]) -> float | None:
        """The statistic in a run's summary, in seconds; None where it is undefined there.

        By windows: in the worst window that may not miss it.
        """
        if self.missed_windows is not None and "windows" in summary:
            return decisive(summary["windows"], self.name, self.missed_windows)
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


def decisive(windows: Mapping[str, Any], name: str, missed_windows: float) -> float | None:
    """The largest of the windows' values called *name*, but for a share *missed_windows* of the windows.

    None where it is undefined in all of them; a window without the value has the lowest.
    """
    rows = windows["by_window"]
    known = [(value, row.get("windows", 1)) for row in rows if (value := row["values"].get(name)) is not None]
    spared = missed_windows * windows["count"] * (1 + 1e-9)
    for value, count in sorted(known, reverse=True):
        spared -= count
        if spared < 0:
            return float(value)
    return None


def broken_limits(limits: Iterable[Limit], summary: Mapping[str, Any]) -> tuple[Limit, ...]:
    """The *limits* that a run misses. By windows: each of them in too many, or all of them together."""
    asked = tuple(limits)
    broken = tuple(limit for limit in asked if limit.broken_by(summary))
    windows = summary.get("windows")
    shares = [limit.missed_windows for limit in asked if limit.missed_windows is not None]
    if broken or windows is None or not shares or windows["share_in_violation"] <= shares[0]:
        return broken
    missed = {name for row in windows["by_window"] for name in row["missed"]}
    return tuple(limit for limit in asked if limit.name in missed)


def as_judged(limits: Iterable[Limit], summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """*summary* with the share turned away that counts: by windows, that of the worst one not spared."""
    missed = next((limit.missed_windows for limit in limits), None)
    if missed is None or "windows" not in summary:
        return summary
    share = decisive(summary["windows"], TURNED_AWAY, missed) or 0.0
    return {**summary, "turned_away_share": share}


def turned_away_share(summary: Mapping[str, Any]) -> float:
    """Of all requests offered, the share that was rejected, timed out in the queue or gave up.

    Pooled over replications where the summary is. What could never run at any load is not in it.
    """
    if (pooled := summary.get("turned_away_share")) is not None:
        return float(pooled)
    counts = summary["requests"]
    lost = sum(counts.get(kind, 0) for kind in ("rejected", "timed_out", "cancelled"))
    return float(lost / counts["offered"]) if counts["offered"] else 0.0


def limits_of(slo: Mapping[str, float], missed_windows: float | None = None) -> tuple[Limit, ...]:
    """The limits of a scenario's `slo` section, in its order; `InputFault` if there are none.

    *missed_windows*: judge runs by windows, and allow that share of them to miss a limit.
    """
    if not slo:
        raise InputFault(
            "slo must hold at least one limit for a knee to exist (got none); "
            "for example slo.ttft_p99_s=2.0 slo.tpot_p99_s=0.05"
        )
    found = {name: _NAME.fullmatch(name) for name in slo}
    if strange := [name for name, match in found.items() if match is None]:
        raise InputFault([f"slo.{name} is no limit; a limit is named like ttft_p99_s" for name in strange])
    return tuple(
        Limit(name, match["metric"], match["statistic"], float(slo[name]), missed_windows)
        for name, match in found.items()
        if match is not None
    )
