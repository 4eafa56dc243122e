"""A trace's file, from its bytes to columns in order of arrival; its text is never in memory as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from sim.faults import InputFault
from sim.files import is_log_name
from sim.workload.chains import Chains
from sim.workload.readers.blocks import Table
from sim.workload.readers.columns import ARRAYS, Columns, Typed
from sim.workload.readers.csv_rows import csv_table
from sim.workload.readers.faults import LineFaults
from sim.workload.readers.formats import Format
from sim.workload.readers.json_lines import json_table
from sim.workload.readers.logs import log_table
from sim.workload.readers.order import in_order
from sim.workload.readers.parquet import parquet_table
from sim.workload.readers.reading import Reading
from sim.workload.readers.source import Source, refuse_binary

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, eq=False)
class Recorded:
    """What a file has: its format, its header, the requests in order of arrival, the names of its classes,
    the ids of the prompts' blocks, and counts of what was changed."""

    form: Format
    header: tuple[str, ...]
    columns: Columns
    class_names: tuple[str, ...]
    chains: Chains | None
    notes: dict[str, int]


def read_source(source: Source, reading: Reading) -> Recorded:
    """The requests of a file. Raises InputFault with all that is wrong with it."""
    faults = LineFaults(source.path)
    notes: dict[str, int] = {}
    table = _table(source, reading, faults, notes)
    typed = Typed(table, reading, faults, notes, f"{source.path}:{table.line}")
    columns = _together([typed(block) for block in table.blocks])
    faults.raise_any()
    if len(columns.lines) == 0:
        raise InputFault(f"{source.path} {_nothing(notes)}")
    if typed.elsewhere:
        notes["times_of_another_zone"] = typed.elsewhere
    if columns.arrival_ns is not None:
        columns = in_order(columns, source.path, typed.local, notes)
    chains = None
    if columns.ids is not None and any(map(len, columns.ids)):
        chains = Chains.of(columns.ids, columns.lines.tolist(), table.form.block_tokens)
    return Recorded(table.form, table.header, columns, tuple(typed.classes.numbers), chains, notes)


def _table(source: Source, reading: Reading, faults: LineFaults, notes: dict[str, int]) -> Table:
    head = source.head()
    if head[:4] == b"PAR1":
        return parquet_table(source, reading)
    refuse_binary(source, head)
    has_objects = head.lstrip(b"\xef\xbb\xbf \r\n")[:1] == b"{"
    is_log = is_log_name(source.name) and not has_objects
    if is_log or reading.pattern is not None or reading.format == "common-log":
        return log_table(source, reading, notes)
    if has_objects or source.name.endswith(JSON_SUFFIXES):
        return json_table(source, faults, reading)
    return csv_table(source, faults, reading)


def _nothing(notes: dict[str, int]) -> str:
    if "failed_dropped" in notes:
        return "has requests that failed alone; trace.failed: keep reads them"
    if "zero_output_dropped" in notes:
        return ": every request has zero output tokens; there is nothing to serve"
    return "has a header and no requests"


def _together(parts: list[Columns]) -> Columns:
    """*parts* one after the other; the list is emptied, so that no column is there twice for long."""
    of_parts = {name: [getattr(part, name) for part in parts] for name in ARRAYS}
    ids = None if parts[0].ids is None else list(chain.from_iterable(part.ids or [] for part in parts))
    parts.clear()
    arrays: dict[str, Any] = {}
    for name in ARRAYS:
        pieces = of_parts.pop(name)
        arrays[name] = None if pieces[0] is None else np.concatenate(pieces)
    return Columns(**arrays, ids=ids)
