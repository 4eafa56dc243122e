"""What the parts of a session need of each other."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.scenario.rules import Report

Values = Mapping[str, Any]


def session_rules(sessions: Values, report: Report) -> None:
    """The rules within a workload's sessions."""
    written = report.tree.get(("sessions",))
    if written.get("gap") is None and written.get("think") is None:
        report("sessions.gap", "is missing: the time from a turn's arrival to the next one's; or write "
               "think, the time from its answer")  # fmt: skip
    tools = sessions.get("tools") or {}
    if tools and written.get("gap") is not None:
        report("sessions.gap", "does not go with tools, whose requests wait for answers; write think")
    for at, part in (("sessions.turns", sessions.get("turns")), ("sessions.tools.calls", tools.get("calls"))):
        _count_rules(at, part or {}, report)
    tables = {"sessions.gap": sessions.get("gap"), "sessions.think": sessions.get("think"),
              "sessions.tools.time": tools.get("time"), "sessions.first": sessions.get("first"),
              "sessions.tools.output": tools.get("output")}  # fmt: skip
    for at, part in tables.items():
        _table_rules(at, part or {}, report)


def _count_rules(at: str, part: Values, report: Report) -> None:
    kind, mean = part.get("kind"), part.get("mean") or 0
    values, weights = part.get("values"), part.get("weights")
    if kind == "fixed" and mean % 1:
        report(f"{at}.mean", f"must be a whole number where kind is fixed (got {mean:g})")
    if not values or not weights:
        return
    if len(values) != len(weights):
        report(at, f"must have as many values as weights (got {len(values)} and {len(weights)})")
    if abs(sum(weights) - 1) >= 0.01:
        report(f"{at}.weights", f"must add up to 1 (got {sum(weights):g})")


def _table_rules(at: str, part: Values, report: Report) -> None:
    name = "seconds" if "seconds" in part else "tokens"
    quantiles, values = part.get("quantiles"), part.get(name)
    if not quantiles or not values:
        return
    if len(quantiles) != len(values) or len(values) < 2:
        report(at, f"must have as many quantiles as {name}, at least 2 (got {len(quantiles)} and "
               f"{len(values)})")  # fmt: skip
    rising = all(low < high for low, high in pairwise(quantiles))
    if not rising or quantiles[0] != 0 or quantiles[-1] != 1:
        report(f"{at}.quantiles", "must rise from 0 to 1")
    if any(low > high for low, high in pairwise(values)):
        report(f"{at}.{name}", "must never fall")
