"""Result files of load generators, read into measured loads.

`vllm bench serve` and SGLang's `bench_serving` (flat objects, one a file or one a line) are read here;
guidellm's and aiperf's reports in `result_reports`. Fields and their units: docs of the tools, whose
latencies here are ms at the top and seconds in the lists of `--save-detailed` and `--output-details`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sim.calibration.measured_load import (
    LATENCIES,
    MeasuredLoad,
    Record,
    Sent,
    check_load,
    present,
    statistics_of,
)
from sim.calibration.result_reports import read_aiperf, read_guidellm
from sim.faults import InputFault

_MS = 1e-3
_FLAT = ("duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput")
_TOOLS = "`vllm bench serve`, SGLang's bench_serving, guidellm (benchmarks.json) or aiperf"


def read_result_files(paths: Iterable[Path]) -> list[MeasuredLoad]:
    """The loads of all files, in order. Raises `InputFault` with everything that is wrong with any."""
    faults: list[str] = []
    loads: list[MeasuredLoad] = []
    for path in paths:
        try:
            loads += read_result_file(path)
        except InputFault as fault:
            faults += fault.faults
    if faults:
        raise InputFault(faults)
    return loads


def read_result_file(path: Path) -> list[MeasuredLoad]:
    """The loads in the file *path*. Raises `InputFault` where it cannot be read or understood."""
    faults: list[str] = []
    loads = [load for place, document in _documents(path) for load in _loads(place, document, path, faults)]
    if faults:
        raise InputFault(faults)
    return loads


def _documents(path: Path) -> Iterator[tuple[str, Any]]:
    """The JSON documents of a file, with their places: the whole file, or one a line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputFault(f"{path}: is not text; give a JSON result of {_TOOLS}") from None
    except OSError as error:
        raise InputFault(f"{path}: cannot be read: {error.strerror or error}") from None
    if not text.strip():
        raise InputFault(f"{path}: is empty; give a result file of {_TOOLS}")
    try:
        yield str(path), json.loads(text)
        return
    except (ValueError, RecursionError) as error:
        whole = error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            what = f"line {number} is" if number > 1 and len(lines) > 1 else "is"
            raise InputFault(f"{path}: {what} no whole JSON document ({whole}); was it truncated?") from None
        yield f"{path}:{number}", document


def _loads(place: str, document: Any, path: Path, faults: list[str]) -> list[MeasuredLoad]:
    if not isinstance(document, Mapping):
        faults.append(f"{place}: must be a JSON object; give a result file of {_TOOLS}")
        return []
    if "benchmarks" in document:
        return read_guidellm(place, document, faults)
    if "schema_version" in document or "aiperf_version" in document:
        return read_aiperf(place, document, path, faults)
    if any(key in document for key in ("mean_ttft_ms", "mean_tpot_ms", *_FLAT[2:4])):
        return [_flat(Record(place, document, faults))]
    found = ", ".join(list(document)[:6]) or "nothing"
    faults.append(f"{place}: is no result of {_TOOLS} (it has {found})")
    return []


def _flat(record: Record) -> MeasuredLoad:
    """One object of vLLM's or SGLang's benchmark."""
    sglang = "mean_e2e_latency_ms" in record.values or "total_output_tokens_retokenized" in record.values
    completed = int(record.number("completed"))
    kind, value = _load_of(record, completed)
    prompt, output = record.number("total_input_tokens"), record.number("total_output_tokens")
    detailed = _Detailed(record, completed)
    load = MeasuredLoad(
        place=record.place,
        tool="SGLang bench_serving" if sglang else "vllm bench serve",
        kind=kind,
        value=value,
        completed=completed,
        failed=int(record.metric("failed") or 0),
        duration_s=record.number("duration"),
        prompt_tokens_mean=prompt / max(completed, 1),
        output_tokens_mean=output / max(completed, 1),
        metrics={**detailed.metrics(), **_flat_metrics(record)},
        arrivals="constant" if _number(record.get("burstiness")) == np.inf else "poisson",
        sent=detailed.sent(kind),
    )
    check_load(load, record)
    return load


def _flat_metrics(record: Record) -> dict[str, float]:
    metrics: dict[str, float | None] = {
        "output_throughput": record.metric("output_throughput"),
        "request_throughput": record.metric("request_throughput"),
    }
    words = {"mean": "mean", "p50": "median", "p99": "p99"}
    for name in LATENCIES:
        for spelt in ("e2el", "e2e_latency") if name == "e2e" else (name,):
            for statistic, word in words.items():
                found = record.metric(f"{word}_{spelt}_ms", _MS)
                if found is not None:
                    metrics[f"{name}_{statistic}_s"] = found
    if not any(name.startswith(LATENCIES) for name in metrics):
        record.fault("has no latencies (mean_ttft_ms, ...); it is truncated or of an unknown version")
    return present(metrics)


def _load_of(record: Record, completed: int) -> tuple[str, float | None]:
    """Kind and value of the load: a rate, users who wait (a cap without a rate), or a burst."""
    rate, cap = _number(record.get("request_rate")), _number(record.get("max_concurrency"))
    if record.get("request_rate") is None:
        record.fault("has no request_rate; the file is truncated or of an unknown version")
    elif rate is None or not rate > 0:
        record.fault(f"request_rate must be a number > 0 or inf (got {record.get('request_rate')!r:.40})")
    elif record.get("ramp_up_strategy"):
        record.fault("the rate was ramped up, which no load of a scenario is; measure one at a fixed rate")
    elif rate < np.inf:
        peak = _number(record.get("max_concurrent_requests"))
        if cap is not None and (peak is None or peak >= cap) and completed > cap:
            record.fault(
                f"sends {rate:g} requests/s with at most {cap:g} at once, and the cap may have been met; "
                "measure with one of request_rate and max_concurrency"
            )
        return "rate", rate
    if cap is None or cap >= completed > 0:
        return "burst", None
    return "concurrency", cap


def _number(value: Any) -> float | None:
    """A number, also one written as a text (`inf`); None where it is none."""
    try:
        return float(value) if not isinstance(value, bool) and value is not None else None
    except (TypeError, ValueError):
        return None


class _Detailed:
    """The lists, one item a request, of a detailed file; of requests that were answered."""

    def __init__(self, record: Record, completed: int) -> None:
        prompt, output = record.tokens("input_lens"), record.tokens("output_lens", least=0)
        self.record, self.prompt, self.output = record, prompt, output
        self.ttft_s, self.start_s = record.times("ttfts"), record.times("start_times")
        self.gaps = record.get("itls") if isinstance(record.get("itls"), list) else None
        columns = {"input_lens": prompt, "output_lens": output, "ttfts": self.ttft_s}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) > 1:
            spelt = ", ".join(f"{n} {name}" for name, n in lengths.items())
            record.fault(f"its lists are of different lengths ({spelt}); it is truncated")
            self.prompt = self.output = None
        self.good = np.zeros(0, dtype=bool) if self.output is None else self.output > 0
        answers = int(self.good.sum())
        if self.output is not None and answers < completed:
            record.fault(f"lists {answers} answers, but completed is {completed}; it is truncated")

    def sent(self, kind: str) -> Sent | None:
        """What was sent; when, in an open loop that says so."""
        if self.prompt is None or self.output is None:
            return None
        prompt, output = self.prompt[self.good], self.output[self.good]
        if kind != "rate" or self.start_s is None or len(self.start_s) != len(self.good):
            return Sent(prompt, output)
        start_s = self.start_s[self.good]
        order = np.argsort(start_s, kind="stable")
        return Sent(prompt[order], output[order], start_s[order] - start_s[order[0]])

    def metrics(self) -> dict[str, float]:
        """Latencies from the lists: TTFT, and E2E and TPOT where gaps between tokens are listed."""
        if self.output is None or self.ttft_s is None or len(self.ttft_s) != len(self.good):
            return {}
        ttft_s = self.ttft_s[self.good]
        metrics = statistics_of("ttft", ttft_s)
        if self.gaps is None or len(self.gaps) != len(self.good):
            return metrics
        try:
            after_s = np.array([float(np.sum(gaps)) for gaps in self.gaps])[self.good]
        except (TypeError, ValueError):
            self.record.fault("itls must be a list of lists of numbers")
            return metrics
        gaps = self.output[self.good] - 1
        several = gaps > 0
        metrics |= statistics_of("e2e", ttft_s + after_s)
        return metrics | statistics_of("tpot", after_s[several] / gaps[several])
