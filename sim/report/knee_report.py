"""The files of a knee: figure, answer, report and points."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.files import write_whole
from sim.planning.knee import Knee
from sim.planning.reasons import load_words
from sim.planning.search import Point
from sim.planning.wording import duration, gibibytes, number
from sim.report.answer import answer, how_judged, interval_sentence
from sim.report.assumptions import assumptions, estimated
from sim.report.figures import knee_figure, save
from sim.report.text import knee_facts, markdown_table, points_table

POINT_LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
POINT_STATISTICS = ("mean", "p50", "p90", "p99", "max")


def write_knee(knee: Knee, directory: Path, ledger: Mapping[str, Any] | None = None) -> list[Path]:
    """Write knee.png, knee.svg, knee.json, knee.md and points.csv in *directory*, each whole or not at all.

    *ledger* is `memory --json`'s answer for the scenario. Raises `InputFault` if the place cannot be written.
    """
    figure = knee_figure(knee)
    answer = json.dumps(knee.as_dict(), allow_nan=False, indent=1)
    return [
        save(figure, directory / "knee.png"),
        save(figure, directory / "knee.svg"),
        write_whole(directory / "knee.json", answer + "\n"),
        write_whole(directory / "knee.md", knee_markdown(knee, ledger)),
        write_whole(directory / "points.csv", points_csv(knee)),
    ]


def knee_markdown(knee: Knee, ledger: Mapping[str, Any] | None = None) -> str:
    """The report: the answer, its limits, the loads tried, memory in words, and what it all rests on."""
    parts = [
        f"# {knee.scenario.name}",
        f"**{answer(knee)}.** {_interval(knee)}".rstrip(),
        "![Throughput, latency and KV cache over the offered load](knee.png)",
        _limits(knee),
        _numbers(knee),
        f"## Loads tried\n\n{how_judged(knee)} `queue grows` marks loads above capacity, whose percentiles "
        "depend on the length of a run.\n\n" + markdown_table(*points_table(knee)),
        f"## Memory of one GPU\n\n{memory_words(ledger)}" if ledger else "",
        _assumptions(knee),
        "## Warnings\n\n" + "\n".join(f"- {x}" for x in knee.warnings) if knee.warnings else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def points_csv(knee: Knee) -> str:
    """One row a load, for a spreadsheet: seconds, tokens per second, shares."""
    out = io.StringIO()
    rows = [_point_row(point) for point in knee.points]
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def memory_words(ledger: Mapping[str, Any]) -> str:
    """The ledger in sentences."""
    if not ledger["fits"]:
        return f"The model does not fit: {ledger.get('reason') or 'the pool is too small'}."
    parts = ("weights", "activation", "overhead", "kv_cache")
    takes = {name: gibibytes(ledger[f"{name}_bytes"]) for name in parts}
    unused = gibibytes(ledger["gpu_memory_bytes"] - sum(ledger[f"{name}_bytes"] for name in parts))
    full = f"{number(ledger['max_concurrency'])} requests of {ledger['max_model_len']:,} tokens"
    mean = ledger.get("mean_concurrency")
    return (
        f"Of {gibibytes(ledger['gpu_memory_bytes'])}, weights take {takes['weights']}, activations "
        f"{takes['activation']} and the driver, graphs and communication {takes['overhead']}; {unused} are "
        f"left to others. {takes['kv_cache']} hold the KV cache: {ledger['num_gpu_blocks']:,} blocks of "
        f"{ledger['block_size']} tokens, {ledger['kv_cache_tokens']:,} tokens at "
        f"{ledger['kv_bytes_per_token']:,.0f} bytes each. That is {full}"
        + (f", or {number(mean)} of this workload's mean context." if mean is not None else ".")
    )


def _interval(knee: Knee) -> str:
    return interval_sentence(knee.as_dict()["knee"].get("interval") or {}, knee.unit)


def _limits(knee: Knee) -> str:
    rows = []
    for limit in knee.asked:
        held = knee.limits[limit.name]
        first = "gives way first" if limit.name == knee.breaking_limit else held.get("reason", "")
        rows.append([limit.label, duration(held["at_knee"]), duration(limit.bound_s), first])
    return "## Limits\n\n" + markdown_table(["limit", "at the knee", "allowed", ""], rows)


def _numbers(knee: Knee) -> str:
    rate = "none" if knee.at is None else load_words(knee.at)
    return "## Numbers\n\n" + markdown_table(["", "value"], [("knee", rate), *knee_facts(knee)])


def _assumptions(knee: Knee) -> str:
    lines = [f"- {name}: {words}" for name, words in assumptions(knee.scenario, knee.requests).items()]
    if names := estimated(knee.scenario):
        lines.append(f"- **Part of this answer rests on estimated coefficients: {', '.join(names)}.**")
    lines.append(f"- scenario sha256: `{knee.scenario.sha256}`")
    return "## Assumptions\n\n" + "\n".join(lines)


def _point_row(point: Point) -> dict[str, Any]:
    summary = point.summary
    row: dict[str, Any] = {**point.loads, "stable": point.stable, "passes": point.passes}
    row |= {key: summary["requests"].get(key) for key in ("offered", "completed")}
    row |= {key: summary.get(key) for key in ("request_throughput", "output_throughput", "goodput_fraction")}
    for latency in POINT_LATENCIES:
        for statistic in POINT_STATISTICS:
            row[f"{latency.removesuffix('_s')}_{statistic}_s"] = summary.get(latency, {}).get(statistic)
    cache = summary.get("kv_cache", {})
    return row | {f"kv_{key}": cache.get(key) for key in ("usage_mean", "usage_max")}
