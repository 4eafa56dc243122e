"""Result files as the load generators write them, made from simulated runs (field lists, no tool's code)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sim.results import Result


class Answers:
    """What a client sees of *result*: all requests, without warm-up, each latency perhaps with noise.

    *noise* is the relative standard deviation of one factor a metric, *jitter* of one a request.
    """

    def __init__(self, result: Result, seed: int = 0, noise: float = 0.0, jitter: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        requests, load = result.run.requests, result.run.scenario.load
        factor = np.exp(noise * rng.standard_normal(2))
        each = np.exp(jitter * rng.standard_normal(len(requests)))
        self.load, self.prompt, self.output = load, requests.prompt_tokens, requests.output_tokens
        self.sent_s = requests.arrival_s
        self.ttft_s = result.series("ttft") * factor[0] * each
        self.tpot_s = np.nan_to_num(result.series("tpot")) * factor[1] * each
        self.e2e_s = self.ttft_s + self.tpot_s * (self.output - 1)
        stretch = float((self.e2e_s / result.series("e2e")).mean())
        self.duration_s = float(result.summary()["makespan"]["duration_s"]) * stretch

    def latency(self, name: str) -> np.ndarray:
        return getattr(self, f"{'tpot' if name == 'itl' else name}_s")[slice(None)]

    def rates(self) -> dict[str, float]:
        total = float(self.output.sum())
        return {"request": len(self.output) / self.duration_s, "output": total / self.duration_s}


def vllm(answers: Answers, detailed: bool = False) -> dict[str, Any]:
    """The object that `vllm bench serve --save-result [--save-detailed]` writes."""
    document: dict[str, Any] = {
        "date": "20261130-000000",
        "endpoint_type": "vllm",
        "backend": "vllm",
        "model_id": "a-model",
        "num_prompts": len(answers.output),
        "request_rate": answers.load.get("rate_per_s", "inf"),
        "burstiness": 1.0,
        "max_concurrency": answers.load.get("concurrency"),
        "duration": answers.duration_s,
        "completed": len(answers.output),
        "failed": 0,
        "total_input_tokens": int(answers.prompt.sum()),
        "total_output_tokens": int(answers.output.sum()),
        "request_throughput": answers.rates()["request"],
        "output_throughput": answers.rates()["output"],
    }
    for name in ("ttft", "tpot", "itl"):
        document |= _milliseconds(name, answers.latency(name))
    if detailed:
        gaps = [[float(s)] * int(n - 1) for s, n in zip(answers.tpot_s, answers.output, strict=True)]
        document |= {
            "input_lens": answers.prompt.tolist(),
            "output_lens": answers.output.tolist(),
            "ttfts": answers.ttft_s.tolist(),
            "itls": gaps,
            "start_times": (1000.0 + answers.sent_s).tolist(),
            "errors": [""] * len(answers.output),
        }
    return document


def sglang(answers: Answers) -> dict[str, Any]:
    """A line of SGLang's `--output-file`."""
    document = vllm(answers)
    kept = {key: document[key] for key in document if not key.endswith(("_id", "_type", "date", "failed"))}
    rate = answers.load.get("rate_per_s", float("inf"))
    kept |= {"tag": None, "dataset_name": "random", "request_rate": rate, "total_throughput": 1.0}
    return kept | _milliseconds("e2e_latency", answers.e2e_s)


def guidellm(*loads: Answers) -> dict[str, Any]:
    """guidellm's benchmarks.json, one benchmark a load."""
    return {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [*map(_benchmark, loads)]}


def _benchmark(answers: Answers) -> dict[str, Any]:
    users, rate = answers.load.get("concurrency"), answers.load.get("rate_per_s")
    strategy: dict[str, Any] = {"type_": "poisson", "rate": rate}
    if users is not None:
        strategy = {"type_": "concurrent", "streams": users}
    gaps = answers.output - 1
    itl = float((answers.tpot_s * gaps).sum() / gaps.sum())
    return {
        "config": {"strategy": strategy},
        "scheduler_metrics": {"measure_start_time": 1e9, "measure_end_time": 1e9 + answers.duration_s},
        "metrics": {
            "request_totals": {"successful": len(answers.output), "errored": 0, "incomplete": 0},
            "requests_per_second": {"successful": {"mean": answers.rates()["request"]}},
            "output_tokens_per_second": {"successful": {"mean": answers.rates()["output"]}},
            "prompt_token_count": {"successful": {"mean": float(answers.prompt.mean())}},
            "output_token_count": {"successful": {"mean": float(answers.output.mean())}},
            "time_to_first_token_ms": {"successful": _guidellm(1e3 * answers.ttft_s)},
            "request_latency": {"successful": _guidellm(answers.e2e_s)},
            "inter_token_latency_ms": {"successful": {"mean": 1e3 * itl, "median": 1e3 * itl}},
        },
    }


def _guidellm(values: np.ndarray) -> dict[str, Any]:
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "percentiles": {"p99": float(np.percentile(values, 99))},
    }


def aiperf(answers: Answers) -> dict[str, Any]:
    """aiperf's profile_export_aiperf.json."""
    users, rate = answers.load.get("concurrency"), answers.load.get("rate_per_s")
    loadgen = {"concurrency": users} if users is not None else {"request_rate": rate}
    return {
        "schema_version": "1.4",
        "aiperf_version": "0.13",
        "input_config": {"loadgen": loadgen},
        "was_cancelled": False,
        "request_count": {"unit": "requests", "avg": float(len(answers.output))},
        "benchmark_duration": {"unit": "sec", "avg": answers.duration_s},
        "request_throughput": {"unit": "requests/sec", "avg": answers.rates()["request"]},
        "output_token_throughput": {"unit": "tokens/sec", "avg": answers.rates()["output"]},
        "input_sequence_length": {"unit": "tokens", "avg": float(answers.prompt.mean())},
        "output_sequence_length": {"unit": "tokens", "avg": float(answers.output.mean())},
        "time_to_first_token": _aiperf(answers.ttft_s),
        "inter_token_latency": _aiperf(answers.tpot_s),
        "request_latency": _aiperf(answers.e2e_s),
    }


def aiperf_records(answers: Answers) -> str:
    """aiperf's profile_export.jsonl, with a warm-up request and a failed one in it."""
    rows: list[dict[str, Any]] = [
        {"metadata": {"benchmark_phase": "warmup", "request_start_ns": 0}, "metrics": {}, "error": None},
        {"metadata": {"benchmark_phase": "profiling", "request_start_ns": 5}, "error": {"code": 499}},
    ]
    for sent_s, prompt, output in zip(answers.sent_s, answers.prompt, answers.output, strict=True):
        metadata = {"benchmark_phase": "profiling", "request_start_ns": int(1e12 + 1e9 * sent_s)}
        lengths = {"input_sequence_length": int(prompt), "output_sequence_length": int(output)}
        metrics = {name: {"value": n, "unit": "tokens"} for name, n in lengths.items()}
        rows.append({"metadata": metadata, "metrics": metrics, "error": None})
    return "".join(json.dumps(row) + "\n" for row in rows)


def _milliseconds(name: str, values: np.ndarray) -> dict[str, float]:
    milliseconds = 1e3 * values
    return {
        f"mean_{name}_ms": float(milliseconds.mean()),
        f"median_{name}_ms": float(np.median(milliseconds)),
        f"p99_{name}_ms": float(np.percentile(milliseconds, 99)),
    }


def _aiperf(values: np.ndarray) -> dict[str, Any]:
    milliseconds = 1e3 * values
    percentiles = {f"p{p}": float(np.percentile(milliseconds, p)) for p in (50, 99)}
    return {"unit": "ms", "avg": float(milliseconds.mean()), **percentiles}


def write(path: Path, *documents: Any) -> Path:
    """The documents in the file *path*, one a line."""
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    return path
