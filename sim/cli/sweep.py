"""What `kneesim sweep` says of its answer, whole or cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cli.output import note, note_written, say, say_json
from sim.faults import InputFault

if TYPE_CHECKING:
    from sim.planning.sweep import Sweep


def tell(answer: Sweep, as_json: bool) -> None:
    """Print the table on stdout and the rest on stderr. Raises `InputFault` if no point at all could run."""
    for text in answer.notes:
        note(text)
    note_written(answer.files)
    if as_json:
        say_json(answer.as_dict())
    else:
        from sim.report.sweep_report import sweep_text

        say(sweep_text(answer))
    if answer.missing:
        further = (
            "the same command goes on from here"
            if answer.files
            else "with --out DIR the next such sweep can be gone on with"
        )
        note(f"stopped: {len(answer.points)} points are finished, {answer.missing} are missing; {further}")
    elif all(point.fault is not None for point in answer.points):
        first = answer.points[0]
        raise InputFault(f"none of the {len(answer.points)} points can run; the first: {first.fault}")
