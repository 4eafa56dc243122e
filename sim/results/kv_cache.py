"""What a run's KV cache held: use of the pool, waste, and what the prefix cache found."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.results.requests import RequestTable
from sim.results.steps import StepLog
from sim.serving.reservation import Reservation
from sim.serving.static import StaticScheduler
from sim.simulation import Run


def kv_cache(run: Run, table: RequestTable, log: StepLog) -> dict[str, Any]:
    """Use of the pool while iterations run."""
    usable, size, totals = run.scheduler.num_blocks, run.ledger.block_size, log.totals
    block_s, most_blocks = totals.block_s, totals.most_blocks
    held_block_s, held_token_s = totals.held_block_s, totals.held_token_s
    reservation = getattr(run.scheduler, "reservation", None)
    if reservation is not None and run.scenario.engine["kv_layout"] == "contiguous":
        block_s, most_blocks = _reserved(run, reservation)
        held_block_s, held_token_s = block_s, totals.context_s
    elif isinstance(run.scheduler, StaticScheduler):
        held_token_s = _live_token_s(table)
    return {
        "num_gpu_blocks": run.ledger.num_gpu_blocks,
        "block_size": size,
        "capacity_tokens": usable * size,
        "usage_mean": block_s / totals.busy_s / usable if totals.busy_s else 0.0,
        "usage_max": most_blocks / usable,
        **_wasted(run, held_token_s, held_block_s * size),
    }


def _wasted(run: Run, held_token_s: float, room_token_s: float) -> dict[str, Any]:
    """The share of the blocks held by decodes that no token is in."""
    if run.requests.contents is not None and run.scheduler.caching is not None:
        return {
            "wasted_fraction": None,
            "wasted_reason": "blocks are shared, so tokens are in several contexts",
        }
    return {"wasted_fraction": max(0.0, 1.0 - held_token_s / room_token_s) if room_token_s else None}


def _reserved(run: Run, reservation: Reservation) -> tuple[float, int]:
    """Blocks times seconds that contiguous reservations held, and the most blocks at one time.

    Where all of a request's context is set aside nobody is preempted, so it holds from its first
    schedule to its end.
    """
    requests, recorder = run.requests, run.recorder
    begin_s, end_s = recorder.column("first_scheduled_s"), recorder.column("finish_s")
    ran = np.isfinite(begin_s)
    tokens = np.minimum(requests.prompt_tokens + reservation.output_tokens, reservation.longest_tokens)
    blocks = -(-tokens[ran] // reservation.block_size)
    # Whoever ends at an instant ends before others begin.
    order = np.argsort(np.concatenate([end_s[ran], begin_s[ran]]), kind="stable")
    held = np.cumsum(np.concatenate([-blocks, blocks])[order])
    return float(blocks @ (end_s - begin_s)[ran]), int(held.max(initial=0))


def _live_token_s(table: RequestTable) -> float:
    """Tokens times seconds of those who still get some, without padding; contexts grow evenly."""
    requests, recorder = table.run.requests, table.run.recorder
    decoding_s = recorder.column("finish_s") - recorder.column("first_token_s")
    context_tokens = requests.prompt_tokens + table.got_tokens / 2.0
    return float(np.nansum(decoding_s * context_tokens))


def prefix_cache(run: Run, table: RequestTable) -> dict[str, Any]:
    """Tokens found in the prefix cache when requests were first scheduled, of all that they asked for.

    As vLLM's counters have it: what a preempted request finds when it comes back counts in neither.
    """
    names = ("prefix_cache_hit_rate", "prefix_cache_hit_tokens", "prefix_cache_evicted_blocks")
    caching = run.scheduler.caching
    if caching is None:
        return {names[0]: None, "prefix_cache_reason": "prefix caching is off"}
    scheduled = np.isfinite(run.recorder.column("first_scheduled_s"))
    queried = int(run.requests.prompt_tokens[scheduled].sum())
    hit = int(run.recorder.column("cached_tokens").sum(dtype=np.int64))
    values = (hit / queried if queried else None, hit, caching.blocks.evicted_blocks)
    reason = {} if queried else {"prefix_cache_reason": "no request was scheduled"}
    return dict(zip(names, values, strict=True)) | reason


def found_again(run: Run) -> int:
    """Tokens that preempted requests found in the prefix cache when they came back."""
    if run.scheduler.caching is None:
        return 0
    return run.scheduler.caching.cached_tokens - int(run.recorder.column("cached_tokens").sum(dtype=np.int64))
