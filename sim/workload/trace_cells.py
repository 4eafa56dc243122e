"""A trace's cells as exact integers: token counts, seconds, dates with a time of day.

Each reader takes the cells of one column and gives int64 values and the faults by row, as sentences that
follow the column's name. A cell at fault has the value 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np

Cells = Sequence[str]
CellFaults = dict[int, str]

MOST_TOKENS = 10**9
MOST_SECONDS = 9 * 10**9
"""What fits int64 nanoseconds; seconds since 1970 do, milliseconds since 1970 do not."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?", re.ASCII)
_DATE_TIME = re.compile(
    r"((?:19|20|21)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(Z|[+-]\d\d:?\d\d)?\s*", re.ASCII
)


def looks_numeric(cell: str) -> bool:
    """Whether *cell* is a plain decimal number."""
    return bool(_NUMBER.fullmatch(cell.strip()))


def token_counts(cells: Cells, least: int = 0) -> tuple[np.ndarray, CellFaults]:
    """Whole numbers of tokens, at least *least*."""
    plain = all(map(str.isdecimal, cells)) and "".join(cells).isascii()
    if plain and max(map(len, cells), default=0) <= 9:
        tokens = np.array(list(map(int, cells)), dtype=np.int64)
        if tokens.min(initial=least) >= least:
            return tokens, {}
    return _each(cells, lambda cell: _tokens(cell, least))


def seconds(cells: Cells) -> tuple[np.ndarray, CellFaults]:
    """Seconds as a decimal number, in nanoseconds; rounded only beyond the ninth decimal."""
    return _each(cells, _nanoseconds)


def milliseconds(cells: Cells) -> tuple[np.ndarray, CellFaults]:
    """Milliseconds as a decimal number, in nanoseconds; rounded only beyond the sixth decimal."""
    if all(map(str.isdecimal, cells)) and max(map(len, cells), default=0) <= 12:
        return np.array(list(map(int, cells)), dtype=np.int64) * 10**6, {}
    return _each(cells, lambda cell: _nanoseconds(cell, digits=6))


def date_times(cells: Cells) -> tuple[np.ndarray, CellFaults]:
    """Dates with a time of day, exact nanoseconds since 1970 (in the file's own time zone).

    `datetime` keeps microseconds, and a float of seconds since 1970 keeps 2e-7 s: both would move or merge
    requests that are 100 ns apart. The zone must be one throughout, since only differences are used.
    """
    if cells and looks_numeric(cells[0]):
        return np.ones(len(cells), dtype=np.int64), {
            0: f"is a number of unknown unit (got {cells[0]}); write seconds and name the column arrival_s"
        }
    matches = [_DATE_TIME.fullmatch(cell) for cell in cells]
    try:
        if None not in matches and len({match[2] for match in matches if match}) == 1:
            times = np.array([match[1] for match in matches if match], dtype="datetime64[ns]")
            return times.astype(np.int64), {}
    except ValueError:
        pass  # some cell is no date of the calendar; the slow way finds which
    zone = next((_zone(match[2]) for match in matches if match), "")
    return _each(cells, lambda cell: _date_time(cell, zone))


def _each(cells: Cells, read: Callable[[str], int]) -> tuple[np.ndarray, CellFaults]:
    """*read* of each cell; its ValueError is the cell's fault."""
    values, faults = [], {}
    for row, cell in enumerate(cells):
        try:
            values.append(read(cell))
        except ValueError as fault:
            values.append(1)
            faults[row] = str(fault)
    return np.array(values, dtype=np.int64), faults


def _number(cell: str) -> Decimal:
    text = cell.strip()
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    if _THOUSANDS.fullmatch(text):
        raise ValueError(f'is written with thousands commas; write {text.replace(",", "")}, not "{text}"')
    raise ValueError(f"must be a number (got {text!r})" if text else "is empty")


def _tokens(cell: str, least: int) -> int:
    number = _number(cell)
    if not least <= number <= MOST_TOKENS:
        raise ValueError(f"must be at least {least} and at most 1e9 (got {cell.strip()})")
    if number != int(number):
        raise ValueError(f"must be a whole number of tokens (got {cell.strip()})")
    return int(number)


def _nanoseconds(cell: str, digits: int = 9) -> int:
    """Of a number of units of 10^*digits* nanoseconds."""
    number = _number(cell)
    if number < 0:
        raise ValueError(f"must not be negative (got {cell.strip()})")
    if number.scaleb(digits - 9) > MOST_SECONDS:
        unit, finer = ("seconds", "milliseconds") if digits == 9 else ("milliseconds", "microseconds")
        raise ValueError(f"is too large for {unit} (got {cell.strip()}); is it in {finer}?")
    return int(number.scaleb(digits).to_integral_value())


def _date_time(cell: str, zone: str) -> int:
    match = _DATE_TIME.fullmatch(cell)
    if match is None:
        form = "2023-11-16 18:17:03.9799600"
        raise ValueError(f"must be a date and time such as {form} (got {cell.strip()!r})")
    if _zone(match[2]) != zone:
        came, first = (name or "none" for name in (_zone(match[2]), zone))
        raise ValueError(f"must have one time zone throughout (got {came}, the first request has {first})")
    try:
        return int(np.datetime64(match[1], "ns").astype(np.int64))
    except ValueError:
        raise ValueError(f"is no date of the calendar (got {cell.strip()})") from None


def _zone(suffix: str | None) -> str:
    """A time zone's *suffix* in one spelling; empty when there is none."""
    return "+0000" if suffix == "Z" else (suffix or "").replace(":", "")
