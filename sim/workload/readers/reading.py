"""How a trace's file is to be read: what the scenario says of it under `workload.trace`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reading:
    """What the file itself does not tell; nothing of it is needed for a format that is known.

    format: a name of `FORMATS`; by the columns where None. columns: (role, column's name). time_unit: of the
    arrivals: s, ms, us, ns, or iso for dates. pattern: a regular expression with a group for each role, for
    logs. bytes_per_token: turns bytes into tokens. zero_output, failed: `drop` or `error`, `drop` or `keep`.
    lengths: whether prompts and outputs are wanted; where not, the file need not have any.
    """

    format: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    time_unit: str | None = None
    pattern: str | None = None
    bytes_per_token: float | None = None
    zero_output: str = "drop"
    failed: str = "drop"
    lengths: bool = True


def reading_of(workload: Mapping[str, Any]) -> Reading:
    """How the traces of *workload* are read."""
    written = workload.get("trace") or {}
    return Reading(
        format=written.get("format"),
        columns=tuple(sorted((written.get("columns") or {}).items())),
        time_unit=written.get("time_unit"),
        pattern=written.get("pattern"),
        bytes_per_token=written.get("bytes_per_token"),
        zero_output=workload.get("zero_output") or "drop",
        failed=written.get("failed") or "drop",
        lengths=(workload.get("lengths") or {}).get("kind") == "trace",
    )
