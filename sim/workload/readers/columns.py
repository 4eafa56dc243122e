"""A block's cells as typed columns: exact times, tokens, and what else a trace may tell of a request."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from sim.faults import InputFault, did_you_mean
from sim.workload.readers.blocks import Block, Table
from sim.workload.readers.cells import (
    CellReader,
    Cells,
    Values,
    each,
    looks_numeric,
    number,
    texts,
    token_counts,
    tokens_of_bytes,
    tokens_of_texts,
)  # fmt: skip
from sim.workload.readers.faults import LineFaults
from sim.workload.readers.formats import ARRIVAL_UNITS, NAMES, ROLES, missing, named
from sim.workload.readers.reading import Reading
from sim.workload.readers.times import DIGITS, SAY_UNIT, DateTimes, clock, looks_dated, scaled

_FAILED_WORDS = {"failed", "failure", "fail", "error", "rejected", "timeout", "timed_out"}
_UNITS = {name.lower(): unit for name, unit in ARRIVAL_UNITS.items()}
Ids = Sequence[Sequence[Hashable]]
NO_TIME = -(2**62)
"""In place of the arrival of a request whose delay alone is told."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Requests in the file's order; each array int64 [n]. lines: where each stands.

    arrival_ns: exact, or NO_TIME; None without times. sessions, classes: numbers of the
    names in `Codes`. delay_ns: -1 where none is told. ids: those of each prompt's blocks.
    """

    lines: np.ndarray
    arrival_ns: np.ndarray | None
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    sessions: np.ndarray | None = None
    classes: np.ndarray | None = None
    priorities: np.ndarray | None = None
    delay_ns: np.ndarray | None = None
    ids: Ids | None = None


@dataclass
class Codes:
    """Numbers for names, in the order in which they are met."""

    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, cells: Cells) -> np.ndarray:
        numbers = self.numbers
        return np.array([numbers.setdefault(cell, len(numbers)) for cell in texts(cells)], dtype=np.int64)

    def of_turns(self, turns: Cells, parents: Cells) -> np.ndarray:
        """The number of the conversation in which each turn is: its parent's, where that is known."""
        numbers = self.numbers
        return np.array(
            [
                numbers.setdefault(turn, numbers.get(parent, len(numbers)))
                for turn, parent in zip(texts(turns), texts(parents), strict=True)
            ],
            dtype=np.int64,
        )


def roles_of(table: Table, reading: Reading, place: str) -> dict[str, str]:
    """The column of each role that *table* has. Raises InputFault."""
    faults: list[str] = []
    roles = {}
    for role, column in reading.columns:
        if column in table.header:
            roles[role] = column
        else:
            near = did_you_mean(column, table.header)
            faults.append(f"{place}: there is no column {column} (trace.columns.{role}){near}")
    for role in ROLES:
        if role not in roles and (found := _found(table, role)):
            roles[role] = found[0]
            if len(found) > 1:
                what = f"the {role}" if role in ("arrival", "prompt", "output") else role
                faults.append(f"{place}: more than one column for {what}: {', '.join(found)}; keep one")
    if reading.lengths:
        faults += [
            f"{place}: {sentence}"
            for side in ("prompt", "output")
            if (sentence := _length_fault(side, roles, table, reading))
        ]
    if faults:
        raise InputFault(faults)
    return roles


def _found(table: Table, role: str) -> list[str]:
    if table.kind == "log":
        return [role] if role in table.header else []
    own = [column for name in table.form.names.get(role, ()) for column in named(table.header, [name])]
    return own[:1] or named(table.header, NAMES[role])


def _length_fault(side: str, roles: Mapping[str, str], table: Table, reading: Reading) -> str:
    """What is at fault where the tokens of *side* cannot be told; else nothing."""
    if side in roles:
        return ""
    column = roles.get(f"{side}_bytes") or roles.get(f"{side}_text")
    if column is None:
        names, also = NAMES[side], f"; trace.columns.{side} names another"
        if table.kind == "log":
            names, also = (side,), "; or give `lengths` of another kind (workload fit: --lengths)"
        return missing(f"the {side} tokens", names, table.header) + also
    if reading.bytes_per_token is None:
        return f"{column} has no tokens but bytes; say how many a token has, such as trace.bytes_per_token: 4"
    return ""


class Typed:
    """Turns the blocks of a table into columns; what is wrong becomes *faults*, what is left out *notes*."""

    def __init__(
        self,
        table: Table,
        reading: Reading,
        faults: LineFaults,
        notes: dict[str, int],
        place: str,
    ) -> None:
        self.form, self.reading, self.faults, self.notes = table.form, reading, faults, notes
        self.roles = roles_of(table, reading, place)
        self.place, self.is_log = place, table.kind == "log"
        self.sessions, self.classes = Codes(), Codes()
        self._clock: CellReader | None = None
        self._estimated = [
            side
            for side in ("prompt", "output")
            if reading.bytes_per_token
            and side not in self.roles
            and {f"{side}_bytes", f"{side}_text"} & {*self.roles}
        ]

    def __call__(self, block: Block) -> Columns:
        """The requests of *block*, without those that are left out."""
        prompt, output = self._lengths("prompt", block, 1), self._lengths("output", block, 0)
        columns = Columns(
            np.asarray(block.lines, dtype=np.int64),
            self._arrivals(block),
            prompt,
            output,
            self._sessions(block),
            self.classes(block.column(self.roles["class"])) if "class" in self.roles else None,
            self._read("priority", block, _whole_numbers),
            self._read("delay", block, lambda cells: _delays(cells, self.form.delay_unit)),
            self._ids(block),
        )
        return self._kept(columns, block)

    def _read(self, role: str, block: Block, reader: CellReader) -> np.ndarray | None:
        if (column := self.roles.get(role)) is None:
            return None
        values, in_cells = reader(block.column(column))
        self.faults.extend((block.lines[row], f"{column} {sentence}") for row, sentence in in_cells.items())
        return values

    def _lengths(self, side: str, block: Block, least: int) -> np.ndarray:
        per = self.reading.bytes_per_token or 0.0
        for role, reader in (
            (side, lambda cells: token_counts(cells, least)),
            (f"{side}_bytes", lambda cells: tokens_of_bytes(cells, per)),
            (f"{side}_text", lambda cells: tokens_of_texts(cells, per)),
        ):  # fmt: skip
            if role in self.roles and (role == side or per):
                values = self._read(role, block, reader)
                assert values is not None
                return values
        return np.ones(len(block.lines), dtype=np.int64)

    def _arrivals(self, block: Block) -> np.ndarray | None:
        if (column := self.roles.get("arrival")) is None:
            return None
        cells = block.column(column)
        if self._clock is None and len(cells):
            self._clock = clock(self._unit(column, cells), many_zones=self.is_log)
        told = (
            np.array([cell != "" for cell in cells])
            if "delay" in self.roles
            else np.ones(len(cells), dtype=bool)
        )
        some = cells if told.all() else [cell for cell, is_told in zip(cells, told, strict=True) if is_told]
        arrival_ns = np.full(len(cells), NO_TIME)
        arrival_ns[told], in_cells = self._clock(some) if self._clock else (np.empty(0, dtype=np.int64), {})
        rows = np.flatnonzero(told)
        self.faults.extend((block.lines[rows[row]], f"{column} {said}") for row, said in in_cells.items())
        took = self._read(
            "duration", block, lambda cells: scaled([cell or "0" for cell in texts(cells)], "s")
        )
        return arrival_ns if took is None else np.where(told, arrival_ns - took, NO_TIME)

    def _unit(self, column: str, cells: Cells) -> str:
        """The unit of the arrivals. Raises InputFault where nothing tells it."""
        mapped = dict(self.reading.columns).get("arrival")
        by_name = None if mapped else _UNITS.get(column.lower())
        first = next((cell for cell in cells if str(cell).strip()), "")
        dated = looks_dated(first) or (isinstance(cells, np.ndarray) and cells.dtype.kind == "M")
        unit = self.reading.time_unit or by_name or ("iso" if dated else None if mapped else self.form.unit)
        if unit is None and looks_numeric(first):
            raise InputFault(
                f"{self.place}: {column} is a number of unknown unit (got {first}); {_units(cells)}"
            )
        return unit or "iso"

    def _sessions(self, block: Block) -> np.ndarray | None:
        if (column := self.roles.get("session")) is None:
            return None
        cells = block.column(column)
        if (parent := self.roles.get("parent")) is None:
            return self.sessions(cells)
        return self.sessions.of_turns(cells, block.column(parent))

    def _ids(self, block: Block) -> Ids | None:
        if (column := self.roles.get("hash_ids")) is None:
            return None
        ids: list[Sequence[Hashable]] = []
        for line, cell in zip(block.lines, block.column(column), strict=True):
            own = _listed(cell)
            if own is None:
                self.faults.add(line, f"{column} must be a list of whole numbers or texts")
            ids.append(own or [])
        return ids

    def _kept(self, columns: Columns, block: Block) -> Columns:
        """*columns* without requests that failed or have no answer, which are counted."""
        keep = np.ones(len(columns.lines), dtype=bool)
        if (column := self.roles.get("status")) is not None and self.reading.failed == "drop":
            keep = ~np.array([_has_failed(cell) for cell in texts(block.column(column))], dtype=bool)
            self._note("failed_dropped", int(np.count_nonzero(~keep)))
        empty = keep & (columns.output_tokens == 0)
        if self.reading.zero_output == "error":
            sentence = "has no output token; zero_output: drop leaves such requests out"
            self.faults.extend((line, sentence) for line in columns.lines[empty].tolist())
        self._note("zero_output_dropped", int(np.count_nonzero(empty)))
        keep &= ~empty
        self._note("tokens_estimated_from_bytes", len(self._estimated) * int(np.count_nonzero(keep)))
        return columns if keep.all() else take(columns, np.flatnonzero(keep))

    def _note(self, name: str, count: int) -> None:
        if count:
            self.notes[name] = self.notes.get(name, 0) + count

    @property
    def elsewhere(self) -> int:
        """How many times have another zone than the first."""
        return self._clock.elsewhere if isinstance(self._clock, DateTimes) else 0

    @property
    def local(self) -> bool:
        """Whether the times are dates without a zone."""
        return isinstance(self._clock, DateTimes) and self._clock.first == ""


ARRAYS = tuple(column.name for column in fields(Columns) if column.name != "ids")


def take(columns: Columns, rows: np.ndarray) -> Columns:
    """The requests *rows*, in that order."""
    arrays = {name: getattr(columns, name) for name in ARRAYS}
    taken: dict[str, Any] = {name: None if array is None else array[rows] for name, array in arrays.items()}
    ids = columns.ids
    return Columns(**taken, ids=None if ids is None else [ids[row] for row in rows.tolist()])


def _units(cells: Cells) -> str:
    """What the units would mean for the mean rate, to choose from."""
    numbers = [float(cell) for cell in cells if looks_numeric(cell)]
    span = max(numbers) - min(numbers)
    rates = [
        f"{unit} ({(len(numbers) - 1) * 10.0 ** (9 - digits) / span:.3g} requests/s)" if span else unit
        for unit, digits in DIGITS.items()
    ]
    return f"{SAY_UNIT}: {', '.join(rates)}"


def _whole_numbers(cells: Cells) -> Values:
    def read(cell: str) -> int:
        value = number(cell)
        if value != int(value) or abs(value) > 10**9:
            raise ValueError(f"must be a whole number (got {cell.strip()})")
        return int(value)

    return each(texts(cells), read)


def _delays(cells: Cells, unit: str) -> Values:
    """Delays in nanoseconds; -1 where there is none."""
    told = texts(cells)
    values, faults = scaled([cell or "0" for cell in told], unit)
    return np.where([cell != "" for cell in told], values, -1), faults


def _has_failed(status: str) -> bool:
    text = status.strip().lower()
    return int(text) >= 400 if text.isdecimal() else text in _FAILED_WORDS


def _listed(cell: object) -> Sequence[Hashable] | None:
    """The ids in *cell*, a list or one written as JSON; None if it is none."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell) if cell.strip() else []
        except (ValueError, RecursionError):
            return None
    return cell if isinstance(cell, list) and set(map(type, cell)) <= {int, str} else None
