"""A sweep: one scenario at every combination of some keys' values, with several seeds, in one table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.files import write_whole
from sim.planning.grid import Point, fingerprint, grid
from sim.planning.journal import opened
from sim.planning.pareto import Speeds, front, speeds
from sim.planning.points_table import Columns, columns_of, csv_bytes, flat, frame, parquet_bytes
from sim.planning.runs import Runs, check_workers
from sim.planning.search import Progress

if TYPE_CHECKING:
    import pandas as pd

    from sim.scenario import Scenario


@dataclass(frozen=True)
class Sweep:
    """The answer of `sweep`. *points* are in the order of the grid: the last key turns fastest, then seeds.

    *over* holds the values of each key, in base units. *missing* counts the points that an interrupt left
    out. *warnings* is about the grid; *notes* about how this answer came about, *files* where it lies.
    """

    scenario: Scenario
    over: dict[str, list[Any]]
    points: tuple[Point, ...]
    missing: int = 0
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    files: tuple[Path, ...] = field(default=(), compare=False)

    @cached_property
    def columns(self) -> Columns:
        """The table by columns: the keys, seed, the summary laid flat, and fault."""
        return columns_of([_row(point) for point in self.points])

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a point: the keys in base units, `seed`, the run's summary laid flat (`ttft_s.p99`,
        `output_throughput`, ...; `warnings` is their number), and in `fault` why a point cannot run."""
        return frame(self.columns)

    @cached_property
    def speeds(self) -> list[Speeds | None]:
        """Output tokens/s a GPU and a user at each point; None where it is not steady or nothing is known."""
        key, own = "engine.tensor_parallel_size", self.scenario.engine["tensor_parallel_size"]
        return [speeds(point.summary, int(point.values.get(key) or own)) for point in self.points]

    @cached_property
    def front(self) -> list[bool]:
        """Which points no other beats in both of their `speeds`."""
        return front(self.speeds)

    def _pareto(self) -> list[dict[str, Any]]:
        rows = zip(self.points, self.speeds, strict=True)
        named = [
            {
                "point": point.label,
                "output_throughput_per_gpu": pair[0] if pair else None,
                "output_throughput_per_user": pair[1] if pair else None,
            }
            for point, pair in rows
        ]
        return [{**row, "on_front": on} for row, on in zip(named, self.front, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """What `kneesim sweep --json` prints; the same for any number of workers."""
        return {
            "scenario": self.scenario.resolved(),
            "scenario_sha256": self.scenario.sha256,
            "over": self.over,
            "points": [point.as_dict() for point in self.points],
            "pareto": self._pareto(),
            "missing": self.missing,
            "warnings": list(self.warnings),
        }


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep; *sweep* holds the points that were finished."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        super().__init__(f"{len(sweep.points)} points are finished, {sweep.missing} are missing")


def sweep(
    scenario: Scenario,
    over: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 1,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run *scenario* at every combination of the values that *over* gives for its keys.

    Each combination is run with so many *seeds*, from the scenario's own one on. *workers* are processes
    (default: one for each usable core; 1 is this process); the answer does not depend on them. With *out*
    the table is written there, and each point as soon as it is finished: the same call goes on after a
    kill. *progress* is told after each point.

    Raises `InputFault` before the first run for unknown keys, values that no point accepts and a folder of
    another scenario; `SweepInterrupted` on Ctrl-C. A combination that does not go together or does not
    fit in memory is a row with a `fault`.
    """
    check_workers(workers)
    shown, points = grid(scenario, over, seeds)
    folder = None if out is None else Path(out)
    with ExitStack() as stack:
        journal = None
        if folder is not None:
            path = folder / "journal.jsonl"
            journal = stack.enter_context(opened(path, scenario.name, fingerprint(scenario)))
        runs = Runs([scenario] * len(points), points, journal, progress)
        interrupted = runs.finish(workers)
        answer = _written(_answer(runs, scenario, shown), folder)
    if interrupted:
        raise SweepInterrupted(answer) from None
    return answer


def _answer(runs: Runs, scenario: Scenario, shown: dict[str, list[Any]]) -> Sweep:
    done = runs.done()
    there = tuple(point for point in done if point.summary is not None or point.fault is not None)
    equal = runs.runnable - runs.distinct
    same = f"{equal} of {runs.runnable} points are equal to others and ran once with them"
    warnings = (same,) if equal else ()
    return Sweep(scenario, shown, there, len(done) - len(there), warnings, runs.notes())


def _row(point: Point) -> dict[str, Any]:
    return {**point.values, "seed": point.seed, **flat(point.summary or {}), "fault": point.fault}


def _written(answer: Sweep, folder: Path | None) -> Sweep:
    """Write table.csv, table.parquet and sweep.json in *folder*, each whole or not at all."""
    if folder is None:
        return answer
    files = (
        write_whole(folder / "table.csv", csv_bytes(answer.columns)),
        write_whole(folder / "table.parquet", parquet_bytes(answer.columns)),
        write_whole(folder / "sweep.json", json.dumps(answer.as_dict(), allow_nan=False, indent=1) + "\n"),
    )
    return replace(answer, files=files)
