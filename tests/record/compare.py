"""Where two recordings of the same cases differ: the first such step of each case.

Needs no engine. Exit status: 0 where every case agrees, 1 where some differ, 2 where the recordings
do not hold the same cases.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

_COLUMNS = ("step", "tokens", "preempted", "finished", "free blocks", "cached tokens")


def cases(path: Path) -> dict[Any, dict[str, Any]]:
    """The recorded cases of *path* by their number."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return {case["case"]: case for case in map(json.loads, lines)}


def inputs(case: dict[str, Any]) -> dict[str, Any]:
    """What the engine was given: everything but its name, its version and what it did."""
    config = {key: value for key, value in case["config"].items() if not key.startswith("engine")}
    return {"config": config, "requests": case["requests"], "aborts": case["aborts"]}


def first_difference(old: list[Any], new: list[Any]) -> str | None:
    """The first row at which two traces part, in words; None where they agree."""
    for before, after in zip(old, new, strict=False):
        parts = [
            f"{column} {was} -> {now}"
            for column, was, now in zip(_COLUMNS, before, after, strict=True)
            if was != now
        ]
        if parts:
            return f"step {before[0]}: {'; '.join(parts)}"
    return None if len(old) == len(new) else f"{len(old)} steps -> {len(new)} steps"


def report(old: dict[Any, dict[str, Any]], new: dict[Any, dict[str, Any]]) -> int:
    """Prints what differs; returns the exit status."""
    shared = old.keys() & new.keys()
    others = sorted(old.keys() ^ new.keys())
    changed = sorted(number for number in shared if inputs(old[number]) != inputs(new[number]))
    if others or changed:
        print(f"not the same cases: only in one {others}, with other settings or requests {changed}")
        return 2
    agreeing = 0
    for number in sorted(shared):
        where = first_difference(old[number]["trace"], new[number]["trace"])
        if where:
            print(f"case {number}, {where}")
        agreeing += not where
    print(f"{agreeing} of {len(shared)} cases agree in every step")
    return 0 if agreeing == len(shared) else 1


def main() -> None:
    """Compares two recordings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    given = parser.parse_args()
    sys.exit(report(cases(given.old), cases(given.new)))


if __name__ == "__main__":
    main()
