"""A device that measures by a roofline and a clock of its own: sessions of minutes take no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.calibration.measure.device import CannotRun, OutOfMemory, Timing
from sim.calibration.measure.points import Point, work


class FakeDevice:
    """A card of 1e15 flops/s and 3e12 bytes/s that takes 0.1 s to set a point up.

    `before` is called with each point ahead of its measurement, and may raise what a device raises.
    """

    def __init__(self, gpu: str = "h100-80gb-sxm", memory_bytes: float = 80e9) -> None:
        self.gpu = gpu
        self.n_gpus = 2
        self.now_s = 100.0
        self.measured: list[Point] = []
        self.tried: list[tuple[str | None, ...]] = []
        self.sustained_s: list[float] = []
        self.before: Callable[[Point], None] = lambda point: None
        self.attention = "flashinfer"
        self.without: set[str] = {"int4"}
        self.slow: dict[Point, float] = {}
        self._memory_bytes = memory_bytes

    def clock_s(self) -> float:
        return self.now_s

    def describe(self) -> dict[str, Any]:
        return {"name": "a fake card"}

    def conditions(self) -> dict[str, Any]:
        return {"sm_mhz": 1980.0}

    def backend(self, point: Point) -> str:
        return self.attention if point.op.startswith("attention") else "torch"

    def measure(self, point: Point, limit_s: float) -> Timing:
        if limit_s == 0:
            self.tried.append(point.kind)
        if point.dtype in self.without:
            raise CannotRun(f"no kernel for {point.dtype}")
        if limit_s == 0:
            return Timing(1e-5, 0.0, self.backend(point))
        self.now_s += 0.1
        self.before(point)
        flops, moved = work(point)
        if moved > self._memory_bytes:
            raise OutOfMemory(f"needs {moved:.0f} bytes")
        time_s = self.slow.get(point, 3e-6 + flops / 1e15 + moved / 3e12)
        self.now_s += max(limit_s, 4 * time_s)
        self.measured.append(point)
        return Timing(time_s, 0.01, self.backend(point))

    def rest(self, seconds: float) -> None:
        self.now_s += seconds

    def sustain(self, point: Point, seconds: float) -> list[dict[str, Any]]:
        self.now_s += seconds
        self.sustained_s.append(seconds)
        flops, moved = work(point)
        time_us = (3e-6 + flops / 1e15 + moved / 3e12) * 1e6
        return [{"at_s": seconds * part, "time_us": time_us * (1 + part)} for part in (0.25, 0.5, 0.75, 1)]

    def close(self) -> None:
        pass
