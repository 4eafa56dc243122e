"""`kneesim calibrate scale`: cards that were not measured, from those that were."""

from __future__ import annotations

from pathlib import Path

import click

from sim.cli.output import note_written, say


@click.command("scale")
@click.argument("profiles", nargs=-1, metavar="[PROFILE.yaml...]", type=click.Path(path_type=Path))
def scale(profiles: tuple[Path, ...]) -> None:
    """Make the kernels of cards that were not measured anew, from those of the nearest measured ones.

    A profile says under `scaled` from which card, and by which ratios other than those of the datasheets; it
    needs no `kernels` to begin with. Without PROFILE: all shipped ones that have a `scaled`.
    """
    from sim.calibration.scale import rescale, scaled_files
    from sim.scenario import entry

    files = list(profiles) or scaled_files()
    changed = rescale(files, lambda name: entry("hardware", name))
    note_written(changed)
    say(f"{len(changed)} of {len(files)} profiles changed")
