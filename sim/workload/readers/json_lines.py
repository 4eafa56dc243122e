"""JSON: an object a line for each request, or one object with the requests of a whole file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from sim.faults import InputFault
from sim.workload.readers.blocks import Block, Table
from sim.workload.readers.cells import cell_of
from sim.workload.readers.faults import LineFaults
from sim.workload.readers.formats import recognise
from sim.workload.readers.reading import Reading
from sim.workload.readers.source import Source, text_lines

_BLOCK_RECORDS = 1 << 13  # records are objects until they are columns, and ids of blocks come by hundreds

Record = dict[str, Any]
Placed = tuple[int, Record]
_decode: Callable[[str], Any] = json.JSONDecoder(parse_float=Decimal, parse_constant=str).decode


def json_table(source: Source, faults: LineFaults, reading: Reading) -> Table:
    """The file's records as rows; lines that are no objects become *faults*. The header has the keys of the
    first block of records."""
    if source.head().lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        hint = "write each of its objects on a line of its own, as `jq -c '.[]'` does"
        raise InputFault(f"{source.path}:1: the file is a JSON array; {hint}")
    records = _records(source, faults)
    first = list(islice(records, _BLOCK_RECORDS))
    if not first:
        faults.raise_any()
        raise InputFault(f"{source.path} is empty; a trace needs a line for each request")
    header = tuple(dict.fromkeys(chain.from_iterable(record for _, record in first)))
    form = recognise(header, "json", reading)
    if form.flatten is None and "requests" in header:
        raise InputFault(
            f"{source.path}:{first[0][0]}: a line holds a whole session (its key requests); write a line for "
            "each request, with timestamp in milliseconds, input_length, output_length and hash_ids, and set "
            "prefixes.block_tokens"
        )
    placed: Iterator[Placed] = chain(first, records)
    if form.flatten is not None:
        placed = _flat(form.flatten, placed)
        first = list(islice(placed, _BLOCK_RECORDS))
        header = tuple(dict.fromkeys(chain.from_iterable(record for _, record in first)))
        placed = chain(first, placed)
    return Table(form, "json", header, first[0][0] if first else 1, _blocks(placed))


def _flat(flatten: Callable[[Record], Iterable[Any]], placed: Iterator[Placed]) -> Iterator[Placed]:
    for line, record in placed:
        for part in flatten(record):
            yield line, part


def _blocks(placed: Iterator[Placed]) -> Iterator[Block]:
    while some := list(islice(placed, _BLOCK_RECORDS)):
        yield _block([line for line, _ in some], [record for _, record in some])


def _block(lines: list[int], records: list[Record]) -> Block:
    return Block(lines, lambda name: [cell_of(record.get(name)) for record in records])


def _records(source: Source, faults: LineFaults) -> Iterator[Placed]:
    """The objects and the line of each."""
    for line, row in enumerate(text_lines(source), start=1):
        if row.isspace() or not row:
            continue
        try:
            record = _decode(row)
        except (ValueError, RecursionError) as error:
            if line == 1 and (whole := _document(source)) is not None:
                yield 1, whole
                return
            faults.add(line, f"is not JSON ({error})")
            continue
        if isinstance(record, dict):
            yield line, record
        else:
            faults.add(line, "must be a JSON object with the keys of a request")


def _document(source: Source) -> Record | None:
    """The one object that a file of more lines is; None where it is none."""
    if not source.name.endswith(".json"):
        return None
    try:
        whole = _decode("".join(text_lines(source)))
    except (ValueError, RecursionError):
        return None
    return whole if isinstance(whole, dict) else None
