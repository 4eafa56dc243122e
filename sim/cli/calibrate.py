"""`kneesim calibrate ...`: from measured kernels to a hardware profile, from a server to constants."""

from __future__ import annotations

from pathlib import Path

import click

from sim.cli.calibrate_kernels import check, fit
from sim.cli.calibrate_scale import scale
from sim.cli.calibrate_server import server
from sim.cli.output import note, note_written, say
from sim.files import may_write


@click.group()
def calibrate() -> None:
    """Measure kernels, fit a hardware profile to them, and see how far it holds; the same of a server."""


for command in (fit, check, scale, server):
    calibrate.add_command(command)


@calibrate.command("measure")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), required=True, help="What to measure.")
@click.option("--out", required=True, metavar="TABLE.csv", type=click.Path(path_type=Path))
@click.option("--models", default="", metavar="A,B,...", help="Whose shapes to measure; five if not given.")
@click.option("--minutes", type=float, default=6.0, show_default=True, help="Time; what tells most is first.")
def measure_here(device: str, out: Path, models: str, minutes: float) -> None:
    """Measure kernels on this machine into a table for `calibrate fit`; goes on after a kill.

    It needs PyTorch. On a machine with torch, numpy and yaml alone, with the folder `sim` copied there:
    python -m sim.calibration.measure with the same options.
    """
    from sim.calibration.measure.command import measure

    say(measure(device, out, [name.strip() for name in models.split(",") if name.strip()], minutes))


@calibrate.command("import")
@click.argument("origin", type=click.Choice(["vidur", "aiconfigurator"]))
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--gpu", required=True, metavar="NAME", help="The card that the files are of.")
@click.option("--out", required=True, metavar="TABLE.csv", type=click.Path(path_type=Path))
def import_published(origin: str, files: tuple[Path, ...], gpu: str, out: Path) -> None:
    """Make kernel timings as Vidur or AIConfigurator publish them a table for `calibrate fit`.

    TABLE may end in .csv, .csv.gz or .parquet.
    """
    from sim.calibration.published import read_published
    from sim.calibration.table import write_table
    from sim.report.text import table as aligned_table

    may_write(out)
    table, left_out = read_published(origin, files, gpu)
    for sentence in table.notes:
        note(sentence)
    path = write_table(table.rows, out)
    counts = table.rows.groupby(["op", "source", "dtype"]).size().reset_index().astype(str)
    cells = [*counts.values.tolist(), *(["left out", reason, "", str(n)] for reason, n in left_out.items())]
    say("\n".join(aligned_table(["operation", "source", "dtype", "rows"], cells)))
    note_written([path])
