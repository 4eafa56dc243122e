"""Typed reading of one mapping: every value that cannot be used becomes a sentence of one fault."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sim.faults import InputFault, did_you_mean


class Fields:
    """Reads typed values out of *mapping* and collects a fault's sentence for each that is missing or wrong.

    *place* opens each sentence ("hardware profile a100-80gb-sxm"). A reader that meets a fault returns a
    harmless stand-in, so that reading goes on; `close` raises what was collected. Sections share the
    collection of the reader they came from.
    """

    def __init__(self, mapping: Mapping[str, Any], place: str, path: str = "") -> None:
        self._mapping = {str(key): value for key, value in mapping.items()}  # YAML's keys may be numbers
        self._place = place
        self._path = path
        self._asked: set[str] = set()
        self._faults: list[str] = []

    def fault(self, key: str, sentence: str) -> None:
        """Collect one sentence about *key*."""
        self._faults.append(f"{self._place}: {self._path}{key} {sentence}")

    def has(self, key: str) -> bool:
        """Whether *key* is there and not null; asking makes the key a known one."""
        self._asked.add(key)
        return self._mapping.get(key) is not None

    def _required(self, key: str, what: str) -> Any:
        if self.has(key):
            return self._mapping[key]
        self.fault(key, f"is missing; it must be {what}")
        return None

    def number(self, key: str, *, at_least: float | None = None, at_most: float = math.inf) -> float:
        """A finite number, above zero unless *at_least* says otherwise."""
        bounds = "above 0" if at_least is None else f"at least {at_least:g}"
        bounds += "" if at_most == math.inf else f" and at most {at_most:g}"
        value = self._required(key, f"a number {bounds}")
        if value is None:
            return 1.0
        if _is_number(value) and (value > 0 if at_least is None else value >= at_least) and value <= at_most:
            return float(value)
        self.fault(key, f"must be a number {bounds} (got {value!r})")
        return 1.0

    def integer(self, key: str) -> int:
        """A whole number above zero."""
        value = self._required(key, "a whole number above 0")
        if value is None:
            return 1
        if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value) > 0:
            return int(value)
        self.fault(key, f"must be a whole number above 0 (got {value!r})")
        return 1

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self._required(key, "a text")
        if value is None or (isinstance(value, str) and value):
            return value or ""
        self.fault(key, f"must be a text (got {value!r})")
        return ""

    def choice(self, key: str, possible: Iterable[str]) -> str:
        """One of *possible*."""
        names = tuple(possible)
        value = self._required(key, f"one of {', '.join(names)}")
        if value is None or value in names:
            return value or names[0]
        self.fault(key, f"must be one of {', '.join(names)} (got {value!r})")
        return names[0]

    def boolean(self, key: str) -> bool:
        """True or false; absent is false."""
        if not self.has(key):
            return False
        value = self._mapping[key]
        if not isinstance(value, bool):
            self.fault(key, f"must be true or false (got {value!r})")
        return value is True

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts; absent is empty."""
        if not self.has(key):
            return ()
        value = self._mapping[key]
        if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
            return tuple(value)
        self.fault(key, f"must be a list of names (got {value!r})")
        return ()

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers, not empty."""
        value = self._required(key, "a list of numbers")
        if value is None:
            return (1.0,)
        if isinstance(value, list | tuple) and value and all(map(_is_number, value)):
            return tuple(float(number) for number in value)
        self.fault(key, f"must be a list of numbers (got {str(value)[:60]})")
        return (1.0,)

    def section(self, key: str) -> Fields:
        """The mapping under *key*, read into the same collection of faults."""
        value = self._required(key, "a section")
        if value is not None and not isinstance(value, Mapping):
            self.fault(key, f"must be a section with keys (got {value!r})")
            value = None
        inner = Fields(value or {}, self._place, f"{self._path}{key}.")
        inner._faults = self._faults if value is not None else []
        return inner

    def names_of_keys(self) -> tuple[str, ...]:
        """The keys as written, for sections whose keys are names; asking makes all of them known."""
        self._asked.update(str(key) for key in self._mapping)
        return tuple(str(key) for key in self._mapping)

    def end(self) -> None:
        """Collect a sentence for each key nobody asked for."""
        for key in self._mapping:
            if key not in self._asked:
                self.fault(str(key), f"is unknown{did_you_mean(str(key), self._asked)}")

    def close(self) -> None:
        """Raise InputFault with everything collected here and in the sections, if there is anything."""
        self.end()
        if self._faults:
            raise InputFault(self._faults)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
