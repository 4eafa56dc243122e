"""Small tables of measured points for the tests: rows as dicts, blanks where nothing is said."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.validation.points import read_points
from sim.validation.predict import predict

CLOSED = {
    "gpu": "H100-80GB-SXM",
    "n_gpu": 1,
    "tp": 1,
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "weight_dtype": "bf16",
    "engine": "vLLM",
    "engine_version": "0.12.0",
    "isl_mean": 512,
    "isl_dist": "fixed",
    "osl_mean": 64,
    "osl_dist": "fixed",
    "load_kind": "concurrency",
    "load_value": 8,
    "n_requests": 48,
    "setup": "closed",
}
"""Eight users of one H100; a test changes what it is about."""


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """The CSV file *path* with *rows*, whose ids are r0, r1, .. where they have none."""
    told = [{"id": f"r{number}", **row} for number, row in enumerate(rows)]
    names = list(dict.fromkeys(name for row in told for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(told)
    return path


def as_predicted(path: Path, rows: Iterable[Mapping[str, Any]], scale: float = 1.0) -> Path:
    """The same, with what we predict, *scale* times as large, for measured values."""
    told = [{"id": f"r{number}", "out_tok_s": 1, **row} for number, row in enumerate(rows)]
    points = read_points(write_table(path, told)).rows
    columns = ("out_tok_s", "ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms")
    for row, point in zip(told, points, strict=True):
        metrics = predict(point)
        row.update({name: repr(scale * metrics[name]) for name in columns if name in metrics})
    return write_table(path, told)
