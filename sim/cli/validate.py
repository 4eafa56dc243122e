"""`kneesim validate`: measured points against what is simulated."""

from __future__ import annotations

from pathlib import Path

import click

from sim.cli.output import note_written, progress_bar, say, say_json


@click.command()
@click.argument("points", metavar="POINTS.csv", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Write rows and figures there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def validate(points: Path, out: Path | None, as_json: bool) -> None:
    """Compare measured points with what is simulated: errors by metric, GPU, model, engine and load.

    A table of engines' start-up logs is compared with the memory ledger.
    """
    from sim.files import make_folder
    from sim.validation.accuracy_text import accuracy_text
    from sim.validation.kv_capacity import check_logs, markdown
    from sim.validation.kv_logs import is_logs
    from sim.validation.validate import validate as compare

    if is_logs(points):
        report = check_logs(points)
        return say_json(report.as_dict()) if as_json else say(markdown(report).rstrip())
    if out is not None:
        make_folder(out)
    with progress_bar("rows") as progress:
        validation = compare(points, progress)
    if as_json:
        say_json(validation.as_dict())
    else:
        say(accuracy_text(validation))
    if out is not None:
        from sim.validation.accuracy_files import write_accuracy

        note_written(write_accuracy(validation, out))
