"""The reports of guidellm and aiperf, read into measured loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sim.calibration.measured_load import MeasuredLoad, Record, Sent, check_load, present

_GUIDELLM_VERSIONS = (2,)
_AIPERF_SCHEMA = "1."
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
AIPERF_RECORDS = "profile_export.jsonl"


# -- guidellm --------------------------------------------------------------------------------------


def read_guidellm(place: str, document: Mapping[str, Any], faults: list[str]) -> list[MeasuredLoad]:
    """The loads of guidellm's `benchmarks.json`, one a benchmark."""
    report = Record(place, document, faults)
    version = report.get("metadata.version")
    if version not in _GUIDELLM_VERSIONS:
        known = ", ".join(map(str, _GUIDELLM_VERSIONS))
        report.fault(f"guidellm's report has metadata.version {version!r:.20}; known: {known}")
        return []
    benchmarks = document["benchmarks"]
    if not isinstance(benchmarks, list) or not benchmarks:
        report.fault("has no benchmarks; it is truncated, or guidellm was stopped")
        return []
    records = [
        Record(f"{place} benchmarks[{number}]", benchmark if isinstance(benchmark, Mapping) else {}, faults)
        for number, benchmark in enumerate(benchmarks)
    ]
    return [load for record in records if (load := _guidellm(record)) is not None]


def _guidellm(record: Record) -> MeasuredLoad | None:
    found = _guidellm_load(record)
    if found is None:
        return None
    kind, value, arrivals = found
    metrics = "metrics"
    completed = int(record.number(f"{metrics}.request_totals.successful"))
    begin_s, end_s = (record.number(f"scheduler_metrics.measure_{end}_time") for end in ("start", "end"))
    output = record.number(f"{metrics}.output_token_count.successful.mean")
    load = MeasuredLoad(
        place=record.place,
        tool="guidellm",
        kind=kind,
        value=value,
        completed=completed,
        failed=int(record.metric(f"{metrics}.request_totals.errored") or 0),
        duration_s=end_s - begin_s,
        prompt_tokens_mean=record.number(f"{metrics}.prompt_token_count.successful.mean"),
        output_tokens_mean=output,
        metrics=_guidellm_metrics(record),
        arrivals=arrivals,
    )
    if end_s <= begin_s:
        record.fault("scheduler_metrics.measure_end_time must be after measure_start_time")
    else:
        check_load(load, record)
    return load


def _guidellm_load(record: Record) -> tuple[str, float | None, str] | None:
    strategy = Record(record.place, record.get("config.strategy") or {}, record.faults)
    kind = strategy.get("type_")
    if kind == "synchronous":
        return "concurrency", 1.0, "poisson"
    if kind == "concurrent":
        return "concurrency", strategy.number("streams", 1), "poisson"
    if kind == "throughput":
        cap = strategy.metric("max_concurrency")
        return ("burst", None, "poisson") if cap is None else ("concurrency", cap, "poisson")
    if kind in ("constant", "poisson"):
        return "rate", strategy.number("rate", 1e-9), kind
    known = "synchronous, concurrent, throughput, constant, poisson"
    record.fault(f"config.strategy.type_ {kind!r:.30} is no load of a scenario; known: {known}")
    return None


def _guidellm_metrics(record: Record) -> dict[str, float]:
    """guidellm weights the gap between tokens by tokens: its mean is that of all gaps, not of requests."""

    def of(name: str, statistic: str, seconds: float) -> float | None:
        return record.metric(f"metrics.{name}.successful.{statistic}", seconds)

    statistics = {"mean": "mean", "p50": "median", "p99": "percentiles.p99"}
    found = {
        f"{ours}_{statistic}_s": of(theirs, path, seconds)
        for ours, theirs, seconds in (
            ("ttft", "time_to_first_token_ms", 1e-3),
            ("e2e", "request_latency", 1.0),
        )
        for statistic, path in statistics.items()
    }
    found["itl_mean_s"] = of("inter_token_latency_ms", "mean", 1e-3)
    found["output_throughput"] = of("output_tokens_per_second", "mean", 1.0)
    found["request_throughput"] = of("requests_per_second", "mean", 1.0)
    return present(found)


# -- aiperf ----------------------------------------------------------------------------------------


def read_aiperf(place: str, document: Mapping[str, Any], path: Path, faults: list[str]) -> list[MeasuredLoad]:
    """The load of aiperf's `profile_export_aiperf.json`; lengths from `profile_export.jsonl` beside it."""
    record = Record(place, document, faults)
    version = str(record.get("schema_version"))
    if not version.startswith(_AIPERF_SCHEMA):
        record.fault(f"aiperf's export has schema_version {version:.20}; known: 1.x")
        return []
    if record.get("was_cancelled"):
        record.fault("aiperf was cancelled before the load was over")
    kind, value, arrivals = _aiperf_load(record)
    duration_s = _aiperf_value(record, "benchmark_duration", "avg")
    load = MeasuredLoad(
        place=place,
        tool="aiperf",
        kind=kind,
        value=value,
        completed=int(record.number("request_count.avg")),
        failed=int(record.metric("error_request_count.avg") or 0),
        duration_s=duration_s or record.number("benchmark_duration.avg"),
        prompt_tokens_mean=record.number("input_sequence_length.avg"),
        output_tokens_mean=record.number("output_sequence_length.avg"),
        metrics=_aiperf_metrics(record),
        arrivals=arrivals,
        sent=_aiperf_sent(path.with_name(AIPERF_RECORDS), kind, faults),
    )
    check_load(load, record)
    return [load]


def _aiperf_load(record: Record) -> tuple[str, float | None, str]:
    """Rate or concurrency: of the command line's `loadgen`, or of the last phase of a configuration file."""
    config = record.get("input_config")
    settings = dict(config.get("loadgen") or {}) if isinstance(config, Mapping) else {}
    phases = config.get("phases") if isinstance(config, Mapping) else None
    if isinstance(phases, list) and phases and isinstance(phases[-1], Mapping):
        settings |= phases[-1]
    rate, users = settings.get("request_rate") or settings.get("rate"), settings.get("concurrency")
    if rate is not None and users is not None:
        record.fault("input_config has a rate and a concurrency; measure with one of them")
    if isinstance(rate, int | float) and rate > 0:
        pattern = settings.get("arrival_pattern") or settings.get("type") or "poisson"
        return "rate", float(rate), "constant" if pattern == "constant" else "poisson"
    if isinstance(users, int) and users > 0:
        return "concurrency", float(users), "poisson"
    record.fault("input_config says neither request_rate nor concurrency (in loadgen or in phases)")
    return "burst", None, "poisson"


def _aiperf_value(record: Record, tag: str, statistic: str) -> float | None:
    """A time in s, by the unit that its block states."""
    if record.get(tag) is None:
        return None
    unit = record.get(f"{tag}.unit")
    if unit not in _SECONDS:
        record.fault(f"{tag}.unit {unit!r:.20} is no unit of time; known: {', '.join(_SECONDS)}")
        return None
    return record.metric(f"{tag}.{statistic}", _SECONDS[unit])


def _aiperf_metrics(record: Record) -> dict[str, float]:
    """aiperf's inter-token latency is (E2E - TTFT) / (n - 1) of a request: TPOT here."""
    tags = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
    tags |= {"itl": "inter_chunk_latency"}
    statistics = {"mean": "avg", "p50": "p50", "p99": "p99"}
    found = {
        f"{ours}_{statistic}_s": _aiperf_value(record, tag, word)
        for ours, tag in tags.items()
        for statistic, word in statistics.items()
    }
    found["output_throughput"] = record.metric("output_token_throughput.avg")
    found["request_throughput"] = record.metric("request_throughput.avg")
    return present(found)


def _aiperf_sent(path: Path, kind: str, faults: list[str]) -> Sent | None:
    """The requests of the records file *path*, warm-up and failures left out; None where there is none."""
    if not path.is_file():
        return None
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else {}
            if row and not row.get("error") and row["metadata"]["benchmark_phase"] == "profiling":
                lengths = [row["metrics"][f"{side}_sequence_length"]["value"] for side in ("input", "output")]
                rows.append((float(row["metadata"]["request_start_ns"]) * 1e-9, *map(int, lengths)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            faults.append(f"{path}:{number}: is no whole record of aiperf ({type(error).__name__}: {error})")
            return None
    if not rows or min(min(row[1:]) for row in rows) < 1:
        return None
    sent_s, prompt, output = (np.array(column) for column in zip(*sorted(rows), strict=True))
    return Sent(prompt, output, sent_s - sent_s[0] if kind == "rate" else None)
