"""Recorded traffic: the requests of a file, whatever its format."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sim.faults import InputFault, did_you_mean
from sim.workload.chains import Chains
from sim.workload.readers.formats import NAMES, missing
from sim.workload.readers.read import JSON_SUFFIXES, read_source
from sim.workload.readers.reading import Reading, reading_of
from sim.workload.readers.source import Source


@dataclass(frozen=True, eq=False)
class Trace:
    """The requests of a file in order of arrival (rows of one time in the file's order).

    arrival_ns: int64, exact, counted from the first request, never falling; None when the file has no
    times. prompt_tokens, output_tokens: int64, at least 1. columns: the file's header. notes: counts of
    what was changed (`NOTES`). chains: the ids of the prompts' blocks; None when the file has none.
    sessions, classes (numbers in class_names), priorities: int64, or None where the file does not tell.
    delay_ns: int64; how long after the end of its session's request before one is sent, or -1 where it comes
    at its own time; None where all do.
    """

    path: str
    columns: tuple[str, ...]
    arrival_ns: np.ndarray | None
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    notes: Mapping[str, int]
    chains: Chains | None = None
    sessions: np.ndarray | None = None
    classes: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    priorities: np.ndarray | None = None
    delay_ns: np.ndarray | None = None
    format: str = "plain"

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def is_json(self) -> bool:
        """Whether the file is called like one of JSON, whose records may have keys that others have not."""
        return self.path.lower().removesuffix(".gz").endswith(JSON_SUFFIXES)

    def require_times(self) -> np.ndarray:
        """`arrival_ns`; a fault when the file has no column of times."""
        if self.arrival_ns is None:
            raise InputFault(
                f"{self.path}:1: {missing('the arrival times', NAMES['arrival'], self.columns)}"
                "; trace.columns.arrival names another"
            )
        return self.arrival_ns


def trace_of(workload: Mapping[str, Any], side: str) -> Trace:
    """The trace whose `arrivals` or `lengths` (*side*) *workload* has, read as its `trace` says."""
    return read_trace(workload[side]["path"], reading_of(workload))


def read_trace(path: str | Path, reading: Reading | str = "drop") -> Trace:
    """Read a trace from a file of any of the formats of docs/traces.md, packed by gzip or not.

    *reading* is what the file does not tell of itself, or just what becomes of requests with no output
    token: `drop` leaves them out and counts them; `error` refuses them. A file that was read is kept until
    it changes. Raises InputFault with every fault of the file, the first 20 in full.
    """
    reading = Reading(zero_output=reading) if isinstance(reading, str) else reading
    try:
        state = os.stat(path)
    except FileNotFoundError:
        beside = Path(path).parent.glob(f"*{_suffix(path) or '.'}*")
        near = [other.name for other in beside if other.is_file()]
        raise InputFault(f"{path} is not there{did_you_mean(Path(path).name, near)}") from None
    except OSError as error:
        raise InputFault(f"{path} cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(state.st_mode):
        raise InputFault(_folder_fault(Path(path)))
    return _read(str(path), reading, state.st_mtime_ns, state.st_size)


def _suffix(path: str | Path) -> str:
    return Path(str(path).removesuffix(".gz")).suffix


def _folder_fault(path: Path) -> str:
    if any(path.glob("chunk-*-trace.csv")):
        return (
            f"{path} is a folder of ServeGen's clients, which describes traffic and has no requests; "
            f"make a workload of it: kneesim workload fit {path} --out NAME.yaml"
        )
    return f"{path} is a directory; name a trace file in it"


@lru_cache(maxsize=4)  # one run asks for times, lengths and moments; a search for a knee asks again and again
def _read(path: str, reading: Reading, modified_ns: int, size_bytes: int) -> Trace:
    return _trace(path, reading, None)


def parse_trace(content: bytes, path: str, reading: Reading | str = "drop") -> Trace:
    """The trace in a file's *content*; *path* names it in faults. As `read_trace`."""
    return _trace(path, Reading(zero_output=reading) if isinstance(reading, str) else reading, content)


def _trace(path: str, reading: Reading, content: bytes | None) -> Trace:
    found = read_source(Source(path, content), reading)
    columns = found.columns
    arrays = (columns.arrival_ns, columns.prompt_tokens, columns.output_tokens, columns.sessions,
              columns.classes, columns.priorities, columns.delay_ns)  # fmt: skip
    for array in arrays:  # a trace is shared by every run that replays it
        if array is not None:
            array.flags.writeable = False
    return Trace(
        path,
        found.header,
        columns.arrival_ns,
        columns.prompt_tokens,
        columns.output_tokens,
        found.notes,
        found.chains,
        columns.sessions,
        columns.classes,
        found.class_names,
        columns.priorities,
        columns.delay_ns,
        found.form.name,
    )
