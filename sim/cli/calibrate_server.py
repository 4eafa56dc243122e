"""`kneesim calibrate server`: from what a server was measured to do to an engine file and a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.cli.output import note_written, progress_bar, say, say_json
from sim.faults import InputFault

if TYPE_CHECKING:
    from sim.calibration.server_answer import ServerCalibration


@click.command()
@click.argument("results", metavar="RESULT... [key=value ...]", nargs=-1, required=True)
@click.option("--scenario", required=True, metavar="SCENARIO", help="The server: its card, model and engine.")
@click.option("--out", metavar="ENGINE.yaml", type=click.Path(path_type=Path), help="Write an engine file.")
@click.option(
    "--card",
    metavar="CARD.yaml",
    type=click.Path(path_type=Path),
    help="Write the card with the efficiencies that it showed.",
)
@click.option(
    "--overlapped/--added",
    default=None,
    help="Whether host times overlap with the GPU's or are added to them; without either, what fits better.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def server(
    results: tuple[str, ...],
    scenario: str,
    out: Path | None,
    card: Path | None,
    overlapped: bool | None,
    as_json: bool,
) -> None:
    """Fit what kernels cannot show to what a server was measured to do.

    RESULT is a result file of `vllm bench serve`, SGLang's bench_serving, guidellm or aiperf; three loads
    (one user, a few, as many as run at once) mostly do.
    """
    changes = [word for word in results if "=" in word and not Path(word).exists()]
    files = [Path(word) for word in results if word not in changes]
    if not files:
        raise InputFault("no result file is given; name those of `vllm bench serve` or the like")
    from sim.calibration.result_files import read_result_files
    from sim.calibration.server_answer import calibrate_server
    from sim.files import may_write
    from sim.scenario import load

    for place in filter(None, (out, card)):
        may_write(place)
    loads = read_result_files(files)
    chosen = load(scenario, changes)
    with progress_bar("simulations") as progress:
        answer = calibrate_server(loads, chosen, overlapped, progress)
    _tell(answer, as_json)
    _write(answer, out, card)


def _tell(answer: ServerCalibration, as_json: bool) -> None:
    document = answer.as_dict()
    if as_json:
        say_json(document)
        return
    from sim.report.calibration_text import server_text

    say(server_text(document))


def _write(answer: ServerCalibration, out: Path | None, card: Path | None) -> None:
    from sim.files import write_whole

    written = []
    if out is not None:
        written.append(write_whole(out, _yaml({"name": out.stem, **answer.engine_file()})))
    if card is not None:
        written.append(write_whole(card, _yaml(answer.hardware_patch())))
    note_written(written)


def _yaml(document: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(document), sort_keys=False, width=100, allow_unicode=True)
