"""CSV: a header, then a request a row; commas between the fields."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
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
Lines = np.ndarray


def csv_table(source: Source, faults: LineFaults, reading: Reading) -> Table:
    """The file's header and rows; rows of another width, and second headers, become *faults*."""
    groups = _groups(source)
    lines, rows = next(groups, (np.empty(0, dtype=np.int64), []))
    if not rows:
        raise InputFault(f"{source.path} is empty; a trace needs a header and a line for each request")
    header = tuple(name.strip() for name in rows[0])
    _check_header(header, f"{source.path}:{lines[0]}")
    first = (lines[1:], rows[1:])
    return Table(
        recognise(header, "csv", reading),
        "csv",
        header,
        int(lines[0]),
        _blocks(header, first, groups, faults),
    )


def _blocks(
    header: tuple[str, ...], first: tuple[Lines, Rows], rest: Iterator[tuple[Lines, Rows]], faults: LineFaults
) -> Iterator[Block]:
    yield _block(header, *first, faults)
    for lines, rows in rest:
        yield _block(header, lines, rows, faults)


def _block(header: tuple[str, ...], lines: Lines, rows: Rows, faults: LineFaults) -> Block:
    lines, rows = _whole_rows(header, lines, rows, faults)

    return Block(lines, lambda name: list(map(itemgetter(header.index(name)), rows)))


def _groups(source: Source) -> Iterator[tuple[Lines, Rows]]:
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


def _whole_rows(header: tuple[str, ...], lines: Lines, rows: Rows, faults: LineFaults) -> tuple[Lines, Rows]:
    """The rows with a cell for each column, and a fault for each of the others."""
    width, names = len(header), {*_KNOWN, header[0].lower()} - {""}
    if set(map(len, rows)) <= {width} and names.isdisjoint(map(str.lower, map(itemgetter(0), rows))):
        return lines, rows
    good = [len(row) == width and row[0].lower() not in names for row in rows]
    for line, row, is_good in zip(lines, rows, good, strict=True):
        if not is_good:
            faults.add(line, _fault(row, width, names))
    return lines[good], [row for row, is_good in zip(rows, good, strict=True) if is_good]


def _fault(row: list[str], width: int, names: set[str]) -> str:
    if row[0].strip().lower() in names:
        return "a second header: two traces in one file; split it here"
    if row[0].lstrip()[:1] == "{":
        return "JSON in a CSV file: two formats in one file; split it here"
    hint = "; a number must not have thousands commas (1024, not 1,024)" if len(row) > width else ""
    return f"{len(row)} fields, but the header has {width}{hint}"


_KNOWN = {name.lower() for role in ("arrival", "prompt", "output") for name in NAMES[role]}
