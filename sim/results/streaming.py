"""Runs whose records go to files while they go on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from shutil import rmtree
from weakref import finalize

from sim.faults import InputFault
from sim.results.parts import Parts
from sim.results.result import Result
from sim.scenario import Scenario
from sim.simulation import simulate, simulate_in_parts
from sim.simulation.clients import Progress
from sim.simulation.handover import ROWS

PREFIX = "unfinished-records-"


def run_of(
    scenario: Scenario,
    max_leap: int | None = None,
    *,
    progress: Progress | None = None,
    out: Path | None = None,
) -> Result:
    """Run *scenario* to the end of its last request, its records in *out* if `run.stream_records` says so.

    Raises InputFault.
    """
    if scenario.run["stream_records"]:
        return stream(scenario, max_leap, progress=progress, out=out)
    return Result(simulate(scenario, max_leap, progress=progress))


def stream(
    scenario: Scenario,
    max_leap: int | None = None,
    *,
    progress: Progress | None = None,
    out: Path | None = None,
    rows: int = ROWS,
) -> Result:
    """Run *scenario* in memory that does not grow with it.

    The records are in a folder in *out* (or where the system keeps temporary files) as long as the result
    is there, and are taken away with it, or when the run is interrupted. Raises InputFault.
    """
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=out))
    except OSError as error:
        raise InputFault(f"{error.filename} cannot be written: {error.strerror or error}") from error
    parts = Parts(folder)
    try:
        run = simulate_in_parts(scenario, parts.add, max_leap, progress=progress, rows=rows)
        parts.close()
    except BaseException as error:
        rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputFault(f"{folder} cannot be written: {error.strerror or error}") from error
        raise
    result = Result(run, parts, progress)
    finalize(result, rmtree, folder, ignore_errors=True)
    result.summary()  # takes its time, and the progress is told
    return result
