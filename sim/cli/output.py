"""What goes to stdout and stderr, and how."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.faults import InputFault

if TYPE_CHECKING:
    from sim.planning.search import Progress


def say(text: str) -> None:
    """Print *text* on stdout, in ASCII if stdout cannot show it; quiet once nobody reads any more.

    Raises `InputFault` where stdout is a file on a full disk.
    """
    if sys.stdout is None:  # closed by whoever started us
        return
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        from sim.report.text import plain

        text = plain(text)
    try:
        print(text, flush=True)
    except OSError as error:
        # Python flushes stdout again at its end; there must be something to flush into.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputFault(f"the answer cannot be printed: {error.strerror or error}") from error


def say_json(document: Any) -> None:
    """Print exactly one JSON document; NaN and Infinity are faults of ours, not output."""
    say(json.dumps(document, allow_nan=False, indent=2))


def note(text: str) -> None:
    """Print *text* on stderr, in ASCII if it cannot be shown otherwise; to nobody if nobody reads it."""
    if sys.stderr is None:
        return
    encoding = sys.stderr.encoding or "ascii"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def note_written(paths: Iterable[Path]) -> None:
    """Say on stderr which files were written."""
    for path in paths:
        note(f"wrote {path}")


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """A progress bar on stderr while it is a terminal; None, and silence, where it is not."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as TimePassed
    from rich.progress import TimeRemainingColumn as TimeLeft

    times = (TimePassed(), TextColumn("left"), TimeLeft())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def advance(made: int, expected: int, last: str) -> None:
            bar.update(task, completed=made, total=expected or None, description=f"{what}: {last}")

        yield advance
