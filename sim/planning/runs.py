"""Many runs, on all cores, each kept as soon as it is finished: what sweeps and comparisons are made of."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sim.faults import InputFault
from sim.planning.executors import WorkerLostError, answers, usable_cores
from sim.planning.grid import Point
from sim.planning.journal import Journal
from sim.planning.points_table import load_writers
from sim.planning.search import Progress

if TYPE_CHECKING:
    from sim.scenario import Scenario

Job = tuple["Scenario", dict[str, Any], str | None]
"""A scenario, what a point changes in it, and the sha256 that this must give."""


class Runs:
    """The points that can run: which are finished, and the rest of them.

    *scenarios* are those that the *points* change, in the same order. Points of one key run once.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        points: Sequence[Point],
        journal: Journal | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.points = points
        self.journal = journal
        self.progress = progress
        self._job_of = {
            point.key: (point, (scenario, point.changes, point.scenario_sha256))
            for scenario, point in reversed(list(zip(scenarios, points, strict=True)))
            if point.key
        }
        kept = journal.answers if journal else {}
        self.finished = {key: kept[key] for key in self._job_of if key in kept}
        self.found = len(self.finished)

    @property
    def distinct(self) -> int:
        """How many runs there are to make, those included that were found."""
        return len(self._job_of)

    @property
    def runnable(self) -> int:
        """How many points can run: some may be equal to others."""
        return sum(1 for point in self.points if point.key)

    def finish(self, workers: int | None) -> bool:
        """Run what is not there yet, on so many processes (None: one a core); True if interrupted.

        Raises `InputFault` where a file changed or a process was lost.
        """
        keys = dict.fromkeys(point.key for point in self.points)
        todo = [self._job_of[key] for key in keys if key and key not in self.finished]
        jobs = [job for _, job in todo]
        most = max(1, min(workers or usable_cores(), len(jobs)))
        try:
            with closing(answers(answer_of, jobs, most)) as done:
                for index, text in done:
                    self._keep(todo[index][0], text)
                    if self.journal is not None:
                        load_writers()  # while the workers are busy, not when they have nothing left to do
        except KeyboardInterrupt:
            if self.journal is not None:
                self.finished |= {k: v for k, v in self.journal.written().items() if k in self._job_of}
            return True
        except WorkerLostError as error:
            raise InputFault(self._lost([point for point, _ in todo], most)) from error
        return False

    def done(self) -> list[Point]:
        """All points, each with its summary or its fault, or with neither if it is not finished."""
        return [_finished(point, self.finished) for point in self.points]

    def notes(self) -> tuple[str, ...]:
        """How much was there already."""
        if self.journal is None or not self.found:
            return ()
        return (f"{self.found} of {self.distinct} runs were in {self.journal.path} already",)

    def _keep(self, point: Point, text: str) -> None:
        answer = json.loads(text)
        if "error" in answer:
            raise RuntimeError(f"the point {point.label} failed in the simulator:\n{answer['error']}")
        if "changed" in answer:
            raise InputFault(f"a file changed meanwhile; the point {point.label}: {answer['changed']}")
        if self.journal is not None:
            self.journal.add(point.key, text)
        self.finished[point.key] = answer
        if self.progress is not None:
            self.progress(len(self.finished), self.distinct, point.label)

    def _lost(self, todo: list[Point], workers: int) -> str:
        unfinished = [point.label for point in todo if point.key not in self.finished]
        kept = f"; finished points are kept in {self.journal.path}" if self.journal else ""
        return (
            "a worker process ended abruptly (killed, perhaps for lack of memory: fewer workers need less) "
            f"at one of these points: {'; '.join(unfinished[:workers])}{kept}"
        )


def check_workers(workers: int | None) -> None:
    """Raises `InputFault` where *workers* is no number of processes."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputFault(f"workers must be a whole number >= 1 (got {workers!r})")


def _finished(point: Point, answers_by_key: Mapping[str, Mapping[str, Any]]) -> Point:
    answer = answers_by_key.get(point.key, {})
    return replace(point, summary=answer.get("summary"), fault=answer.get("fault", point.fault))


def answer_of(job: Job) -> str:
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
    """What of *summary* depends on nothing but the point, and is not known from the point."""
    kept = {key: value for key, value in summary.items() if key not in ("kneesim", "scenario")}
    speed = ("wall_s", "requests_per_s")
    kept["simulator"] = {key: x for key, x in summary.get("simulator", {}).items() if key not in speed}
    return kept
