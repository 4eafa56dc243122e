"""The kernel table on disk: whole rows only, and a killed session goes on where it was."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from sim.calibration.measure.device import Timing
from sim.calibration.measure.points import Point, backend_of
from sim.calibration.table import COLUMNS
from sim.faults import InputFault
from sim.files import write_whole

_KEY = (*(name for name in COLUMNS if name not in ("gpu", "source", "time_us")), "source")


class TableFile:
    """Rows of the table at *path*, all of one *gpu*. Each write makes the file anew and renames it there."""

    def __init__(self, path: Path, gpu: str) -> None:
        """Read what is there. Raises `InputFault` where that is no kernel table, or one of another card."""
        self.path = path
        self._gpu = gpu
        self._lines = [_line(dict(zip(COLUMNS, COLUMNS, strict=True)))]
        self._ops: Counter[str] = Counter()
        self._done: set[tuple[str, ...]] = set()
        for row in _read(path, gpu):
            self._take(row)

    def __len__(self) -> int:
        return len(self._lines) - 1

    def counts(self) -> dict[str, int]:
        """Rows by op."""
        return dict(sorted(self._ops.items()))

    def has(self, point: Point, backend: str) -> bool:
        """Whether *point* was measured with *backend*'s kernel."""
        return _key({**point.cells(), "source": point.source(backend)}) in self._done

    def add(self, point: Point, timing: Timing) -> None:
        """Add the row of *point*; it is on disk after `write`."""
        time_us = timing.time_s * 1e6
        row = {"gpu": self._gpu, **point.cells(), "source": point.source(timing.backend)}
        self._take({**row, "time_us": f"{time_us:.4g}" if time_us < 1e4 else f"{time_us:.1f}"})

    def _take(self, row: dict[str, str]) -> None:
        self._lines.append(_line(row))
        self._ops[row["op"]] += 1
        self._done.add(_key(row))

    def write(self) -> None:
        """Put all rows on disk."""
        write_whole(self.path, "".join(self._lines))


def _line(row: dict[str, str]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerow(row)
    return text.getvalue()


def conditions_path(table: Path) -> Path:
    """Where the conditions of *table* are kept: beside it, with the ending `.json`."""
    return table.with_suffix(".json")


def read_sessions(table: Path) -> list[dict[str, Any]]:
    """The sessions that measured *table* so far. Raises `InputFault` where the file beside it is another."""
    path = conditions_path(table)
    if not path.exists():
        return []
    try:
        sessions = json.loads(path.read_text(encoding="utf-8"))["sessions"]
        return [dict(session) for session in sessions]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputFault(
            f"{path} must hold the conditions of {table.name}, and is something else; move it, or write to"
            f" another table ({type(error).__name__})"
        ) from error


def write_sessions(table: Path, sessions: list[dict[str, Any]]) -> None:
    """Put *sessions* beside *table*."""
    write_whole(conditions_path(table), json.dumps({"sessions": sessions}, indent=1, allow_nan=False) + "\n")


def _key(row: dict[str, str]) -> tuple[str, ...]:
    source = row["source"]
    backend = backend_of(source)
    variant = source.partition("-")[2].partition("-")[2]
    return (*(row[name] for name in _KEY[:-1]), f"{backend}-{variant}")


def _read(path: Path, gpu: str) -> list[dict[str, str]]:
    if not path.exists():
        return []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            table = csv.DictReader(file, restval="", strict=True)
            header, rows = table.fieldnames, list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputFault(f"{path} cannot be read, and is not overwritten: {error}") from error
    if list(header or ()) != list(COLUMNS):
        raise InputFault(
            f"{path} is there and is no kernel table of ours (its columns must be {','.join(COLUMNS)});"
            " name another file"
        )
    rows = [row for row in rows if _is_whole(row)]
    others = sorted({row["gpu"] for row in rows} - {gpu})
    if others:
        raise InputFault(f"{path} is a table of {others[0]}, and this device is {gpu}; name another file")
    return rows


def _is_whole(row: dict[str, str]) -> bool:
    """Whether *row* has all cells and a time; what somebody cut off by hand is measured again."""
    try:
        return None not in row and 0 < float(row["time_us"]) < math.inf
    except ValueError:
        return False
