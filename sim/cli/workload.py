"""`kneesim workload`: a profile from a trace, and what any traffic looks like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.cli.output import note_written, say, say_json
from sim.cli.parameters import as_json, changes_to_it

if TYPE_CHECKING:
    from sim.workload.portrait import Portrait
    from sim.workload.trace import Trace

_DRAWN_REQUESTS = 10_000


@click.group()
def workload() -> None:
    """Fit a profile to a trace, or show what a workload is like."""


@workload.command()
@click.argument("trace", metavar="TRACE", type=click.Path(path_type=Path))
@changes_to_it
@click.option(
    "--out",
    metavar="FILE.yaml",
    required=True,
    type=click.Path(path_type=Path),
    help="Write the profile there, and pictures beside it.",
)
@click.option("--drift", is_flag=True, help="Keep the recorded rate, step by step.")
@click.option("--source", metavar="TEXT", help="Where the trace is from, for the profile.")
@click.option("--licence", metavar="TEXT", help="Under which licence.")
@click.option("--lengths", metavar="NAME", help="TRACE has times alone; lengths are those of this workload.")
@as_json
def fit(
    trace: Path,
    changes: tuple[str, ...],
    out: Path,
    drift: bool,
    source: str | None,
    licence: str | None,
    lengths: str | None,
    as_json: bool,
) -> None:
    """Write a profile of TRACE: numbers only, from which traffic like it is drawn.

    Beside FILE.yaml come FILE.html, a page of pictures, and FILE.png. What TRACE does not tell of itself
    is said by key=value, such as trace.time_unit=ms, or by a workload's file that names it. TRACE may also
    be a folder of ServeGen's clients, which become traffic classes (FILE.yaml alone).
    """
    from sim.files import may_write, write_whole
    from sim.report.workload_page import write_pictures
    from sim.report.workload_text import fit_text, profile_yaml
    from sim.scenario import entry
    from sim.workload.fitting import fit_trace

    may_write(out)
    if trace.is_dir() and any(trace.glob("chunk-*-trace.csv")):
        of_clients(trace, out, source, licence, as_json)
        return
    other = None if lengths is None else entry("workloads", lengths)
    recorded = _recorded(trace, changes, lengths is None)
    fitted = fit_trace(recorded, out.stem, source, licence, drift, other)
    written = write_whole(out, profile_yaml(fitted.workload))
    title = f"{out.stem}: the profile beside its trace"
    pictures = write_pictures(
        title, {"trace": [fitted.recorded], "profile": fitted.drawn}, out.parent, out.stem, fit_text(fitted)
    )
    if as_json:
        say_json(fitted.as_dict())
    else:
        say(fit_text(fitted))
    note_written([written, *pictures])


def _recorded(trace: Path, changes: tuple[str, ...], lengths: bool) -> Trace:
    """The file *trace*, or the one that the workload in it names, read as it and *changes* say.

    lengths: whether it need have any. Raises `InputFault`.
    """
    from sim.faults import InputFault
    from sim.scenario import entry
    from sim.workload import read_trace
    from sim.workload.readers.reading import Reading, reading_of

    if not changes and trace.suffix not in (".yaml", ".yml"):
        return read_trace(trace, Reading(lengths=lengths))
    traffic = entry("workloads", f"{trace.absolute()}", changes=changes)
    arrivals = traffic.get("arrivals", {})
    if "path" not in arrivals:
        own = arrivals.get("kind", "those of its classes")
        raise InputFault(f"{trace}: a profile is made of a trace; its arrivals are {own}")
    return read_trace(arrivals["path"], replace(reading_of(traffic), lengths=lengths))


def of_clients(folder: Path, out: Path, source: str | None, licence: str | None, as_json: bool) -> None:
    """Write the workload of a folder of ServeGen's clients to *out*."""
    from sim.files import write_whole
    from sim.report.workload_text import profile_yaml
    from sim.workload.readers.servegen import servegen_workload

    told = {"source": source, "licence": licence}
    workload = {key: text for key, text in told.items() if text} | servegen_workload(folder)
    written = write_whole(out, profile_yaml(workload))
    if as_json:
        say_json(workload)
    else:
        say(workload["description"])
    note_written([written])


@workload.command()
@click.argument("name", metavar="NAME|FILE|TRACE")
@changes_to_it
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Write a page of pictures there.")
@click.option("--rate", "rate_per_s", type=float, help="Mean rate of requests a second; 1 if not given.")
@click.option("--requests", type=click.IntRange(min=1), help="How many to draw.", show_default="10000")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed.")
@as_json
def show(
    name: str,
    changes: tuple[str, ...],
    out: Path | None,
    rate_per_s: float | None,
    requests: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Show a workload's lengths, arrivals, burstiness by window, sharing and classes.

    NAME is a workload's name, its file, or a trace, which is shown at its own times;
    key=value changes it, such as trace.time_unit=ms or lengths.max_output_tokens=256.
    """
    from sim.files import make_folder
    from sim.report.workload_page import write_pictures
    from sim.report.workload_text import portrait_text

    portrait = _portrait_of(name, changes, rate_per_s, requests, seed)
    text = portrait_text(portrait)
    if out is not None:
        make_folder(out)
        note_written(write_pictures(name, {"": [portrait]}, out, "workload", text))
    if as_json:
        say_json(portrait.as_dict())
    else:
        say(text)


def _portrait_of(
    name: str, changes: tuple[str, ...], rate_per_s: float | None, requests: int | None, seed: int
) -> Portrait:
    """Of a trace at its own times; of any other workload as drawn at a rate. Raises `InputFault`."""
    from sim.faults import InputFault
    from sim.scenario import entry
    from sim.workload import generate
    from sim.workload.classes import users_of
    from sim.workload.portrait import Portrait

    if rate_per_s is not None and not 0 < rate_per_s < float("inf"):
        raise InputFault(f"--rate must be > 0 (got {rate_per_s:g})")
    traffic = entry("workloads", name, changes=changes)
    run: dict[str, int] = {"seed": seed} | ({"requests": requests} if requests else {})
    if traffic.get("arrivals", {}).get("kind") == "trace" and rate_per_s is None:
        return Portrait.of(generate(traffic, {"mode": "trace"}, run))
    run.setdefault("requests", _DRAWN_REQUESTS)
    drawn = generate(traffic, {"rate_per_s": rate_per_s or 1.0}, run)
    return Portrait.of(drawn, [users.of_class for users in users_of(traffic, drawn, seed)])
