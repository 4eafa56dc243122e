"""A session: points in order, until the time is up, each safe on disk as soon as it is measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sim.calibration.measure.device import CannotRun, Device, OutOfMemory, Timing
from sim.calibration.measure.plan import Pace, Queue
from sim.calibration.measure.points import Point, small
from sim.calibration.measure.table_file import TableFile, read_sessions, write_sessions
from sim.faults import InputFault

Progress = Callable[[float, float, str], None]
"""Told: seconds gone, seconds in all, what is measured now."""

_POINT_S = 0.06  # repeats of one point, unless it takes longer than that at the fewest
_LONG_SHARE = 0.02  # of the budget: a point that takes more waits until nothing shorter is left
_SUSTAINED_S, _SUSTAINED_SHARE = 30.0, 1 / 12
_BURSTS, _REST_SHARE, _BURST_SHARE = 3, 1 / 30, 1 / 12  # of the long run: before each burst, and the burst
_SIDES = (8192, 4096, 2048, 1024, 512, 256)
_SAVE_S = 1.0  # between writes: a kill costs no more than that and the point at work
_LOOK_S = 10.0  # between looks at clocks and power


@dataclass
class Record:
    """What a session did and under which conditions, kept beside the table."""

    started: str
    minutes: float
    device: dict[str, Any]
    conditions: list[dict[str, Any]] = field(default_factory=list)
    cannot: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: list[dict[str, str]] = field(default_factory=list)
    sustained: dict[str, Any] | None = None
    measured: int = 0
    left: int = 0
    spread_median: float | None = None

    def refuse(self, points: Sequence[Point], reason: CannotRun) -> None:
        """Count *points*, all of one kind, among those without a kernel."""
        said = " ".join(part for part in points[0].kind if part)
        entry = self.cannot.setdefault(said, {"reason": str(reason), "points": 0})
        entry["points"] += len(points)

    def skip(self, point: Point, reason: str, why: Exception | str) -> None:
        """*point* was tried and left out."""
        self.skipped.append({"point": str(point), "kind": reason, "reason": str(why)})


def run_session(
    device: Device, points: Sequence[Point], out: Path, minutes: float, progress: Progress | None = None
) -> tuple[TableFile, Record]:
    """Measure *points*, first ones first, into the table *out* for *minutes*; go on where one broke off.

    Points that the table has are not measured again. What does not fit in memory, or has no kernel, is left
    out and recorded. A twelfth of the time, at most 30 s, goes to one matrix product run without a pause.
    Raises `InputFault` where *out* cannot be used, or the device is lost; what was measured is on disk then.
    """
    session = _Session(device, out, minutes, progress)
    try:
        session.run(points)
    finally:
        session.save()
    return session.table, session.record


class _Session:
    def __init__(self, device: Device, out: Path, minutes: float, progress: Progress | None) -> None:
        self._device = device
        self._progress = progress
        self._before = read_sessions(out)
        self.table = TableFile(out, device.gpu)
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017
        self.record = Record(now, minutes, device.describe())
        self._budget_s = minutes * 60
        self._start_s = device.clock_s()
        self._looked_s = self._saved_s = float("-inf")
        self._spreads: list[float] = []
        self._pace = Pace()
        self._tried: set[tuple[str | None, ...]] = set()

    def run(self, points: Sequence[Point]) -> None:
        queue = Queue(self._to_do(points), self._pace)
        kept_s = self._kept_for_sustained_s()
        while (point := self._next(queue, self._left_s() - kept_s)) is not None:
            self._look()
            if point.kind in self._tried:
                self._measure(point)
            else:
                self._try_out(point, queue)
            if self._device.clock_s() - self._saved_s > _SAVE_S:
                self.save()
        self.record.left = len(queue)
        if kept_s:
            self._sustain()
        self._look(now=True)

    def save(self) -> None:
        """Table and conditions on disk, whole."""
        self.record.measured = len(self._spreads)
        self.record.spread_median = round(statistics.median(self._spreads), 4) if self._spreads else None
        self.table.write()
        write_sessions(self.table.path, [*self._before, vars(self.record)])
        self._saved_s = self._device.clock_s()

    def _to_do(self, points: Sequence[Point]) -> list[Point]:
        """Points with a kernel that are not in the table, and that did not fail before."""
        failed = {
            skipped["point"]
            for session in self._before
            for skipped in session.get("skipped", [])
            if skipped.get("kind") == "failed"
        }
        found = []
        for point in points:
            try:
                backend = self._device.backend(point)
            except CannotRun as reason:
                self.record.refuse([point], reason)
                continue
            if not self.table.has(point, backend) and str(point) not in failed:
                found.append(point)
        return found

    def _next(self, queue: Queue, left_s: float) -> Point | None:
        short_s = min(left_s, max(1.0, _LONG_SHARE * self._budget_s))
        return queue.next(short_s) or queue.next(left_s)

    def _try_out(self, point: Point, queue: Queue) -> None:
        """Measure a small point like *point* to guess by; where it does not run, its kind is left out."""
        self._tried.add(point.kind)
        try:
            timing = self._device.measure(small(point), 0.0)
        except (CannotRun, OutOfMemory) as reason:
            self.record.refuse([point, *queue.drop(point.kind)], CannotRun(str(reason)))
            return
        except InputFault as gone:
            for lost in (point, *queue.drop(point.kind)):
                self.record.skip(lost, "failed", gone)
            raise
        if timing.time_s > 0:
            self._pace.learn(small(point), timing.time_s)
        queue.put_back(point)

    def _measure(self, point: Point) -> None:
        if self._progress:
            self._progress(self._device.clock_s() - self._start_s, self._budget_s, str(point))
        try:
            timing = self._device.measure(point, _POINT_S)
        except OutOfMemory as reason:
            self.record.skip(point, "memory", reason)
        except CannotRun as reason:
            self.record.skip(point, "failed", reason)
        except InputFault as gone:
            self.record.skip(point, "failed", gone)
            raise
        else:
            self._keep(point, timing)

    def _keep(self, point: Point, timing: Timing) -> None:
        if not timing.time_s > 0:
            self.record.skip(point, "failed", f"its time came out as {timing.time_s} s")
            return
        self._pace.learn(point, timing.time_s)
        self._spreads.append(timing.spread)
        self.table.add(point, timing)

    def _left_s(self) -> float:
        return self._start_s + self._budget_s - self._device.clock_s()

    def _look(self, now: bool = False) -> None:
        at_s = self._device.clock_s() - self._start_s
        if now or at_s - self._looked_s > _LOOK_S:
            self._looked_s = at_s
            seen = self._device.conditions()
            if seen:
                self.record.conditions.append({"at_s": round(at_s, 1), **seen})

    def _sustained_s(self) -> float:
        return min(_SUSTAINED_S, _SUSTAINED_SHARE * self._budget_s)

    def _kept_for_sustained_s(self) -> float:
        """Time for the bursts and the long run; none if the table has one."""
        done = any(session.get("sustained") for session in self._before)
        return 0.0 if done else self._sustained_s() * (1 + _BURSTS * (_REST_SHARE + _BURST_SHARE))

    def _sustain(self) -> None:
        """One large product, after a rest and then for long: what clocks and power do to it."""
        sizes = [Point("gemm", "bf16", m=side, n=side, k=side) for side in _SIDES]
        for point in sizes:
            if self._pace.cost_s(point) > self._sustained_s() * _BURST_SHARE:
                continue
            try:
                self._run_on_and_on(point, self._sustained_s())
            except OutOfMemory:
                continue
            except CannotRun as reason:
                self.record.skip(point, "memory", reason)
            return

    def _run_on_and_on(self, point: Point, seconds: float) -> None:
        bursts = [self._burst(point, seconds * _REST_SHARE) for _ in range(_BURSTS)]
        series = self._device.sustain(point, seconds)
        middle = sorted(bursts, key=lambda timing: timing.time_s)[len(bursts) // 2]
        later = statistics.median(entry["time_us"] for entry in series[len(series) // 2 :])
        self.table.add(replace(point, variant="burst"), middle)
        self.table.add(replace(point, variant="sustained"), replace(middle, time_s=later / 1e6))
        self.record.sustained = {
            "point": str(point),
            "burst_us": middle.time_s * 1e6,
            "sustained_us": later,
            "series": series,
        }

    def _burst(self, point: Point, rest_s: float) -> Timing:
        self._device.rest(rest_s)
        return self._device.measure(point, rest_s)
