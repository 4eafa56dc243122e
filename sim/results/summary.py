"""The summary of a run: every key of ``kneesim run --json``."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sim.results.kv_cache import KvCache
from sim.results.occupancy import Occupancy
from sim.results.records import Records
from sim.results.traffic import ByClass, Traffic, add_table
from sim.results.warnings import warnings_of
from sim.results.windows import windows
from sim.results.work import Work
from sim.simulation import Run
from sim.version import __version__

_OVERLOADED = "the queue grows: about how far the load exceeds what is served, and no error of the run"


def summarise(records: Records) -> dict[str, Any]:
    """Everything that a run answers, as one document without NaN (see contract: run --json)."""
    run, window = records.run, records.window
    everybody, by_class = Traffic(run.scenario.slo, window), ByClass(run, window)
    occupancy, cache, work = Occupancy(run, window), KvCache(run), Work()
    for table in records:
        add_table(table, [(everybody, slice(None)), *by_class.groups(table)])
        for answers in (occupancy, cache, work):
            answers.add(table)
    stable, slope = occupancy.stability(records)
    rates, makespan, latencies = everybody.throughputs(), work.makespan(), everybody.latencies()
    counted = {"requests": everybody.counts(), **latencies}
    by_window = windows(records)
    return {
        "kneesim": {
            "version": __version__,
            "profile": run.profile.name,
            "profile_sha256": _sha256(run.scenario.hardware),
            "scenario_sha256": run.scenario.sha256,
        },
        "scenario": run.scenario.resolved(),
        "seed": run.scenario.run["seed"],
        "window": {"start_s": window[0], "end_s": window[1], "requests": everybody.offered},
        "requests": counted["requests"],
        **rates,
        "makespan": makespan,
        **everybody.goodput(everybody.offered),
        **by_window,
        **latencies,
        "stable": stable,
        "queue_growth_per_s": slope,
        "kv_cache": cache.use(work.totals),
        "utilization": work.utilization(run),
        "batch_size_mean": work.batch_size_mean(),
        **occupancy.concurrency(),
        "preemptions": run.scheduler.preemptions,
        "recomputed_tokens": run.scheduler.discarded_tokens - cache.found_again(),
        "padded_tokens": run.scheduler.padded_tokens,
        "idle_slot_steps": run.scheduler.idle_slot_steps,
        **cache.prefix_cache(),
        "binding": work.binding(),
        "cost": _cost(run, rates, makespan, stable),
        "by_class": by_class.answers(everybody.offered) or {"default": counted},
        "checks": _checks(run, occupancy, work, latencies["itl_s"]["n"], stable),
        "warnings": warnings_of(run, stable, bool(by_window)),
        "simulator": {
            "wall_s": run.wall_s,
            "requests_per_s": len(records) / run.wall_s,
            "iterations": work.totals.iterations,
            "events": run.events,
        },
    }


def _sha256(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


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


def _checks(run: Run, occupancy: Occupancy, work: Work, gaps: int, stable: bool) -> dict[str, Any]:
    """Laws that every run must obey; see the fields' tests."""
    scheduler = run.scheduler
    overload = {} if stable else {"littles_law_reason": _OVERLOADED}
    return {
        "littles_law_relative_error": occupancy.littles_law_error(),
        **overload,
        "blocks_conserved": scheduler.free_blocks == scheduler.num_blocks and not scheduler.running,
        "tokens_conserved": work.tokens_conserved(run, gaps),
    }
