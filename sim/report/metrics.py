"""A run as a server's dashboard sees it: vLLM's Prometheus metrics, scraped at even intervals.

Everything is read off the records after the run. Gauges are of the instant; counters, and the sums and
counts of histograms, grow from 0 at the start. Names are those of the text that vLLM's ``/metrics``
serves, where a counter's name ends in ``_total``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sim.clock import TICK_S
from sim.faults import InputFault
from sim.files import write_whole
from sim.results import Result
from sim.results.phases import DECODE, Phases, phases_of
from sim.results.requests import RequestTable
from sim.results.steps import StepLog
from sim.simulation import Run
from sim.simulation.recorder import COMPLETED, DECODING_AGAIN, PREEMPTED

SCRAPE_INTERVAL_S = 1.0
MOST_ROWS = 1_000_000
_ROWS_AT_A_TIME = 1 << 12

Columns = dict[str, np.ndarray]


def write_metrics(result: Result, directory: Path, interval_s: float = SCRAPE_INTERVAL_S) -> Path:
    """Write metrics.csv into *directory*, a row every *interval_s*; returns its path.

    Raises `InputFault` where that makes more than `MOST_ROWS` rows, or the place cannot be written.
    """
    at_s = scrapes_s(result.run, interval_s)
    return write_whole(directory / "metrics.csv", _csv({"time_s": at_s, **metrics_at(result.run, at_s)}))


def check_interval(interval_s: float) -> None:
    """Raises `InputFault` where *interval_s* is no time between two scrapes."""
    if not 0 < interval_s < math.inf:
        raise InputFault(f"--scrape-interval must be a finite number of seconds > 0 (got {interval_s:g})")


def scrapes_s(run: Run, interval_s: float = SCRAPE_INTERVAL_S) -> np.ndarray:
    """Instants from 0 in steps of *interval_s* (s), until everything has ended."""
    check_interval(interval_s)
    ends_s = (run.recorder.column("finish_s"), run.recorder.column("end_s"))
    rows = math.ceil(max(float(np.nanmax(s, initial=0.0)) for s in ends_s) / interval_s) + 1
    if rows > MOST_ROWS:
        raise InputFault(
            f"metrics.csv would have {rows:,} rows at --scrape-interval {interval_s:g}; "
            f"at {interval_s * rows / MOST_ROWS:.2g} s or more it has at most {MOST_ROWS:,}"
        )
    return np.arange(rows) * interval_s


def metrics_at(run: Run, at_s: np.ndarray) -> Columns:
    """Each metric, by its name, at the instants *at_s*."""
    phases = phases_of(run)
    table = RequestTable.of(run)
    return {
        **_gauges(run, table.log, phases, at_s),
        **_counters(table, at_s),
        **(_prefix_cache(run, at_s) if run.scenario.engine["enable_prefix_caching"] else {}),
        **_tokens(table, phases, at_s),
        **_latencies(table, at_s),
    }


def _gauges(run: Run, log: StepLog, phases: Phases, at_s: np.ndarray) -> Columns:
    def inside(which: np.ndarray) -> np.ndarray:
        return _count(phases.start_s[which], at_s) - _count(phases.end_s[which], at_s)

    return {
        "vllm:num_requests_running": inside(phases.running),
        "vllm:num_requests_waiting": inside(phases.waiting),
        "vllm:kv_cache_usage_perc": _blocks(log, at_s) / run.scheduler.num_blocks,
    }


def _blocks(log: StepLog, at_s: np.ndarray) -> np.ndarray:
    """KV blocks in use: as logged in a row's first and last iteration, growing evenly between; else 0."""
    if not log.recorder.num_rows:
        return np.zeros(len(at_s))
    row, done, _ = _ended(log, at_s)
    first = log.recorder.column("blocks_first")[row].astype(np.int64)
    grown = log.recorder.column("blocks_last")[row] - first
    blocks = first + grown * done // np.maximum(log.iterations[row] - 1, 1)
    return np.where((row >= 0) & (at_s < log.end_s[row]), blocks, 0)


def _counters(table: RequestTable, at_s: np.ndarray) -> Columns:
    recorder = table.run.recorder
    first_token_s, turn_s = recorder.column("first_token_s"), recorder.column("turn_s")
    return {
        "vllm:num_preemptions_total": _count(turn_s[recorder.column("turn_to") == PREEMPTED], at_s),
        "vllm:prompt_tokens_total": _sum(first_token_s, table.run.requests.prompt_tokens, at_s),
        "vllm:request_success_total": _count(table.finish_s[table.completed], at_s),
    }


def _prefix_cache(run: Run, at_s: np.ndarray) -> Columns:
    """Tokens of prompts that were looked up in the prefix cache, and found, when first scheduled."""
    recorder = run.recorder
    when_s = recorder.column("first_scheduled_s")
    return {
        "vllm:prefix_cache_queries_total": _sum(when_s, run.requests.prompt_tokens, at_s),
        "vllm:prefix_cache_hits_total": _sum(when_s, recorder.column("cached_tokens").astype(np.int64), at_s),
    }


def _tokens(table: RequestTable, phases: Phases, at_s: np.ndarray) -> Columns:
    """Tokens of answers, and the gaps between them.

    A request that decodes has a token at the end of every iteration; one that is given up loses the
    token of the iteration in progress.
    """
    recorder, log = table.run.recorder, table.log
    decode = phases.among(DECODE)
    start_s, end_s = phases.start_s[decode], phases.end_s[decode]
    request = phases.request[decode]
    given_up = (table.status[request] != COMPLETED) & (end_s == table.finish_s[request])
    begun, _ = _iterations(log, start_s)
    made, last_s = _iterations(log, np.where(given_up, end_s - TICK_S, end_s))
    so_far, so_far_s = _iterations(log, at_s)

    open_now = _count(start_s, at_s) - _count(end_s, at_s)
    gaps = open_now * so_far + _sum(end_s, made, at_s) - _sum(start_s, begun, at_s)
    gaps_s = open_now * so_far_s + _sum(end_s, last_s, at_s) - _sum(start_s, start_s, at_s)

    again_s = recorder.column("turn_s")[recorder.column("turn_to") == DECODING_AGAIN]
    gaps += _count(again_s, at_s)
    gaps_s += _sum(again_s, recorder.column("gap_s"), at_s)  # gaps and turns are logged together
    first_tokens = _count(recorder.column("first_token_s"), at_s)
    return {
        "vllm:generation_tokens_total": first_tokens + gaps,
        "vllm:inter_token_latency_seconds_sum": gaps_s,
        "vllm:inter_token_latency_seconds_count": gaps,
    }


def _latencies(table: RequestTable, at_s: np.ndarray) -> Columns:
    """Latencies of requests: the first token's is known when it comes, all others at the end."""
    recorder, done = table.run.recorder, table.completed
    first_token_s, finish_s = recorder.column("first_token_s"), table.finish_s[done]
    prefill_s = first_token_s - recorder.column("first_scheduled_s")
    came = np.isfinite(first_token_s)
    observed = {
        "time_to_first_token_seconds": (first_token_s[came], table.ttft_s[came]),
        "request_time_per_output_token_seconds": (finish_s, np.nan_to_num(table.tpot_s[done])),
        "e2e_request_latency_seconds": (finish_s, table.e2e_s[done]),
        "request_queue_time_seconds": (finish_s, table.queue_s[done]),
        "request_prefill_time_seconds": (finish_s, prefill_s[done]),
        "request_decode_time_seconds": (finish_s, finish_s - first_token_s[done]),
    }
    columns = {}
    for name, (when_s, seconds) in observed.items():
        columns[f"vllm:{name}_sum"] = _sum(when_s, seconds, at_s)
        columns[f"vllm:{name}_count"] = _count(when_s, at_s)
    return columns


# -- sums up to an instant -----------------------------------------------------------------------------


def _count(when_s: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """How many of *when_s* (NaN: never) lie at or before each of *at_s*."""
    return np.searchsorted(np.sort(when_s[np.isfinite(when_s)]), at_s, "right")


def _sum(when_s: np.ndarray, values: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """The sum of *values* whose *when_s* (NaN: never) lies at or before each of *at_s*."""
    order = np.argsort(when_s, kind="stable")  # NaN last, and beyond every count
    total = np.append(0, np.cumsum(values[order]))
    return total[_count(when_s, at_s)]


def _iterations(log: StepLog, at_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many iterations had ended by each of *at_s*, and when the last of them did (0: none had), in s."""
    if not log.recorder.num_rows:
        return np.zeros(len(at_s), dtype=np.int64), np.zeros(len(at_s))
    row, done, last_s = _ended(log, at_s)
    before = np.append(0, np.cumsum(log.iterations, dtype=np.int64))
    return before[np.maximum(row, 0)] + done, last_s


def _ended(log: StepLog, at_s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row that had begun last by each of *at_s*, how many of its iterations had ended, and when the last.

    That is the row's start where none had; before the first row, row -1 with nothing ended.
    """
    row = np.searchsorted(log.start_s, at_s, "right") - 1
    start_s, end_s, count = log.start_s[row], log.end_s[row], log.iterations[row].astype(np.int64)
    done = np.where((row >= 0) & (at_s >= end_s), count, 0)
    last_s = np.where(done > 0, end_s, np.where(row >= 0, start_s, 0.0))
    within = np.flatnonzero((row >= 0) & (at_s < end_s) & (count > 1))
    if len(within):
        done[within] = found = _reached(log, row[within], at_s[within] - start_s[within])
        some = within[found > 0]
        last_s[some] = start_s[some] + log.elapsed_s(row[some], done[some])
    return row, done, last_s


def _reached(log: StepLog, row: np.ndarray, elapsed_s: np.ndarray) -> np.ndarray:
    """How many iterations of each row end within *elapsed_s* of its start; not all of them do."""
    low, high = np.zeros(len(row), dtype=np.int64), log.iterations[row].astype(np.int64) - 1
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = log.elapsed_s(row, middle) <= elapsed_s
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


# -- the file --------------------------------------------------------------------------------------------


def _csv(columns: Columns) -> Iterator[bytes]:
    """Whole numbers as they are, others to a microsecond (or a millionth)."""
    yield (",".join(columns) + "\n").encode()
    form = ",".join("{}" if values.dtype.kind in "iu" else "{:.6f}" for values in columns.values()) + "\n"
    for first in range(0, len(columns["time_s"]), _ROWS_AT_A_TIME):
        part = slice(first, first + _ROWS_AT_A_TIME)
        rows = zip(*(values[part].tolist() for values in columns.values()), strict=True)
        yield "".join(form.format(*row) for row in rows).encode()
