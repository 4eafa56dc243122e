"""A sweep: one scenario at every combination of some keys' values, with several seeds, in one table."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.faults import InputFault
from sim.files import write_whole
from sim.planning.executors import WorkerLostError, answers, usable_cores
from sim.planning.grid import Point, fingerprint, grid
from sim.planning.journal import Journal, opened
from sim.planning.pareto import Speeds, front, speeds
from sim.planning.points_table import Columns, columns_of, csv_bytes, flat, frame, load_writers, parquet_bytes
from sim.planning.search import Progress

if TYPE_CHECKING:
    import pandas as pd

    from sim.scenario import Scenario

Job = tuple["Scenario", dict[str, Any], str | None]
"""The sweep's scenario, what a point changes, and the sha256 that this must give."""


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
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputFault(f"workers must be a whole number >= 1 (got {workers!r})")
    shown, points = grid(scenario, over, seeds)
    folder = None if out is None else Path(out)
    with ExitStack() as stack:
        journal = None
        if folder is not None:
            path = folder / "journal.jsonl"
            journal = stack.enter_context(opened(path, scenario.name, fingerprint(scenario)))
        runs = _Runs(scenario, points, journal, progress)
        interrupted = runs.finish(workers or usable_cores())
        answer = _written(runs.answer(shown), folder)
    if interrupted:
        raise SweepInterrupted(answer) from None
    return answer


class _Runs:
    """The points that can run: which are finished, and the rest of them."""

    def __init__(
        self, scenario: Scenario, points: list[Point], journal: Journal | None, progress: Progress | None
    ) -> None:
        self.scenario = scenario
        self.points = points
        self.journal = journal
        self.progress = progress
        self.by_key = {point.key: point for point in reversed(points) if point.key}
        kept = journal.answers if journal else {}
        self.finished = {key: kept[key] for key in self.by_key if key in kept}
        self.found = len(self.finished)

    def finish(self, workers: int) -> bool:
        """Run what is not there yet; True if an interrupt came before the end."""
        todo = [point for point in self.points if self.by_key.get(point.key) is point]
        todo = [point for point in todo if point.key not in self.finished]
        jobs = [(self.scenario, point.changes, point.scenario_sha256) for point in todo]
        try:
            with closing(answers(_answer, jobs, max(1, min(workers, len(jobs))))) as done:
                for index, text in done:
                    self._keep(todo[index], text)
                    if self.journal is not None:
                        load_writers()  # while the workers are busy, not when they have nothing left to do
        except KeyboardInterrupt:
            if self.journal is not None:
                self.finished |= {k: v for k, v in self.journal.written().items() if k in self.by_key}
            return True
        except WorkerLostError as error:
            raise InputFault(self._lost(todo, workers)) from error
        return False

    def _keep(self, point: Point, text: str) -> None:
        answer = json.loads(text)
        if "error" in answer:
            raise RuntimeError(f"the point {point.label} failed in the simulator:\n{answer['error']}")
        if "changed" in answer:
            raise InputFault(f"a file changed during the sweep; the point {point.label}: {answer['changed']}")
        if self.journal is not None:
            self.journal.add(point.key, text)
        self.finished[point.key] = answer
        if self.progress is not None:
            self.progress(len(self.finished), len(self.by_key), point.label)

    def _lost(self, todo: list[Point], workers: int) -> str:
        unfinished = [point.label for point in todo if point.key not in self.finished]
        kept = f"; finished points are kept in {self.journal.path}" if self.journal else ""
        return (
            "a worker process ended abruptly (killed, perhaps for lack of memory: fewer workers need less) "
            f"at one of these points: {'; '.join(unfinished[:workers])}{kept}"
        )

    def answer(self, shown: dict[str, list[Any]]) -> Sweep:
        done = [_finished(point, self.finished) for point in self.points]
        there = tuple(point for point in done if point.summary is not None or point.fault is not None)
        runnable = sum(1 for point in self.points if point.key)
        equal = runnable - len(self.by_key)
        warnings = (
            [f"{equal} of {runnable} points are equal to others and ran once with them"] if equal else []
        )
        notes = []
        if self.journal is not None and self.found:
            notes = [f"{self.found} of {len(self.by_key)} runs were in {self.journal.path} already"]
        return Sweep(self.scenario, shown, there, len(done) - len(there), tuple(warnings), tuple(notes))


def _finished(point: Point, answers_by_key: Mapping[str, Mapping[str, Any]]) -> Point:
    answer = answers_by_key.get(point.key, {})
    return replace(point, summary=answer.get("summary"), fault=answer.get("fault", point.fault))


def _answer(job: Job) -> str:
    """What one point answers, as JSON: its `summary`, its `fault`, or the traceback of an `error` of ours.

    `changed` says that a file is no longer what it was when the points were checked.
    Called in a worker process; only text comes back.
    """
    from sim.results import Result
    from sim.simulation import simulate

    scenario, changes, sha256 = job
    try:
        chosen = scenario.replace(changes, source="sweep")
        if chosen.sha256 != sha256:
            return json.dumps({"changed": "its scenario is another one now"})
    except InputFault as fault:
        return json.dumps({"changed": str(fault)})
    try:
        summary = Result(simulate(chosen)).summary()
        return json.dumps({"summary": _repeatable(summary)}, allow_nan=False, separators=(",", ":"))
    except InputFault as fault:
        return json.dumps({"fault": str(fault)})
    except Exception:
        return json.dumps({"error": traceback.format_exc()})


def _repeatable(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What of *summary* depends on nothing but the point, and is not known from the sweep."""
    kept = {key: value for key, value in summary.items() if key not in ("kneesim", "scenario")}
    speed = ("wall_s", "requests_per_s")
    kept["simulator"] = {key: x for key, x in summary.get("simulator", {}).items() if key not in speed}
    return kept


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
