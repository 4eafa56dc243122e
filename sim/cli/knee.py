"""What `kneesim knee` does with its answer, and with what it has when it is stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sim.cli.output import note, note_written, say, say_json
from sim.files import write_whole

if TYPE_CHECKING:
    from sim.planning.interrupted import KneeInterrupted
    from sim.planning.knee import Knee

UNFINISHED = "unfinished.json"


def tell(answer: Knee, as_json: bool, out: Path | None) -> None:
    """Print the answer on stdout and write its files. Raises `InputFault` where they cannot be written."""
    if as_json:
        say_json(answer.as_dict())
    else:
        from sim.report.text import knee_text

        say(knee_text(answer))
    if out is None:
        return
    try:
        _write(answer, out)
    except KeyboardInterrupt:
        note(f"interrupted: the answer is complete, but not all of its files are in {out}")
        raise


def _write(answer: Knee, out: Path) -> None:
    from sim.report.knee_report import write_knee
    from sim.report.page import write_page
    from sim.simulation import ledger_of

    ledger = ledger_of(answer.scenario).as_dict()
    note_written([*write_knee(answer, out, ledger), write_page(answer, out, ledger)])


def keep(stopped: KneeInterrupted, out: Path | None) -> None:
    """Say in a sentence what of an interrupted search is kept, and where."""
    count = len(stopped.points)
    loads = f"{count} load{'s' if count != 1 else ''}"
    if not count:
        note("interrupted: no load was finished yet, so nothing is kept")
    elif out is None:
        note(f"interrupted: {loads} were finished; nothing is kept without --out DIR")
    else:
        text = json.dumps(stopped.as_dict(), allow_nan=False, indent=1) + "\n"
        path = write_whole(out / UNFINISHED, text)
        note(f"interrupted: the {loads} finished so far are kept in {path}; there is no answer yet")
