"""An event without the price of a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simpy import Event


class Alarm(Event):
    """An event that is triggered from the start and only waits for its time; it can be set again."""

    _ok = True
    _value = None

    def __init__(self, calls: list[Callable[[Event], Any]]) -> None:
        self.calls = calls  # the callbacks, whenever it is set
        self.callbacks = None  # type: ignore[assignment]  # SimPy's own mark of an event that has rung
