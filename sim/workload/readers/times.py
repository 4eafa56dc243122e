"""A trace's times as exact nanoseconds: numbers of a known unit, and dates with a time of day."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sim.workload.readers.cells import (
    CellReader,
    Cells,
    Values,
    all_digits,
    each,
    looks_numeric,
    number,
    texts,
)

DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""A unit of time is 10^this nanoseconds."""
UNITS = (*DIGITS, "iso")

MOST_SECONDS = 9 * 10**9
"""What fits int64 nanoseconds; seconds since 1970 do, milliseconds since 1970 do not."""
_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_EXACT_SECONDS = 2e6  # below, a double keeps nine decimals
_FORM = "2023-11-16 18:17:03.9799600"

SAY_UNIT = "write seconds and name the column arrival_s, or say trace.time_unit"

_DATE_TIME = re.compile(
    r"\s*((?:19|20|21)\d\d-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z| ?UTC|[+-]\d\d:?\d\d)?\s*",
    re.ASCII,
)
_LOG_DATE = re.compile(
    r"\[?(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d:\d\d:\d\d)(?:\.(\d{1,9}))? ?([+-]\d{4})?\]?", re.ASCII
)
_MONTHS = dict(
    zip(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"],
        range(1, 13),
        strict=True,
    )
)


def clock(unit: str, many_zones: bool) -> CellReader:
    """The reader of times in *unit*, in nanoseconds since its zero or since 1970. One file has one: it
    remembers the time zone."""
    return DateTimes(many_zones) if unit == "iso" else lambda cells: scaled(cells, unit)


def scaled(cells: Cells, unit: str) -> Values:
    """Numbers of *unit*, none negative, in nanoseconds; rounded only beyond the last of them."""
    digits = DIGITS[unit]
    if isinstance(cells, np.ndarray):
        if cells.min(initial=0) >= 0 and cells.max(initial=0) <= MOST_SECONDS * 10 ** (9 - digits):
            return cells.astype(np.int64) * 10**digits, {}
    elif all_digits(cells, most=18 - digits):
        return np.array(list(map(int, cells)), dtype=np.int64) * 10**digits, {}
    elif (times_ns := _decimals(cells, digits)) is not None:
        return times_ns, {}
    return each(texts(cells), lambda cell: _nanoseconds(cell, unit))


def _decimals(cells: Cells, digits: int) -> np.ndarray | None:
    """Plain decimals so short that doubles are exact; None where some cell is none."""
    plain = not "".join(cells).translate(_PLAIN)
    if not plain or min(map(len, cells), default=0) == 0 or max(map(len, cells), default=0) > 16:
        return None
    try:
        numbers = np.array(list(map(float, cells)))
    except ValueError:
        return None
    within = numbers.max(initial=0) * 10.0 ** (digits - 9) < _EXACT_SECONDS
    return np.rint(numbers * 10.0**digits).astype(np.int64) if within else None


_PLAIN = str.maketrans("", "", "0123456789.")


def _nanoseconds(cell: str, unit: str) -> int:
    digits = DIGITS[unit]
    count = number(cell)
    if count < 0:
        raise ValueError(f"must not be negative (got {cell.strip()})")
    if count.scaleb(digits - 9) > MOST_SECONDS:
        finer = dict(zip(_WORDS, list(_WORDS.values())[1:], strict=False)).get(unit)
        is_it = f"; is it in {finer}?" if finer else ""
        raise ValueError(f"is too large for {_WORDS[unit]} (got {cell.strip()}){is_it}")
    return int(count.scaleb(digits).to_integral_value())


@dataclass
class DateTimes:
    """Dates with a time of day, in exact nanoseconds since 1970 (UTC where they have a zone).

    `datetime` keeps microseconds, and a float of seconds since 1970 keeps 2e-7 s: both would move or merge
    requests that are 100 ns apart. Dates without a zone do not go with others. Those of several zones do with
    *many_zones*: a log's change with summer time; a table that has several was put together of several.
    """

    many_zones: bool = False
    first: str | None = None
    """The zone of the file's first date; empty where it has none."""
    elsewhere: int = 0
    """Dates of another zone than the first."""
    _offsets: dict[str, int] = field(default_factory=dict)

    def __call__(self, cells: Cells) -> Values:
        if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
            return cells.astype("datetime64[ns]").astype(np.int64), {}
        cells = texts(cells)
        if cells and looks_numeric(cells[0]):
            return np.ones(len(cells), dtype=np.int64), {
                0: f"is a number of unknown unit (got {cells[0]}); {SAY_UNIT}"
            }
        if (times := self._alike(cells)) is not None:
            return times, {}
        parts = [_parts(cell) for cell in cells]
        if self.first is None:
            self.first = next((zone for _, zone in filter(None, parts)), None)
        try:
            return self._instants(parts), {}
        except ValueError:  # some cell is no date, or of the wrong kind: the slow way finds which
            return each(cells, self._one)

    def _alike(self, cells: Sequence[str]) -> np.ndarray | None:
        """The times of cells that are all written like the first, in its zone; None where some are not."""
        match = _DATE_TIME.fullmatch(cells[0]) if cells else None
        if match is None or match[0].strip() != match[0] or "," in match[0]:
            return None
        zone, length = _zone(match[4]), len(match[0])
        written = np.array(cells)
        if self.first not in (None, zone) or written.itemsize != 4 * length:
            return None
        digits = length - len(match[4] or "")
        signs = written.view(np.uint32).reshape(len(cells), length)
        same = [at for at in range(length) if at >= digits or not match[0][at].isdecimal()]
        if (signs[:, same] != signs[0, same]).any() or not signs[:, -1].all():
            return None
        try:
            times = written.astype(f"<U{digits}").astype("datetime64[ns]").astype(np.int64)
        except ValueError:
            return None
        self.first = zone
        return times - _offset_ns(zone)

    def _instants(self, parts: list[tuple[str, str] | None]) -> np.ndarray:
        whole = [part for part in parts if part]
        zones = {zone for _, zone in whole}
        if len(whole) < len(parts) or ("" in zones) != (zones == {""}) or (self.first == "") != ("" in zones):
            raise ValueError
        times = np.array([date for date, _ in whole], dtype="datetime64[ns]").astype(np.int64)
        if zones == {self.first}:
            return times - _offset_ns(self.first or "")
        if not self.many_zones:
            raise ValueError
        self.elsewhere += sum(zone != self.first for _, zone in whole)
        return times - np.array([_offset_ns(zone) for _, zone in whole], dtype=np.int64)

    def _one(self, cell: str) -> int:
        part = _parts(cell)
        if part is None:
            raise ValueError(f"must be a date and time such as {_FORM} (got {cell.strip()!r})")
        date, zone = part
        if zone != self.first and not (self.many_zones and zone and self.first):
            came, first = zone or "none", self.first or "none"
            raise ValueError(
                f"must have one time zone throughout (got {came}, the first request has {first})"
            )
        self.elsewhere += zone != self.first
        try:
            return int(np.datetime64(date, "ns").astype(np.int64)) - _offset_ns(zone)
        except ValueError:
            raise ValueError(f"is no date of the calendar (got {cell.strip()})") from None


def _parts(cell: str) -> tuple[str, str] | None:
    """(date and time as ISO 8601 has it, zone as +hhmm or empty) of *cell*; None if it is no date."""
    match = _DATE_TIME.fullmatch(cell)
    if match is not None:
        date, time, fraction, zone = match.groups()
        return f"{date}T{time}.{fraction or 0}", _zone(zone)
    match = _LOG_DATE.fullmatch(cell.strip())
    if match is None or match[2] not in _MONTHS:
        return None
    day, month, year, time, fraction, zone = match.groups()
    return f"{year}-{_MONTHS[month]:02}-{day}T{time}.{fraction or 0}", zone or ""


def looks_dated(cell: object) -> bool:
    """Whether *cell* is a date with a time of day."""
    return _parts(str(cell)) is not None


def _zone(suffix: str | None) -> str:
    """A time zone's *suffix* in one spelling; empty when there is none."""
    return "+0000" if suffix and suffix.strip() in ("Z", "UTC") else (suffix or "").replace(":", "")


@lru_cache(maxsize=64)
def _offset_ns(zone: str) -> int:
    """How far *zone* (+hhmm) is ahead of UTC."""
    if not zone:
        return 0
    minutes = int(zone[1:3]) * 60 + int(zone[3:])
    return (-1 if zone[0] == "-" else 1) * minutes * 60 * 10**9
