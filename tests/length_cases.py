"""Lengths of every kind, for the tests of their draws and moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.workload import generate

NORMAL_999 = 3.291  # two-sided 99.9 % bound of a standard normal
COUNT = 40_000
MIXTURE = {"weights": [0.3, 0.7], "mu": [4.0, 6.5], "sigma": [0.2, 0.9], "min": 30, "max": 3000}
TABLE = {"quantiles": [0, 0.25, 0.5, 0.9, 1], "tokens": [10, 100, 100, 800, 5000]}
JOINT = {
    "kind": "joint",
    "prompt_edges": [9.5, 100.5, 1000.5, 1001.5],
    "output_edges": [0.5, 20.5, 300.5],
    "cells": [[0.4, 0.1], [0.05, 0.25], [0.2, 0.0]],
}
LENGTHS: dict[str, dict[str, Any]] = {
    "fixed": {"kind": "fixed", "prompt_tokens": 300, "output_tokens": 7},
    "lognormal": {
        "kind": "lognormal",
        "prompt_mean": 900,
        "prompt_cv": 1.4,
        "output_mean": 200,
        "output_cv": 0.5,
    },
    "one cv": {"kind": "lognormal", "prompt_mean": 900, "output_mean": 200, "cv": 1.0},
    "mixture": {"kind": "mixture", "prompt": MIXTURE, "output": MIXTURE | {"weights": [0.9, 0.1]}},
    "table": {"kind": "table", "prompt": TABLE, "output": {"quantiles": [0, 1], "tokens": [20, 400]}},
    "geometric": {"kind": "geometric", "prompt_mean": 40, "output_mean": 250},
    "uniform": {"kind": "uniform", "prompt_min": 5, "prompt_max": 12, "output_min": 1, "output_max": 900},
    "joint": JOINT,
    "capped joint": JOINT | {"max_prompt_tokens": 700, "max_output_tokens": 21},
    "correlated": {
        "kind": "lognormal",
        "prompt_mean": 900,
        "output_mean": 200,
        "cv": 1.4,
        "correlation": 0.6,
    },
    "correlated table": {"kind": "table", "prompt": TABLE, "output": TABLE, "correlation": -0.5},
    "correlated mixture": {"kind": "mixture", "prompt": MIXTURE, "output": MIXTURE, "correlation": 0.9},
    "correlated geometric": {
        "kind": "geometric",
        "prompt_mean": 40,
        "output_mean": 3,
        "correlation": -0.3,
        "max_prompt_tokens": 60,
    },
    "correlated uniform": {
        "kind": "uniform",
        "prompt_min": 5,
        "prompt_max": 12,
        "output_min": 1,
        "output_max": 900,
        "correlation": 0.99,
    },
    "capped": {
        "kind": "lognormal",
        "prompt_mean": 900,
        "output_mean": 200,
        "cv": 1.4,
        "max_output_tokens": 300,
    },
    "capped table": {"kind": "table", "prompt": TABLE, "output": TABLE, "max_prompt_tokens": 500},
    "geometric output": {"kind": "geometric", "prompt_tokens": 64, "output_mean": 250},
}


def workload_of(lengths: dict[str, Any]) -> dict[str, Any]:
    """Poisson arrivals of these *lengths*."""
    return {"arrivals": {"kind": "poisson"}, "lengths": lengths}


def drawn(lengths: dict[str, Any], count: int = COUNT, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens of *count* requests."""
    requests = generate(workload_of(lengths), {"rate_per_s": 1}, {"requests": count, "seed": seed})
    return requests.prompt_tokens, requests.output_tokens
