"""What docs/accuracy.md is made from: the public table, tested as shipped and fold by fold, and one server
run that was recorded request by request."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from sim.report.metrics import metrics_at
from sim.results import Result
from sim.scenario import Scenario, load
from sim.simulation import simulate
from sim.validation.folds import Folded, folded
from sim.validation.points import read_points
from sim.validation.predict import Predictor
from sim.validation.validate import Validation, validation_of

DATA = Path(__file__).parents[1] / "tests" / "data"
POINTS = DATA / "points.csv"
REQUESTS, SECONDS = DATA / "vllm-0.19-rtx4090-requests.csv", DATA / "vllm-0.19-rtx4090-seconds.csv"


@cache
def predictor() -> Predictor:
    """One for the whole page: what is asked for twice is simulated once."""
    return Predictor()


@cache
def as_shipped() -> Validation:
    """The public table against the engine files and profiles that come with Kneesim."""
    return validation_of(read_points(POINTS), predictor())


@cache
def cross_validated(kind: str) -> Folded:
    """The public table with constants that have not seen the row's set-up, card or model."""
    shipped = as_shipped()
    return folded(shipped.cases, kind, predictor(), shipped.points, workers=os.cpu_count() or 1)


@dataclass(frozen=True)
class Recorded:
    """One server run request by request: what was recorded (measured), what is simulated (predicted).

    Arrays over requests in s, over whole seconds for running and waiting.
    """

    measured: Mapping[str, np.ndarray]
    predicted: Mapping[str, np.ndarray]
    preemptions: int


def rtx_scenario() -> Scenario:
    """vLLM 0.19 with Llama-3.1-8B on an RTX 4090, with the KV cache that its log states."""
    return load(
        {
            "hardware": "rtx-4090-24gb",
            "model": "llama-3.1-8b",
            "engine": {
                "base": "vllm-0.19",
                "max_num_seqs": 256,
                "max_num_batched_tokens": 2048,
                "max_model_len": 32768,
                "num_gpu_blocks_override": 2588,
                "front_end_latency_s": 0.0,
                "front_end_service_s": 0.0,
                "front_end_prompt_token_s": 0.0,
            },
            "workload": str(REQUESTS),
            "load": "trace",
            "run": {"warmup": 0},
        }
    )


@cache
def rtx_run() -> Recorded:
    """The run on the RTX 4090, measured inside the engine's process: no front end."""
    rows, seconds = _columns(REQUESTS), _columns(SECONDS)
    result = Result(simulate(rtx_scenario()))
    at_s = seconds["time_s"]
    gauges = metrics_at(result.run, at_s)
    arrival_s, output = rows["arrival_s"], rows["output_tokens"]
    ttft_s, e2e_s = rows["first_token_s"] - arrival_s, rows["last_token_s"] - arrival_s
    measured = {
        "TTFT": ttft_s,
        "TPOT": (e2e_s - ttft_s) / (output - 1),
        "E2E": e2e_s,
        "running": seconds["running"],
        "waiting": seconds["waiting"],
    }
    predicted = {
        "TTFT": result.series("ttft"),
        "TPOT": result.series("tpot"),
        "E2E": result.series("e2e"),
        "running": gauges["vllm:num_requests_running"],
        "waiting": gauges["vllm:num_requests_waiting"],
    }
    return Recorded(measured, predicted, int(result.run.recorder.column("preemptions").sum()))


def _columns(path: Path) -> dict[str, np.ndarray]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def errors_pct(run: Recorded, name: str) -> np.ndarray:
    """Predicted over measured less 1 of every request, in percent."""
    return 100.0 * (run.predicted[name] / run.measured[name] - 1.0)


def of_sets(validation: Validation, names: Sequence[str]) -> list[str]:
    """The ids of the rows of some sets."""
    return [point.id for point in validation.points if point.set in names]
