"""`kneesim calibrate fit` and `check`: kernel tables into a profile, and a profile against kernel tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.cli.output import note, note_written, progress_bar, say, say_json
from sim.files import may_write, write_whole

if TYPE_CHECKING:
    from sim.calibration.fit import Fit
    from sim.calibration.table import KernelTable

_tables = click.argument(
    "tables", nargs=-1, required=True, metavar="TABLE...", type=click.Path(path_type=Path)
)


@click.command("fit")
@_tables
@click.option("--out", required=True, metavar="PROFILE.yaml", type=click.Path(path_type=Path))
@click.option("--base", metavar="NAME", help="The profile whose datasheet numbers hold; by the tables' card.")
@click.option("--page", metavar="FILE.png", type=click.Path(path_type=Path), help="PROFILE.png if not given.")
def fit(tables: tuple[Path, ...], out: Path, base: str | None, page: Path | None) -> None:
    """Fit a hardware profile to kernel tables of one card, with a page of its residuals.

    What the tables do not have (the datasheet's numbers, the price, other kernels) is the base profile's.
    For a card that has no profile, --base names one whose datasheet holds, or a file with the card's own.
    """
    from sim.calibration.fit import fit_kernels, profile_with
    from sim.calibration.page import page_png
    from sim.calibration.profile_text import profile_text
    from sim.calibration.table import read_tables
    from sim.hardware import HardwareProfile
    from sim.scenario.references import entry

    page = page or out.with_suffix(".png")
    may_write(out)
    may_write(page)
    given = HardwareProfile.from_mapping(entry("hardware", base)) if base else None
    table = read_tables(tables, given, stands_in=True)
    mapping = _called(entry("hardware", base or table.card.name), table)
    with progress_bar("fits") as progress:
        fits, notes = fit_kernels(table.rows, table.card, progress)
    for sentence in (*table.notes, *notes):
        note(sentence)
    profile = {**profile_with(mapping, fits), "name": out.stem}
    say("\n".join(_fit_lines(fits)))
    write_whole(out, profile_text(profile, f"{out.stem}, its kernels as calibrate fit found them."))
    note_written([out, write_whole(page, page_png(fits, table.card.name))])


@click.command("check")
@click.argument("profile", metavar="PROFILE")
@_tables
@click.option("--source", metavar="NAME", help="Predict all rows with this backend's kernels.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(profile: str, tables: tuple[Path, ...], source: str | None, as_json: bool) -> None:
    """Compare a profile's kernels with kernel tables of its card: each row with those of its own source."""
    from sim.calibration.check import check as compare
    from sim.calibration.table import read_tables
    from sim.hardware import HardwareProfile
    from sim.scenario.references import entry

    card = HardwareProfile.from_mapping(entry("hardware", profile))
    table = read_tables(tables, card)
    for sentence in table.notes:
        note(sentence)
    answer = compare(card, table.rows, source)
    answer["skipped"] = {**table.skipped, **answer["skipped"]}
    if as_json:
        say_json(answer)
    else:
        say("\n".join(_check_lines(answer)))


def _called(base: Mapping[str, Any], table: KernelTable) -> Mapping[str, Any]:
    """The profile *base* for the card of *table*, which it may only stand in for."""
    from sim.calibration.fit import standing_in

    gpus, card = sorted(set(table.rows["gpu"])), table.card
    if {gpu.casefold() for gpu in gpus} <= {name.casefold() for name in (card.name, *card.aliases)}:
        return base
    note(f"{', '.join(gpus)} has no profile: what the table lacks is {card.name}'s")
    return standing_in(base, gpus)


def _fit_lines(fits: list[Fit]) -> list[str]:
    from sim.report.text import table

    cells = []
    for one in fits:
        errors, sheet = one.fitted.errors, one.fitted.datasheet_errors
        figures = (errors.median_pct, errors.p90_pct, sheet.median_pct)
        counts = (str(one.fitted.shapes), str(errors.points))
        cells.append([one.fitted.key, one.backend, *counts, *(f"{figure:.1f}" for figure in figures)])
    header = ["kernels", "backend", "shapes", "rows", "median %", "90th %", "datasheet %"]
    return ["Errors on shapes that the fit had not seen, and the datasheet's median:", *table(header, cells)]


def _check_lines(answer: Mapping[str, Any]) -> list[str]:
    from sim.report.text import table

    cells = []
    for op, errors in answer.items():
        if op == "skipped" or not errors["n"]:
            continue
        for name, part in (("all", errors), *errors["by"].items()):
            figures = [f"{part[key]:.1f}" for key in ("median_abs_pct", "p90_abs_pct")]
            cells.append([op if name == "all" else "", name, str(part["n"]), *figures])
    lines = table(["operation", "source/dtype", "rows", "median %", "90th %"], cells) if cells else []
    skipped = [f"{count} rows skipped: {reason}" for reason, count in answer["skipped"].items()]
    return [*lines, *skipped] or ["no row that the profile can predict"]
