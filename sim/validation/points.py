"""Measured points: one published result of a real server a row, as a table says it; blank is unknown."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sim.faults import InputFault, did_you_mean

NEEDED = ("id", "gpu", "model", "engine", "load_kind")
LOAD_KINDS = ("concurrency", "rate", "offline")
LATENCIES = ("ttft", "tpot", "e2e")
_LENGTHS = ("isl_mean", "osl_mean")
_COUNTS = ("n_gpu", "tp", "n_requests")
_RATES = ("req_per_s", "out_tok_s", "total_tok_s")
_STATISTICS = ("mean", "p50", "p99")
_TIMES = tuple(f"{metric}_{statistic}_ms" for metric in LATENCIES for statistic in _STATISTICS)
_TEXTS = ("id", "set", "setup", "grade", "source", "gpu", "model", "weight_dtype", "kv_dtype", "engine",
          "engine_version", "flags", "isl_dist", "osl_dist", "load_kind", "notes", "unfit")  # fmt: skip
_NOTED_OUTPUT = re.compile(r"derived output tokens/request = ([0-9.]+)|out tok/req = ([0-9.]+)")
_NOTED_E2E = re.compile(r"median E2E ([0-9.]+) ms|E2E p50 ([0-9.]+)")
_NOTED_PROMPT = re.compile(r"\bin tok/req = ([0-9.]+)")
_MOST_LATENCY_GAP = 20.0
"""E2E over TTFT + TPOT x (output - 1), or its inverse, from which on a unit is taken to be wrong."""


@dataclass(frozen=True)
class Point:
    """One row. Lengths in tokens, rates per second, `times_ms` by column name; None and "" are unknown."""

    id: str
    set: str
    setup: str
    grade: str
    source: str
    gpu: str
    model: str
    weight_dtype: str
    kv_dtype: str
    engine: str
    engine_version: str
    flags: str
    isl_dist: str
    osl_dist: str
    load_kind: str
    notes: str
    unfit: str
    n_gpu: int | None = None
    tp: int | None = None
    n_requests: int | None = None
    isl_mean: float | None = None
    osl_mean: float | None = None
    load_value: float | None = None
    """Users, requests per second, or whatever the source calls the load of an offline batch."""
    req_per_s: float | None = None
    out_tok_s: float | None = None
    total_tok_s: float | None = None
    times_ms: Mapping[str, float] = field(default_factory=dict)
    isl_filled: bool = False
    osl_filled: bool = False
    """The mean length stands in no column of the row: it comes from its notes or from rows beside it."""

    @property
    def version(self) -> tuple[int, ...]:
        """The numbers that the engine's version begins with; empty if it is not known."""
        found = re.match(r"v?(\d+(?:\.\d+)*)", self.engine_version.strip())
        return tuple(int(part) for part in found[1].split(".")) if found else ()

    def latency_ms(self, metric: str) -> tuple[str, float] | None:
        """The statistic (mean before p50) and value that the row gives of `ttft`, `tpot` or `e2e`, in ms."""
        for statistic in ("mean", "p50"):
            value = self.times_ms.get(f"{metric}_{statistic}_ms")
            if value is not None:
                return statistic, value
        return None


@dataclass(frozen=True)
class Points:
    """The rows that could be read, and why the others could not, by id."""

    rows: tuple[Point, ...]
    unreadable: Mapping[str, str]


def read_points(path: str | Path) -> Points:
    """The points of the CSV file *path* (.csv or .csv.gz), blank cells filled from what stands beside them.

    A blank output length comes from the row's notes (`derived output tokens/request = N`), else from rows of
    the same model, harness and kind of lengths. Raises `InputFault` if the file is none of measured points;
    a row at fault (no number, a wrong unit) is listed instead.
    """
    place = Path(path)
    header, rows = _read_rows(place)
    _check_header(place, header)
    if not rows:
        raise InputFault(f"{place} has a header and no row")
    points: dict[str, Point] = {}
    unreadable: dict[str, str] = {}
    for line, row in rows:
        name = (row.get("id") or "").strip() or f"line {line}"
        if name in points or name in unreadable:
            unreadable[f"{name} (line {line})"] = f"line {line}: id {name} is there already"
        elif fault := "; ".join(_faults_of(row)):
            unreadable[name] = f"line {line}: {fault}"
        else:
            points[name] = _point(name, row)
    return Points(tuple(_filled(points.values())), unreadable)


def _read_rows(place: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    try:
        raw = place.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except OSError as error:
        raise InputFault(f"{place} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, EOFError) as error:
        raise InputFault(f"{place} must be a whole CSV file in UTF-8 (it ends early, or is none)") from error
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise InputFault(f"{place}, line {reader.line_num}: {error}; the file must be whole CSV") from error
    return [name.strip() for name in reader.fieldnames or ()], rows


def _check_header(place: Path, header: Sequence[str]) -> None:
    missing = [name for name in NEEDED if name not in header]
    measured = [name for name in (*_RATES[:2], *_TIMES) if name in header]
    faults = [f"{place}: column {name} is missing{did_you_mean(name, header)}" for name in missing]
    if header and not measured:
        faults.append(f"{place}: there is no measured column; possible: out_tok_s, {', '.join(_TIMES)}")
    if not header:
        faults = [f"{place} is empty; the first line must name the columns: {', '.join(NEEDED)}, ..."]
    if faults:
        raise InputFault(faults)


def _faults_of(row: Mapping[str, Any]) -> Iterable[str]:
    """What a row cannot be used for, each a part of a sentence."""
    if "" in row or None in row.values():
        yield "it has not as many cells as the header"
        return
    for name in NEEDED[1:]:
        if not row[name].strip():
            yield f"{name} is blank"
    if row["load_kind"].strip() not in (*LOAD_KINDS, ""):
        yield f"load_kind must be one of {', '.join(LOAD_KINDS)} (got {row['load_kind']})"
    for name in (*_COUNTS, *_LENGTHS, *_RATES, *_TIMES):
        text = (row.get(name) or "").strip()
        value = _number(text)
        if text and value is None:
            yield f"{name} must be a number (got {text}); leave unknown cells blank"
        elif value is not None and not (math.isfinite(value) and value > 0):
            yield f"{name} must be more than 0 (got {text}); leave unknown cells blank"
        elif value is not None and name in _COUNTS and value != int(value):
            yield f"{name} must be whole (got {text})"
    if row["load_kind"].strip() in ("concurrency", "rate"):
        value = _number((row.get("load_value") or "").strip())
        if value is None or not value > 0 or not math.isfinite(value):
            yield f"load_value must be more than 0 for {row['load_kind']} (got {row.get('load_value')})"
    if measured := _disagreeing_units(row):
        yield measured


def _disagreeing_units(row: Mapping[str, Any]) -> str:
    """That a row's latencies cannot be in one unit: E2E = TTFT + TPOT x (output - 1) is off by decades."""
    values = [_number((row.get(name) or "").strip()) for name in
              ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms", "osl_mean")]  # fmt: skip
    if any(value is None or value <= 0 for value in values):
        return ""
    ttft, tpot, e2e, output = (value or 0.0 for value in values)
    ratio = e2e / (ttft + tpot * max(output - 1, 0))
    if 1 / _MOST_LATENCY_GAP < ratio < _MOST_LATENCY_GAP:
        return ""
    return (
        f"e2e_mean_ms is {ratio:.3g} times ttft_mean_ms + tpot_mean_ms x (osl_mean - 1): one of them is not "
        "in milliseconds"
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _point(name: str, row: Mapping[str, str]) -> Point:
    texts: dict[str, Any] = {key: (row.get(key) or "").strip() for key in _TEXTS}
    texts["id"], texts["setup"] = name, texts["setup"] or name
    numbers: dict[str, Any] = {key: _number((row.get(key) or "").strip()) for key in (*_LENGTHS, *_RATES)}
    for key in _COUNTS:
        value = _number((row.get(key) or "").strip())
        numbers[key] = None if value is None else int(value)
    times = {key: _number((row.get(key) or "").strip()) for key in _TIMES}
    point = Point(
        **texts,
        **numbers,
        load_value=_number((row.get("load_value") or "").strip()),
        times_ms={key: value for key, value in times.items() if value is not None},
    )
    return _filled_from_notes(point)


def _filled_from_notes(point: Point) -> Point:
    if point.osl_mean is None and (found := _NOTED_OUTPUT.search(point.notes)):
        point = replace(point, osl_mean=float(found[1] or found[2]), osl_filled=True)
    if point.latency_ms("e2e") is None and (found := _NOTED_E2E.search(point.notes)):
        point = replace(point, times_ms={**point.times_ms, "e2e_p50_ms": float(found[1] or found[2])})
    if point.isl_mean is None and (found := _NOTED_PROMPT.search(point.notes)):
        point = replace(point, isl_mean=float(found[1]), isl_filled=True)
    return point


def _filled(points: Iterable[Point]) -> Iterable[Point]:
    """Rows with a blank output length take the mean of those with the same model, set and kind of lengths."""
    rows = tuple(points)
    known: dict[tuple[str, ...], list[float]] = {}
    for point in rows:
        if point.osl_mean is not None and point.osl_dist:
            known.setdefault(_kin(point), []).append(point.osl_mean)
    for point in rows:
        near = known.get(_kin(point))
        if point.osl_mean is None and near:
            yield replace(point, osl_mean=sum(near) / len(near), osl_filled=True)
        else:
            yield point


def _kin(point: Point) -> tuple[str, ...]:
    return (point.set, point.model, point.osl_dist)
