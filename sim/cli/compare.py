"""`kneesim compare`: which scenarios are meant, and what is said of the answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.cli.output import note, note_written, progress_bar, say, say_json
from sim.cli.parameters import as_json, out_directory
from sim.faults import InputFault
from sim.files import make_folder

if TYPE_CHECKING:
    from sim.planning.compare import Comparison
    from sim.scenario import Scenario

BASE = "base"


@click.command()
@click.argument("arguments", nargs=-1, required=True, metavar="SCENARIO SCENARIO ... [key=value ...]")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True,
              help="Runs of each scenario, from the first one's seed on.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), help="Processes; one for each core if not given.")
@out_directory
@as_json
def compare(
    arguments: tuple[str, ...], seeds: int, workers: int | None, out: Path | None, as_json: bool
) -> None:
    """Run scenarios on the same random numbers; tell what is different for certain.

    Each number's difference to the first scenario is paired, seed by seed, with a 95 % interval. A folder
    stands for all scenarios in it (base.yaml first), as in `kneesim compare benchmark`; key=value is set in
    all of them. Files of --out: page.html, compare.md, compare.csv, compare.json.

    --json: seeds, confidence, scenarios [{name, scenario, differs {key: {first, here, ...}}, not_shared,
    fault, unstable_runs, binding, numbers {path: {value, values, difference {mean, interval, seen, relative,
    seeds}}}}], missing, warnings. docs/compare.md has more.
    """
    scenarios = loaded(arguments)
    from sim.planning.compare import CompareInterrupted
    from sim.planning.compare import compare as run_all

    if out is not None:
        make_folder(out)
    try:
        with progress_bar("runs") as progress:
            answer = run_all(scenarios, seeds=seeds, workers=workers, out=out, progress=progress)
    except CompareInterrupted as stopped:
        _tell(stopped.comparison, as_json, None)
        further = "the same command goes on from here" if out else "with --out DIR one can go on with it"
        note(f"stopped: {stopped}; {further}")
        raise
    _tell(answer, as_json, out)


def loaded(arguments: Sequence[str]) -> list[Scenario]:
    """The scenarios among *arguments*, with the changes among them. Raises `InputFault` with all faults."""
    from sim.scenario import load

    changes = [text for text in arguments if _is_change(text)]
    found: list[Scenario] = []
    faults: list[str] = []
    for text in arguments:
        if text in changes:
            continue
        for source in _named(text):
            try:
                found.append(load(source, changes))
            except InputFault as fault:
                faults += fault.faults
    if faults:
        raise InputFault(dict.fromkeys(faults))
    return found


def _is_change(text: str) -> bool:
    return "=" in text and not Path(text).exists()


def _named(text: str) -> Sequence[str | Path]:
    """*text* itself, or the scenarios in the folder that it is, base.yaml first."""
    from sim.scenario.catalogue import files_in, folder_of

    folder = None if Path(text).is_file() else folder_of("scenarios", text)
    if folder is None:
        return [text]
    files = files_in(folder)
    if not files:
        raise InputFault(f"{text} is a folder without scenarios; name one with .yaml files")
    return sorted(files, key=lambda path: path.stem != BASE)


def _can_colour() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and "utf" in (sys.stdout.encoding or "").lower()


def _tell(answer: Comparison, as_json: bool, out: Path | None) -> None:
    for text in answer.notes:
        note(text)
    if as_json:
        say_json(answer.as_dict())
    elif _can_colour():
        from rich.console import Console

        from sim.report.compare_text import coloured

        console = Console(highlight=False)
        for part in coloured(answer):
            console.print(part)
    else:
        from sim.report.compare_text import compare_text

        say(compare_text(answer))
    if out is not None:
        from sim.report.compare_files import write_comparison

        note_written(write_comparison(answer, out))
