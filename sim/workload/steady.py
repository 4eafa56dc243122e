"""Traffic with and without a steady state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def has_no_steady_state(workload: Mapping[str, Any]) -> bool:
    """Whether the rate changes in the course of a run: recorded arrivals, or a series of rates."""
    parts = [workload, *(workload.get("classes") or {}).values()]
    arrivals = [part.get("arrivals") or {} for part in parts]
    return any(one.get("kind") == "trace" or one.get("series") for one in arrivals)
