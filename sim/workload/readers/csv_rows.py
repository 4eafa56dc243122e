"""CSV: a header, then a request a row; commas between the fields."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain, islice
from operator import itemgetter

import numpy as np

from sim.faults import InputFault
from sim.workload.readers.blocks import BLOCK_ROWS, Block, Table
from sim.workload.readers.cells import looks_numeric
from sim.workload.readers.faults import LineFaults
from sim.workload.readers.formats import NAMES, recognise
from sim.workload.readers.reading import Reading
from sim.workload.readers.source import Source, text_lines

Rows = list[list[str]]
Group = tuple[np.ndarray, Rows]


def csv_table(source: Source, faults: LineFaults, reading: Reading) -> Table:
    """The file's header and rows; rows of another width, and second headers, become *faults*."""
    groups = _groups(source)
    lines, rows = next(groups, (np.empty(0, dtype=np.int64), []))
    if not rows:
        raise InputFault(f"{source.path} is empty; a trace needs a header and a line for each request")
    header = tuple(name.strip() for name in rows[0])
    _check_header(header, f"{source.path}:{lines[0]}")
    form = recognise(header, "csv", reading)
    rest = chain([(lines[1:], rows[1:])], groups)
    return Table(form, "csv", header, int(lines[0]), _blocks(header, rest, faults))


def _blocks(header: tuple[str, ...], groups: Iterator[Group], faults: LineFaults) -> Iterator[Block]:
    """The rows of *groups*, up to where another file begins."""
    names = {*_KNOWN, header[0].lower()} - {""}
    for lines, rows in groups:
        ours = _until_another(names, lines, rows, faults)
        yield _block(header, lines[:ours], rows[:ours], faults)
        if ours < len(rows):
            return


def _block(header: tuple[str, ...], lines: np.ndarray, rows: Rows, faults: LineFaults) -> Block:
    width = len(header)
    if set(map(len, rows)) - {width}:
        faults.extend(
            (lines[at], _width_fault(row, width)) for at, row in enumerate(rows) if len(row) != width
        )
        lines = lines[[len(row) == width for row in rows]]
        rows = [row for row in rows if len(row) == width]
    return Block(lines, lambda name: list(map(itemgetter(header.index(name)), rows)))


def _width_fault(row: list[str], width: int) -> str:
    hint = "; a number must not have thousands commas (1024, not 1,024)" if len(row) > width else ""
    return f"{len(row)} fields, but the header has {width}{hint}"


def _until_another(names: set[str], lines: np.ndarray, rows: Rows, faults: LineFaults) -> int:
    """How many of the rows come before a second header, or before JSON, which becomes one of *faults*."""
    firsts = list(map(itemgetter(0), rows))
    if names.isdisjoint(map(str.lower, firsts)) and "{" not in "".join(firsts):
        return len(rows)
    for at, first in enumerate(firsts):
        if first.strip().lower() in names:
            faults.add(lines[at], "a second header: two traces in one file; split it here")
            return at
        if first.lstrip()[:1] == "{":
            faults.add(lines[at], "JSON in a CSV file: two formats in one file; split it here")
            return at
    return len(rows)


def _groups(source: Source) -> Iterator[Group]:
    """The rows that are not blank, the header first, and the line on which each begins."""
    reader = csv.reader(text_lines(source), skipinitialspace=True)
    line = 1
    while True:
        try:
            rows = list(islice(reader, BLOCK_ROWS))
        except csv.Error as error:
            place = f"{source.path}:{reader.line_num}"
            raise InputFault(f"{place}: the line cannot be split into fields ({error})") from None
        if not rows:
            return
        lines = np.arange(line, line + len(rows))
        if reader.line_num + 1 != line + len(rows):  # line ends within quotes
            lines[1:] += np.cumsum([sum(cell.count("\n") for cell in row) for row in rows[:-1]])
        line = reader.line_num + 1
        if not all(map(any, rows)):
            lines = lines[list(map(any, rows))]
            rows = list(filter(any, rows))
        if rows:
            yield lines, rows


def _check_header(header: tuple[str, ...], place: str) -> None:
    for name, sign in (("semicolons", ";"), ("tabs", "\t")):
        if len(header) == 1 and sign in header[0]:
            raise InputFault(
                f"{place}: the fields are separated by {name}; "
                f"separate them by commas and write decimals with a point"
            )
    if header[0][:1] in ("{", "["):
        raise InputFault(f"{place}: the file holds JSON; call it .jsonl and write one object a line")
    if all(map(looks_numeric, header[1:] or header)):
        raise InputFault(f"{place}: the first line must name the columns (got {','.join(header)})")


_KNOWN = {name.lower() for role in ("arrival", "prompt", "output") for name in NAMES[role]}
