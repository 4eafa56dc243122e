"""A progress bar of plain text on stderr, where that is a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sim.calibration.measure.session import Progress

_BAR = 24


@contextmanager
def bar() -> Iterator[Progress | None]:
    """Draws the time gone and what is measured now; None, and silence, where stderr is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    try:
        yield _draw
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def line(gone_s: float, whole_s: float, what: str, width: int) -> str:
    """The bar as text of at most *width* signs."""
    full = round(_BAR * min(1.0, gone_s / whole_s))
    times = f"{_minutes(gone_s)} of {_minutes(whole_s)}"
    return f"[{'#' * full}{'.' * (_BAR - full)}] {times}  {what}"[:width]


def _draw(gone_s: float, whole_s: float, what: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[K{line(gone_s, whole_s, what, width)}")
    sys.stderr.flush()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
