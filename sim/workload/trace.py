"""Recorded traffic: a file of requests (CSV, or JSON lines), read exactly and faulted by line."""

from __future__ import annotations

import csv
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sim.faults import InputFault, did_you_mean
from sim.workload.chains import Chains
from sim.workload.trace_cells import Cells, date_times, looks_numeric, seconds, token_counts
from sim.workload.trace_columns import (
    ARRIVAL_SECONDS,
    OUTPUT,
    PROMPT,
    Columns,
    LineFaults,
    at_lines,
    missing,
    named,
)
from sim.workload.trace_lines import is_lines, read_lines

ARRIVAL_DATES = ("TIMESTAMP",)
KNOWN = ARRIVAL_SECONDS + ARRIVAL_DATES + PROMPT + OUTPUT

Rows = list[list[str]]


@dataclass(frozen=True, eq=False)
class Trace:
    """The requests of a file in order of arrival (rows of one time in the file's order).

    arrival_ns: int64, exact, counted from the first request, never falling; None when the file has no
    times. prompt_tokens, output_tokens: int64, at least 1. columns: the file's header. notes: counts of
    what was changed: `zero_output_dropped`, `trace_rows_sorted` (rows that came after a later one).
    chains: the ids of the prompts' blocks; None when the file has none.
    """

    path: str
    columns: tuple[str, ...]
    arrival_ns: np.ndarray | None
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    notes: Mapping[str, int]
    chains: Chains | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def require_times(self) -> np.ndarray:
        """`arrival_ns`; a fault when the file has no column of times."""
        if self.arrival_ns is None:
            names = ARRIVAL_SECONDS + ARRIVAL_DATES
            raise InputFault(f"{self.path}:1: {missing('the arrival times', names, self.columns)}")
        return self.arrival_ns


def read_trace(path: str | Path, zero_output: str = "drop") -> Trace:
    """Read a trace from a file in UTF-8 (a byte order mark, CRLF and gzip are fine): .jsonl holds JSON lines
    (see `trace_lines`), anything else CSV.

    Columns, in any order and case, others ignored: the arrival as TIMESTAMP (date and time, to 1 ns) or
    arrival_s (seconds); the prompt as ContextTokens or prompt_tokens; the output as GeneratedTokens or
    output_tokens; and the other names in this module. TIMESTAMP, ContextTokens and GeneratedTokens are
    the Azure LLM inference traces of 2023 and 2024 (github.com/Azure/AzurePublicDataset).
    *zero_output*: `drop` leaves out requests with no output token and counts them; `error` refuses them.
    Raises InputFault with every fault of the file, the first 20 in full.
    """
    try:
        state = os.stat(path)
    except FileNotFoundError:
        like = "*.jsonl*" if is_lines(str(path)) else "*.csv*"
        near = [other.name for other in Path(path).parent.glob(like)]
        raise InputFault(f"{path} is not there{did_you_mean(Path(path).name, near)}") from None
    except OSError as error:
        raise InputFault(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(state.st_mode):
        raise InputFault(f"{path} is a directory; name a trace file in it")
    return _read(str(path), zero_output, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)  # one run asks for times, lengths and moments; a search for a knee asks again and again
def _read(path: str, zero_output: str, modified_ns: int, size_bytes: int) -> Trace:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputFault(f"{path} cannot be read: {error.strerror}") from None
    return parse_trace(content, path, zero_output)


def parse_trace(content: bytes, path: str, zero_output: str = "drop") -> Trace:
    """The trace in a file's *content*; *path* names it in faults. As `read_trace`."""
    read = read_lines if is_lines(path) else _read_csv
    columns, faults = read(_text(content, path), path)
    if zero_output == "error":
        sentence = "has no output token; zero_output: drop leaves such requests out"
        lines = np.asarray(columns.lines)[columns.output_tokens == 0]
        faults += [(line, sentence) for line in lines.tolist()]
    if faults:
        raise at_lines(path, faults)
    return _in_order(path, columns)


def _read_csv(text: str, path: str) -> tuple[Columns, LineFaults]:
    lines, rows = _split(text, path)
    header = tuple(name.strip() for name in rows[0])
    roles = _roles(header, f"{path}:{lines[0]}")
    if len(rows) == 1:
        raise InputFault(f"{path} has a header and no requests")
    lines, rows, faults = _whole_rows(header, lines[1:], rows[1:])
    values: dict[str, np.ndarray] = {}
    for column, reader in roles.items():
        index = header.index(column)
        values[column], in_cells = reader([row[index] for row in rows])
        faults += [(lines[row], f"{column} {sentence}") for row, sentence in in_cells.items()]
    *arrival, prompt, output = values.values()
    return Columns(header, lines, arrival[0] if arrival else None, prompt, output), faults


def _text(content: bytes, path: str) -> str:
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except EOFError:
            raise InputFault(f"{path}: the compressed data end early; the file is cut off") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InputFault(f"{path}: the compressed data are damaged ({error})") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputFault(f"{path}:{line}: a trace must be text in UTF-8; save it as UTF-8") from None


def _split(text: str, path: str) -> tuple[list[int], Rows]:
    """The rows that are not blank, the header first, and the line on which each begins."""
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    lines, rows, line = [], [], 1
    try:
        for row in reader:
            if any(row):
                lines.append(line)
                rows.append(row)
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputFault(f"{path}:{line}: the line cannot be split into fields ({error})") from None
    if not rows:
        raise InputFault(f"{path} is empty; a trace needs a header and a line for each request")
    return lines, rows


def _roles(header: tuple[str, ...], place: str) -> dict[str, Callable[[Cells], tuple[np.ndarray, dict]]]:
    """The columns that carry the arrival (if there is one), the prompt and the output, and their readers."""
    for name, sign in (("semicolons", ";"), ("tabs", "\t")):
        if len(header) == 1 and sign in header[0]:
            raise InputFault(
                f"{place}: the fields are separated by {name}; "
                f"separate them by commas and write decimals with a point"
            )
    if all(map(looks_numeric, header[1:] or header)):
        raise InputFault(f"{place}: the first line must name the columns (got {','.join(header)})")
    arrivals = named(header, ARRIVAL_SECONDS + ARRIVAL_DATES)
    prompts, outputs = named(header, PROMPT), named(header, OUTPUT)
    faults = [
        f"{place}: more than one column for {meaning}: {', '.join(found)}; keep one"
        for meaning, found in (("the arrival", arrivals), ("the prompt", prompts), ("the output", outputs))
        if len(found) > 1
    ]
    for meaning, found, names in (("prompt", prompts, PROMPT), ("output", outputs, OUTPUT)):
        if not found:
            faults.append(f"{place}: {missing(f'the {meaning} tokens', names, header)}")
    if faults:
        raise InputFault(faults)
    dates = named(header, ARRIVAL_DATES)
    readers = dict.fromkeys(arrivals, date_times if dates else seconds)
    return readers | {prompts[0]: lambda cells: token_counts(cells, least=1), outputs[0]: token_counts}


def _whole_rows(header: tuple[str, ...], lines: list[int], rows: Rows) -> tuple[list[int], Rows, LineFaults]:
    """The rows with a cell for each column, and a fault for each of the others."""
    width, names = len(header), {name.lower() for name in (*KNOWN, header[0]) if name}
    if all(len(row) == width and row[0].lower() not in names for row in rows):
        return lines, rows, []
    faults: LineFaults = []
    kept_lines, kept_rows = [], []
    for line, row in zip(lines, rows, strict=True):
        if row[0].strip().lower() in names:
            faults.append((line, "a second header: two traces in one file; split it here"))
        elif len(row) != width:
            hint = "; a number must not have thousands commas (1024, not 1,024)" if len(row) > width else ""
            faults.append((line, f"{len(row)} fields, but the header has {width}{hint}"))
        else:
            kept_lines.append(line)
            kept_rows.append(row)
    return kept_lines, kept_rows, faults


def _in_order(path: str, columns: Columns) -> Trace:
    """The trace without requests of zero output, sorted by arrival, times counted from the first."""
    kept = np.flatnonzero(columns.output_tokens)
    if len(kept) == 0:
        raise InputFault(f"{path}: every request has zero output tokens; there is nothing to serve")
    notes = {"zero_output_dropped": len(columns.output_tokens) - len(kept)}
    arrival_ns = columns.arrival_ns
    if arrival_ns is not None:
        times = arrival_ns[kept]
        notes["trace_rows_sorted"] = int(np.count_nonzero(times < np.maximum.accumulate(times)))
        kept = kept[np.argsort(times, kind="stable")]
        arrival_ns = _frozen(arrival_ns[kept] - times.min())
    tokens = _frozen(columns.prompt_tokens[kept]), _frozen(columns.output_tokens[kept])
    notes = {name: count for name, count in notes.items() if count}
    chains = columns.chains.take(kept) if columns.chains else None
    return Trace(path, columns.header, arrival_ns, *tokens, notes, chains)


def _frozen(column: np.ndarray) -> np.ndarray:
    """*column*, read-only: a trace is shared by every run that replays it."""
    column.flags.writeable = False
    return column
