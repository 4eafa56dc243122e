"""What the page tells, and its words for loads, dollars and resources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.planning.knee import Knee
from sim.planning.limits import Limit
from sim.planning.wording import number
from sim.report.page_runs import LoadRun


@dataclass(frozen=True)
class Story:
    """What the page tells: the knee, its `as_dict()`, the runs looked into, the memory ledger."""

    knee: Knee
    answer: Mapping[str, Any]
    runs: tuple[LoadRun, ...]
    ledger: Mapping[str, Any]

    @property
    def at_knee(self) -> Mapping[str, Any]:
        """The `knee` part of the answer: rate, limits, and interval and binding where they are known."""
        return self.answer["knee"]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The knee's total interval in requests/s; None where the answer has none."""
        interval = self.knee.interval
        return None if interval is None else interval.total

    @property
    def limits(self) -> tuple[Limit, ...]:
        return self.knee.asked


def column(run: LoadRun) -> str:
    """A load as the head of a column: `at the knee, 5.48/s`."""
    return f"{run.load.place}, {number(run.rate_per_s)}/s"


def usd(amount: float | None) -> str:
    """Dollars with two decimals, more where they are cents."""
    if amount is None:
        return "-"
    return f"${amount:,.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.2g}"


def share_of(value: float | None) -> str:
    """A share in per cent with one decimal."""
    return "-" if value is None else f"{100 * value:.1f} %"


def spaced(name: str) -> str:
    """`kv_blocks` as people say it; the engine's own flags stay as they are."""
    if name.startswith("max_num"):
        return name
    return name.replace("_", " ").replace("kv ", "KV ")
