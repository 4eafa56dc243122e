"""The command line. Commands are thin: load, ask, print; nothing is imported before it is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from sim.cli.output import note, note_written, progress_bar, say, say_json
from sim.faults import InputFault

if TYPE_CHECKING:
    from sim.scenario import Scenario

app = typer.Typer(
    name="kneesim",
    help="How much of this traffic can these GPUs serve within these latency limits?",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ScenarioName = Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario's name or file.")]
Changes = Annotated[
    Optional[list[str]],  # noqa: UP045  (older versions of typer read only this spelling)
    typer.Argument(metavar="[key=value ...]", help="Changes to the scenario, e.g. load.rate_per_s=6."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
OutDirectory = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--out", metavar="DIR", help="Write the result's files there."),
]


@app.command()
def run(
    scenario: ScenarioName,
    changes: Changes = None,
    seed: Annotated[Optional[int], typer.Option(help="Seed of the random streams.")] = None,  # noqa: UP045
    out: OutDirectory = None,
    as_json: AsJson = False,
    max_leap: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Most iterations in one event; 1 steps through each."),
    ] = None,
) -> None:
    """Simulate one scenario at its own load."""
    chosen = _load(scenario, [*(changes or []), *([] if seed is None else [f"run.seed={seed}"])])
    from sim.results import Result
    from sim.simulation import simulate

    result = Result(simulate(chosen, max_leap=max_leap))
    summary = result.summary()
    if out is not None:
        result.write(out)
        note(f"wrote {out}")
    if as_json:
        say_json(summary)
    else:
        from sim.report.text import run_text

        say(run_text(summary))


@app.command()
def knee(
    scenario: ScenarioName, changes: Changes = None, out: OutDirectory = None, as_json: AsJson = False
) -> None:
    """Find the highest load that meets every latency limit of a scenario."""
    chosen = _load(scenario, changes or [])
    from sim.planning.knee import find_knee

    with progress_bar("runs") as progress:
        answer = find_knee(chosen, progress=progress)
    if out is not None:
        from sim.report.knee_report import write_knee
        from sim.simulation import ledger_of

        note_written(write_knee(answer, out, ledger_of(chosen).as_dict()))
    if as_json:
        say_json(answer.as_dict())
    else:
        from sim.report.text import knee_text

        say(knee_text(answer))


@app.command()
def memory(scenario: ScenarioName, changes: Changes = None, as_json: AsJson = False) -> None:
    """Account for the memory of one GPU: weights, activations, overhead, KV cache."""
    chosen = _load(scenario, changes or [])
    from sim.simulation import ledger_of

    ledger = ledger_of(chosen).as_dict()
    if as_json:
        say_json(ledger)
    else:
        from sim.report.text import memory_text

        say(memory_text(ledger))


@app.command("list")
def list_names(
    kind: Annotated[str, typer.Argument(metavar="hardware|models|workloads|engines|scenarios")],
    as_json: AsJson = False,
) -> None:
    """List the names that scenarios may use."""
    from sim.cli.catalogue import names_of

    names = names_of(kind)
    if as_json:
        say_json(names)
    else:
        say("\n".join(names))


@app.command()
def show(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="hardware, model, workload, engine or scenario")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME")],
) -> None:
    """Print what stands behind a name."""
    from sim.cli.catalogue import text_of

    say(text_of(kind, name).rstrip("\n"))


@app.command()
def schema() -> None:
    """Print the JSON schema of a scenario, for editors that complete and check YAML."""
    from sim.scenario import json_schema

    say_json(json_schema())


@app.command()
def conformance(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A recording, .jsonl or .jsonl.gz.")],
    as_json: AsJson = False,
) -> None:
    """Compare the scheduler with schedules recorded from a real engine, step by step."""
    from sim.validation.conformance import check

    report = check(file)
    if as_json:
        say_json(report.as_dict())
    else:
        say(report.text())


@app.command()
def bench(as_json: AsJson = False) -> None:
    """Measure the simulator's own speed, in units of bare timeouts."""
    from sim.validation.bench import run as measure

    figures = measure()
    if as_json:
        say_json(figures)
    else:
        from sim.report.text import bench_text

        say(bench_text(figures))


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from sim.version import __version__

        say(f"kneesim {__version__}")
        raise typer.Exit


def _load(scenario: str, changes: list[str]) -> Scenario:
    from sim.scenario import load

    return load(scenario, changes)


def main() -> None:
    """Run the command line and exit: 0 answered, 2 the input is at fault, 1 we are, 130 interrupted."""
    sys.exit(_status())


def _status() -> int:
    try:
        app(prog_name="kneesim")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except InputFault as fault:
        for sentence in fault.faults:
            note(sentence)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception:
        import traceback

        note(traceback.format_exc() + "This is a fault of kneesim; please report it with the lines above.")
        return 1
    return 0
