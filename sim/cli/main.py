"""The command line. Commands are thin: load, ask, print; nothing is imported before it is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.cli.calibrate import calibrate
from sim.cli.compare import compare
from sim.cli.output import note, note_written, progress_bar, say, say_json
from sim.cli.parameters import Folder, as_json, changes_to_it, out_directory, scenario_name
from sim.cli.validate import validate
from sim.cli.workload import workload
from sim.faults import InputFault
from sim.files import make_folder
from sim.version import __version__

if TYPE_CHECKING:
    from sim.scenario import Scenario


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kneesim", message="%(prog)s %(version)s")
def app() -> None:
    """How much of this traffic can these GPUs serve within these latency limits?

    SCENARIO is a scenario's name or file; key=value changes it, e.g. load.rate_per_s=6.
    """


@app.command()
@scenario_name
@changes_to_it
@click.option("--seed", type=int, help="Seed of the random streams.")
@out_directory
@as_json
@click.option(
    "--max-leap", type=click.IntRange(min=1), help="Most iterations in one event; 1 steps through each."
)
@click.option(
    "--stream",
    is_flag=True,
    help="Keep the records in files: a long run in constant memory (run.stream_records).",
)
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a timeline there (.json or .json.gz) for ui.perfetto.dev.",
)
@click.option(
    "--scrape-interval",
    metavar="SECONDS",
    type=float,
    show_default="1.0",
    help="Time between the rows of metrics.csv, with --out.",
)
def run(
    scenario: str,
    changes: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    as_json: bool,
    max_leap: int | None,
    stream: bool,
    trace: Path | None,
    scrape_interval: float | None,
) -> None:
    """Simulate one scenario at its own load."""
    seeded = () if seed is None else (f"run.seed={seed}",)
    streamed = ("run.stream_records=true",) if stream else ()
    chosen = _load(scenario, (*changes, *seeded, *streamed))
    from sim.cli.places import see_to_places
    from sim.results import run_of

    see_to_places(out, trace, scrape_interval, chosen.run["stream_records"])
    try:
        with progress_bar("requests") as progress:
            result = run_of(chosen, max_leap, progress=progress, out=out)
    except KeyboardInterrupt:
        note("interrupted: nothing is kept of a run that has not ended")
        raise
    summary = result.summary()
    if as_json:
        say_json(summary)
    else:
        from sim.report.text import run_text

        say(run_text(summary))
    if out is not None:
        from sim.report.windows_figure import write_windows

        note_written([*result.write(out), *write_windows(summary, out)])
        if not result.in_files:
            from sim.report.metrics import SCRAPE_INTERVAL_S, write_metrics

            note_written([write_metrics(result, out, scrape_interval or SCRAPE_INTERVAL_S)])
    if trace is not None:
        from sim.report.timeline import write_timeline

        note_written([write_timeline(result, trace)])


@app.command()
@scenario_name
@changes_to_it
@out_directory
@as_json
def knee(scenario: str, changes: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Find the highest load that meets every latency limit of a scenario."""
    chosen = _load(scenario, changes)
    from sim.cli.knee import keep, tell
    from sim.planning.interrupted import KneeInterrupted
    from sim.planning.knee import find_knee

    if out is not None:
        make_folder(out)
    try:
        with progress_bar("runs") as progress:
            answer = find_knee(chosen, progress=progress)
    except KneeInterrupted as stopped:
        keep(stopped, out)
        raise
    tell(answer, as_json, out)


@app.command()
@scenario_name
@changes_to_it
@click.option("--over", multiple=True, metavar="KEY=A,B,...", help="A key and its values; can be repeated.")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, help="Runs of each point, each with its seed."
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes; one for each core if not given.")
@click.option(
    "--out",
    metavar="DIR",
    type=Folder(),
    help="Write the table there; goes on after a kill.",
)
@as_json
def sweep(
    scenario: str,
    changes: tuple[str, ...],
    over: tuple[str, ...],
    seeds: int,
    workers: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a scenario at every combination of some keys' values."""
    from sim.cli.over import read_over
    from sim.cli.sweep import tell
    from sim.planning.sweep import SweepInterrupted
    from sim.planning.sweep import sweep as run_all

    keys = read_over(over)
    chosen = _load(scenario, changes)
    try:
        with progress_bar("points") as progress:
            answer = run_all(chosen, keys, seeds=seeds, workers=workers, out=out, progress=progress)
    except SweepInterrupted as stopped:
        tell(stopped.sweep, as_json)
        raise
    tell(answer, as_json)


@app.command()
@scenario_name
@changes_to_it
@as_json
def memory(scenario: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Account for the memory of one GPU: weights, activations, overhead, KV cache."""
    chosen = _load(scenario, changes)
    from sim.simulation import ledger_of

    ledger = ledger_of(chosen).as_dict()
    if as_json:
        say_json(ledger)
    else:
        from sim.report.text import memory_text

        say(memory_text(ledger))


@app.command("list")
@click.argument("kind", metavar="hardware|models|workloads|engines|scenarios")
@as_json
def list_names(kind: str, as_json: bool) -> None:
    """List the names that scenarios may use, with a line on each; --json is the names alone."""
    from sim.cli.catalogue import lines_of, names_of

    if as_json:
        say_json(names_of(kind))
    else:
        say("\n".join(lines_of(kind)))


@app.command()
@click.argument("kind", metavar="KIND")
@click.argument("name", metavar="NAME")
@as_json
def show(kind: str, name: str, as_json: bool) -> None:
    """Print what stands behind a name; KIND is hardware, model, workload, engine or scenario."""
    from sim.cli.catalogue import document_of, text_of

    if as_json:
        say_json(document_of(kind, name))
    else:
        say(text_of(kind, name).rstrip("\n"))


@app.command()
def schema() -> None:
    """Print the JSON schema of a scenario, for editors that complete and check YAML."""
    from sim.scenario import json_schema

    say_json(json_schema())


@app.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@as_json
def conformance(file: Path, as_json: bool) -> None:
    """Compare the scheduler with schedules recorded from a real engine (.jsonl or .jsonl.gz)."""
    from sim.validation.conformance import check

    report = check(file)
    if as_json:
        say_json(report.as_dict())
    else:
        say(report.text())


@app.command()
@as_json
def bench(as_json: bool) -> None:
    """Measure the simulator's own speed, in units of bare timeouts."""
    from sim.validation.bench import run as measure

    with progress_bar("timings") as progress:
        figures = measure(progress)
    if as_json:
        say_json(figures)
    else:
        from sim.report.text import bench_text

        say(bench_text(figures))


app.add_command(calibrate)
app.add_command(compare)
app.add_command(validate)
app.add_command(workload)


def _load(scenario: str, changes: tuple[str, ...]) -> Scenario:
    from sim.scenario import load

    return load(scenario, changes)


def main() -> None:
    """Run the command line and exit: 0 answered, 2 the input is at fault, 1 we are, 130 interrupted."""
    sys.exit(_status())


def _status() -> int:
    try:
        app(prog_name="kneesim", standalone_mode=False)
    except click.ClickException as misuse:
        misuse.show()
        return misuse.exit_code
    except InputFault as fault:
        for sentence in fault.faults:
            note(sentence)
        return 2
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception:
        import traceback

        note(traceback.format_exc() + "This is a fault of kneesim; please report it with the lines above.")
        return 1
    return 0
