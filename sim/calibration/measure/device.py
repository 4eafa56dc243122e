"""What a measuring session asks of a device, whatever that is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sim.calibration.measure.points import Point


class OutOfMemory(Exception):
    """The device has no room for a point; the text says how much was wanted, if that is known."""


class CannotRun(Exception):
    """The device, or a library on it, has no kernel for a point; the text says why."""


@dataclass(frozen=True)
class Timing:
    """The median time of one call (s), the repeats' interquartile range over it, and whose kernel it was."""

    time_s: float
    spread: float
    backend: str


class Device(Protocol):
    """A device that kernels can be timed on."""

    gpu: str
    """Its own name, as the driver gives it."""

    n_gpus: int
    """How many there are to all-reduce over."""

    def clock_s(self) -> float:
        """Seconds on a clock that never goes back."""

    def describe(self) -> dict[str, Any]:
        """Its name, memory, driver and libraries, for the conditions beside the table."""

    def conditions(self) -> dict[str, Any]:
        """Clocks, power and temperature now; what cannot be read is not in it."""

    def backend(self, point: Point) -> str:
        """Whose kernel runs *point*. Raises `CannotRun` where it is known that there is none."""

    def measure(self, point: Point, limit_s: float) -> Timing:
        """Time *point* for about *limit_s* seconds. Raises `OutOfMemory` or `CannotRun`."""

    def rest(self, seconds: float) -> None:
        """Do nothing for *seconds*."""

    def sustain(self, point: Point, seconds: float) -> list[dict[str, Any]]:
        """Run *point* without a pause for *seconds*: `at_s`, `time_us` of a call then, and conditions."""

    def close(self) -> None:
        """Give back what was taken."""
