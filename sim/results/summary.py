"""The summary of a run: every key of ``kneesim run --json``."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

import numpy as np

from sim.results.kv_cache import found_again, kv_cache, prefix_cache
from sim.results.requests import RequestTable
from sim.results.statistics import PERCENTILES, describe, growth
from sim.results.steps import StepLog
from sim.results.windows import windows
from sim.serving.scheduler import HELD_BY
from sim.serving.static import StaticScheduler
from sim.simulation import Run
from sim.simulation.recorder import NEVER_SCHEDULABLE, REJECTED, STATUS, TIMED_OUT
from sim.version import __version__

_NOBODY = "no request that arrived in the window completed"
_ONE_TOKEN = "not defined: every measured answer has one token"
_NO_WINDOW = "the window has no length (a burst, or all warm-up): judge this run by makespan"
_OVERLOADED = "the queue grows: about how far the load exceeds what is served, and no error of the run"
_NOTES = {
    "zero_output_dropped": "{} rows of the trace without an answer were left out",
    "trace_rows_sorted": "{} rows of the trace were not in order of time, and were sorted",
    "trace_repeated": "the trace was sent {} times over, one after the other",
    "trace_rows_resampled": "{} requests have the lengths of rows drawn again from the trace",
    "prompt_tokens_seen_before": "{} prompt tokens begin a prompt as an earlier request has them: the most "
    "that prefix caching could save",
    "requests_beyond_trace": "{} requests of run.requests were not sent: the trace has no more rows",
    "output_capped": "{} answers end at admission.max_output_tokens",
    "output_cut_at_max_model_len": "{} answers end at max_model_len",
}
_BETWEEN_TOKENS = ("tpot", "itl", "stall")
_LATENCIES = ("ttft", "server_ttft", "queue", "tpot", "stall", "e2e")


def summarise(run: Run, table: RequestTable, log: StepLog) -> dict[str, Any]:
    """Everything that a run answers, as one document without NaN (see contract: run --json)."""
    everybody = np.ones(len(table), dtype=bool)
    latencies = _latencies(table, log, everybody)
    start_s, end_s = table.window
    stable, slope = _stability(table)
    counts = _counts(table, everybody)
    rates, makespan = _rates(run, table), _makespan(run, table)
    return {
        "kneesim": {
            "version": __version__,
            "profile": run.profile.name,
            "profile_sha256": _sha256(run.scenario.hardware),
            "scenario_sha256": run.scenario.sha256,
        },
        "scenario": run.scenario.resolved(),
        "seed": run.scenario.run["seed"],
        "window": {"start_s": start_s, "end_s": end_s, "requests": int(table.in_window.sum())},
        "requests": counts,
        **rates,
        "makespan": makespan,
        **_goodput(run, table),
        **({} if (by_window := windows(table, log)) is None else {"windows": by_window}),
        **latencies,
        "stable": stable,
        "queue_growth_per_s": slope,
        "kv_cache": kv_cache(run, table, log),
        "utilization": _utilization(run, log, table),
        "batch_size_mean": _batch_size_mean(log),
        **_concurrency(table),
        "preemptions": run.scheduler.preemptions,
        "recomputed_tokens": run.scheduler.discarded_tokens - found_again(run),
        "padded_tokens": run.scheduler.padded_tokens,
        "idle_slot_steps": run.scheduler.idle_slot_steps,
        **prefix_cache(run, table),
        "binding": _binding(log),
        "cost": _cost(run, rates, makespan, stable),
        "by_class": _by_class(table, log, {"requests": counts, **latencies}),
        "checks": _checks(run, table, log, latencies["itl_s"]["n"], stable),
        "warnings": _warnings(run, stable),
        "simulator": {
            "wall_s": run.wall_s,
            "requests_per_s": len(table) / run.wall_s,
            "iterations": log.totals.iterations,
            "events": run.events,
        },
    }


def _sha256(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def _by_class(table: RequestTable, log: StepLog, everybody: dict[str, Any]) -> dict[str, Any]:
    """Counts and latencies of each traffic class; *everybody* is what they are of all requests."""
    if table.run.requests.priorities is None:
        return {"default": everybody}
    classes = table.traffic_class
    masks = {name: classes == name for name in np.unique(classes).tolist()}
    return {
        name: {"requests": _counts(table, mask), **_latencies(table, log, mask)}
        for name, mask in masks.items()
    }


def _latencies(table: RequestTable, log: StepLog, which: np.ndarray) -> dict[str, Any]:
    measured = table.measured & which
    nobody = not measured.any()
    limits = [key.rsplit("_", 2)[:2] for key in table.run.scenario.slo]
    result = {}
    for metric in (*_LATENCIES, "itl"):
        # A limit on another percentile than the usual ones adds it.
        asked = {float(stat[1:]) for name, stat in limits if name == metric and stat.startswith("p")}
        percentiles = (*PERCENTILES, *sorted(asked.difference(PERCENTILES)))
        reason = _NOBODY if nobody or metric not in _BETWEEN_TOKENS else _ONE_TOKEN
        if metric == "itl":
            result["itl_s"] = log.gaps(measured).describe(reason, percentiles)
        else:
            result[f"{metric}_s"] = describe(table.values(metric, measured), reason, percentiles)
    for name in ("prompt_tokens", "output_tokens"):
        result[name] = describe(getattr(table.run.requests, name)[measured], _NOBODY)
    return result


def _counts(table: RequestTable, which: np.ndarray) -> dict[str, int]:
    by_status = np.bincount(table.status[which], minlength=len(STATUS)).tolist()
    names = ("completed", "rejected", "timed_out", "cancelled", "never_schedulable", "unfinished")
    return {
        "offered": int(which.sum()),
        **{name: by_status[STATUS.index(name)] for name in names},
        "retries": 0,
    }


def _rates(run: Run, table: RequestTable) -> dict[str, Any]:
    """What completed in the window, per second of it."""
    start_s, end_s = table.window
    names = ("request_throughput", "output_throughput", "total_token_throughput", "useful_output_throughput")
    if end_s <= start_s:
        return {**dict.fromkeys(names), "throughput_reason": _NO_WINDOW}
    ended = (table.finish_s > start_s) & (table.finish_s <= end_s)
    done = ended & table.completed
    output, useful = int(table.got_tokens[ended].sum()), int(table.got_tokens[done].sum())
    prompt = int(run.requests.prompt_tokens[done].sum())
    counts = (int(done.sum()), output, prompt + output, useful)
    return {name: count / (end_s - start_s) for name, count in zip(names, counts, strict=True)}


def _makespan(run: Run, table: RequestTable) -> dict[str, Any]:
    """Totals over the time from the first send to the last completion, as load generators print them."""
    done = table.completed
    names = ("duration_s", "request_throughput", "output_throughput", "total_token_throughput")
    if not done.any():
        return {**dict.fromkeys(names), "reason": "no request completed"}
    duration_s = float(table.finish_s[done].max() - run.requests.arrival_s[0])
    output = int(run.requests.output_tokens[done].sum())
    prompt = int(run.requests.prompt_tokens[done].sum())
    totals = (int(done.sum()), output, prompt + output)
    return dict(zip(names, (duration_s, *(total / duration_s for total in totals)), strict=True))


def _goodput(run: Run, table: RequestTable) -> dict[str, Any]:
    """Requests for which every limit's value holds, of all that were offered in the window."""
    limits = run.scenario.slo
    if not limits:
        return {"request_goodput": None, "goodput_fraction": None, "goodput_reason": "no limits in slo"}
    good = table.measured.copy()
    for key, limit_s in limits.items():
        metric = key.rsplit("_", 2)[0]
        values = getattr(table, f"{'stall' if metric == 'itl' else metric}_s")
        good &= ~(values > limit_s)  # undefined (one token) is not above the limit
    offered, count = int(table.in_window.sum()), int(good.sum())
    start_s, end_s = table.window
    fraction = count / offered if offered else None
    if fraction is None or end_s <= start_s:
        return {"request_goodput": None, "goodput_fraction": fraction, "goodput_reason": _NO_WINDOW}
    # n arrivals, the window's first and last among them, are n - 1 gaps apart.
    rate = fraction * (offered - 1) / (end_s - start_s)
    return {"request_goodput": rate, "goodput_fraction": fraction}


def _stability(table: RequestTable) -> tuple[bool, float]:
    """Whether the load can go on for ever, and how fast the requests in the system grow, per s.

    Unstable is a queue that grows over the window, or a system that does so once it has had time to fill:
    from three median stays on, if a third of the window is left. So a batch that still fills up is no
    growth. Users who wait for their answers cannot grow in number without end, nor can a queue whose limit
    somebody has met.
    """
    (start_s, end_s), run = table.window, table.run
    begin_s, leave_s = _inside(table)
    slope, _ = growth(begin_s, leave_s, (start_s, end_s))
    met = run.scenario.has_queue_limit and np.isin(table.status, (REJECTED, TIMED_OUT)).any()
    if met or "concurrency" in run.scenario.load:
        return True, slope
    scheduled_s = run.recorder.column("first_scheduled_s")
    left_s = np.where(np.isnan(scheduled_s), table.finish_s, scheduled_s)
    left_s = np.where(np.isnan(left_s), np.inf, left_s)
    waiting, queue_grows = growth(run.requests.arrival_s, left_s, (start_s, end_s))
    if queue_grows:
        return False, max(slope, waiting)
    stay_s = (leave_s - begin_s)[begin_s >= start_s]
    filled_s = max(start_s, float(begin_s[0]) + 3.0 * float(np.median(stay_s))) if len(stay_s) else end_s
    if end_s - filled_s < (end_s - start_s) / 3:
        return True, slope
    slope, grows = growth(begin_s, leave_s, (filled_s, end_s))
    return not grows, slope


def _utilization(run: Run, log: StepLog, table: RequestTable) -> dict[str, Any]:
    """Shares of the span from the first send to the last completion."""
    last_s = float(log.end_s[-1]) if len(log.end_s) else 0.0
    span_s = last_s - float(run.requests.arrival_s[0]) if len(table) else 0.0
    if span_s <= 0.0:
        return {"busy": None, "mfu": None, "mbu": None, "front_end": None, "reason": "nothing ran"}
    flops, moved = _work(run, log, table)
    dtype = run.model.weight_dtype(run.scenario.engine["weight_dtype"])
    return {
        "busy": log.totals.busy_s / span_s,
        "mfu": flops / span_s / run.profile.peak_flops(dtype),
        "mbu": moved / span_s / run.profile.memory_bandwidth_bytes_per_s,
        "front_end": run.front_end.busy_s / span_s,
    }


def _work(run: Run, log: StepLog, table: RequestTable) -> tuple[float, float]:
    """Floating-point operations and bytes of the whole run on each GPU: linear layers, attention, LM head.

    Bytes are weights once an iteration and the KV cache that decodes read.
    """
    engine, model, totals = run.scenario.engine, run.model, log.totals
    gpus = engine["tensor_parallel_size"]
    linear = sum(n * k for n, k in model.layer_gemms(gpus)) * model.layers
    n, k = model.lm_head_gemm(gpus)
    attention = 4.0 * model.heads_per_gpu(gpus) * model.head_dim * model.layers
    flops = 2.0 * linear * (totals.decoded_tokens + totals.prefill_tokens)
    flops += 2.0 * n * k * float(table.got_tokens.sum()) + attention * totals.pairs
    moved = float(totals.iterations) * model.weight_bytes(engine["weight_dtype"], gpus)
    moved += totals.context_tokens * model.kv_bytes_per_token(engine["kv_cache_dtype"], gpus)
    return flops, moved


def _batch_size_mean(log: StepLog) -> float:
    """Sequences in an iteration, on average over iterations; 0 where nothing ran."""
    return log.totals.sequences / max(log.totals.iterations, 1)


def _inside(table: RequestTable) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals and departures of the requests that were let in, each in order, in s."""
    let_in = ~np.isin(table.status, (REJECTED, NEVER_SCHEDULABLE))
    leave_s = np.where(np.isnan(table.finish_s), np.inf, table.finish_s)[let_in]
    return table.run.requests.arrival_s[let_in], leave_s


def _concurrency(table: RequestTable) -> dict[str, Any]:
    """Requests in the system over the window (over all the time for a burst)."""
    arrival_s, leave_s = _inside(table)
    if not len(arrival_s):
        return {"concurrency_mean": 0.0, "concurrency_max": 0}
    start_s, end_s = table.window
    end_s = end_s if end_s > start_s else float(leave_s.max())
    inside = np.minimum(leave_s, end_s) - np.clip(arrival_s, start_s, end_s)
    span_s = end_s - start_s
    # Who leaves at an arrival's instant still counts, but for users, who send what they send upon that.
    side: Literal["left", "right"] = "right" if "concurrency" in table.run.scenario.load else "left"
    left = np.searchsorted(np.sort(leave_s), arrival_s, side)
    return {
        "concurrency_mean": float(inside[inside > 0].sum()) / span_s if span_s else None,
        "concurrency_max": int((np.arange(1, len(arrival_s) + 1) - left).max()),
    }


def _binding(log: StepLog) -> dict[str, Any]:
    """What held up the head of the queue, as shares of busy time; *resource* is the largest of them."""
    busy_s = log.totals.busy_s or 1.0
    shares = {name: float(s) / busy_s for name, s in zip(HELD_BY, log.totals.held_by_s, strict=True)}
    resource = max((name for name in shares if name != "nothing"), key=lambda name: shares[name])
    return {"resource": resource if shares[resource] > 0.01 else "nothing", "shares": shares}


def _cost(run: Run, rates: dict[str, Any], makespan: dict[str, Any], stable: bool) -> dict[str, Any]:
    """Price of a million tokens at this load, all GPUs of the replica paid for.

    By what completed in the window; where the queue grows that is the filling of the batch, and the
    makespan's rates are taken if they are higher.
    """
    usd_per_s = run.scenario.cost["gpu_hour_usd"] * run.scenario.engine["tensor_parallel_size"] / 3600.0
    names = {
        "usd_per_1m_output_tokens": "output_throughput",
        "usd_per_1m_total_tokens": "total_token_throughput",
    }
    cost: dict[str, Any] = {}
    for name, rate in names.items():
        quoted = rates[rate] or 0.0
        if not (stable and quoted):
            quoted = max(quoted, makespan[rate] or 0.0)
        cost[name] = usd_per_s * 1e6 / quoted if quoted else None
    return cost if all(cost.values()) else {**cost, "reason": "no request completed"}


def _checks(run: Run, table: RequestTable, log: StepLog, gaps: int, stable: bool) -> dict[str, Any]:
    """Laws that every run must obey; see the fields' tests."""
    scheduler, recorder = run.scheduler, run.recorder
    scheduled = log.totals.decoded_tokens + log.totals.prefill_tokens
    done = table.completed
    kept = int((run.requests.prompt_tokens + run.requests.output_tokens - 1)[done].sum())
    lost = scheduler.discarded_tokens + recorder.abandoned_tokens + scheduler.padded_tokens
    found = 0 if scheduler.caching is None else scheduler.caching.cached_tokens
    measured = table.measured
    expected_gaps = int((run.requests.output_tokens[measured] - 1).sum())
    overload = {} if stable else {"littles_law_reason": _OVERLOADED}
    return {
        "littles_law_relative_error": _littles_law_error(table),
        **overload,
        "blocks_conserved": scheduler.free_blocks == scheduler.num_blocks and not scheduler.running,
        "tokens_conserved": scheduled + found == kept + lost and gaps == expected_gaps,
    }


def _littles_law_error(table: RequestTable) -> float | None:
    """|L - lambda W| / L over the window: requests inside, against those that arrived in it and their stay.

    Small where the run is steady and the window long against a request's stay; large where it is not.
    """
    arrival_s, leave_s = _inside(table)
    start_s, end_s = table.window
    if end_s <= start_s or not len(arrival_s):
        return None
    inside = np.minimum(leave_s, end_s) - np.clip(arrival_s, start_s, end_s)
    held_s = float(inside[inside > 0].sum())
    stay_s = float((leave_s - arrival_s)[arrival_s >= start_s].sum())
    return abs(held_s - stay_s) / held_s if held_s else None


def _warnings(run: Run, stable: bool) -> list[str]:
    """What a reader of the numbers must know."""
    warnings = []
    if run.scheduler.caching is None and run.requests.contents is not None:
        warnings.append("prefix caching is off: prompts that share their beginnings compute it each")
    by_priority = run.scenario.engine["scheduling_policy"] == "priority"
    if by_priority and run.requests.priorities is None:
        warnings.append("engine.scheduling_policy priority has no effect: the workload has no priorities")
    if not by_priority and run.requests.priorities is not None:
        warnings.append("workload.priorities has no effect: engine.scheduling_policy is fcfs")
    if not stable:
        warnings.append(
            "unstable: the queue grows for as long as the load lasts; percentiles depend on the run's length"
        )
    gpus = run.scenario.engine["tensor_parallel_size"]
    if gpus > 1 and run.profile.link.kind == "pcie":
        origin = run.profile.provenance(f"kernels.all_reduce.{gpus}")
        warnings.append(
            f"{gpus} GPUs over PCIe are as fast as the machine's topology lets them; the all-reduce of "
            f"{run.profile.name} is {origin.kind} ({origin.source.strip()})"
        )
    if not run.scenario.engine["cuda_graphs"] and not run.scenario.engine["eager_layer_s"]:
        warnings.append("without CUDA graphs launching takes its time: engine.eager_layer_s is 0")
    if estimated_keys := run.profile.estimated_keys():
        warnings.append(f"estimated, not measured, in {run.profile.name}: {', '.join(estimated_keys)}")
    engine, scheduler = run.scenario.engine, run.scheduler
    origins = engine.get("provenance") or {}
    if estimated := [key for key, origin in origins.items() if origin["kind"] == "estimated"]:
        warnings.append(f"estimated, not measured, in engine {engine.get('name')}: {', '.join(estimated)}")
    if isinstance(scheduler, StaticScheduler) and scheduler.group_size < engine["max_num_seqs"]:
        warnings.append(
            f"groups have at most {scheduler.group_size} requests, not max_num_seqs "
            f"{engine['max_num_seqs']}: the KV cache has no room for more reservations of max_model_len "
            f"{engine['max_model_len']}"
        )
    warnings += [_NOTES.get(note, "{}: " + note).format(f"{n:,}") for note, n in run.requests.notes.items()]
    return warnings
