"""What a run's KV cache held: use of the pool, waste, and what the prefix cache found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sim.results.requests import RequestTable
from sim.results.statistics import Peak
from sim.results.steps import Totals
from sim.serving.reservation import Reservation
from sim.serving.static import StaticScheduler
from sim.simulation import Run


class KvCache:
    """Answers about the KV cache of *run*, from tables of its requests."""

    def __init__(self, run: Run) -> None:
        self.run = run
        contiguous = run.scenario.engine["kv_layout"] == "contiguous"
        self.reservation: Reservation | None = getattr(run.scheduler, "reservation", None)
        self.reservation = self.reservation if contiguous else None
        self.reserved = Peak()
        self.reserved_block_s = 0.0
        self.live_token_s = 0.0
        self.queried_tokens = self.hit_tokens = 0

    def add(self, table: RequestTable) -> None:
        """Add the requests of *table*."""
        prompt_tokens = table.run.requests.prompt_tokens
        for request, of in _attempts(table):
            self.queried_tokens += int(prompt_tokens[request][np.isfinite(of("first_scheduled_s"))].sum())
            self.hit_tokens += int(of("cached_tokens").sum(dtype=np.int64))
        if self.reservation is not None:
            self._reserve(table, self.reservation)
        elif isinstance(self.run.scheduler, StaticScheduler):
            self.live_token_s += _live_token_s(table)

    def _reserve(self, table: RequestTable, reservation: Reservation) -> None:
        """Blocks that contiguous reservations held.

        Where all of a request's context is set aside nobody is preempted, so it holds from its first
        schedule to its end; for a client who left without a word, until the engine knows. Whoever ends at an
        instant ends before others begin.
        """
        tried = list(_attempts(table))
        begin_s = np.concatenate([of("first_scheduled_s") for _, of in tried])
        end_s = np.concatenate([_held_until_s(table, of) for _, of in tried])
        prompt_tokens = table.run.requests.prompt_tokens[np.concatenate([request for request, _ in tried])]
        ran = np.isfinite(begin_s)
        tokens = np.minimum(prompt_tokens + reservation.output_tokens, reservation.longest_tokens)
        blocks = -(-tokens[ran] // reservation.block_size)
        self.reserved.add(begin_s[ran], end_s[ran], blocks, table.run.recorder.settled_s)
        self.reserved_block_s += float(blocks @ (end_s - begin_s)[ran])

    def use(self, totals: Totals) -> dict[str, Any]:
        """Use of the pool while iterations run, whose *totals* are given."""
        run = self.run
        usable, size = run.scheduler.num_blocks, run.ledger.block_size
        block_s, most_blocks = totals.block_s, totals.most_blocks
        held_block_s, held_token_s = totals.held_block_s, totals.held_token_s
        if self.reservation is not None:
            block_s, most_blocks = self.reserved_block_s, self.reserved.most
            held_block_s, held_token_s = block_s, totals.context_s
        elif isinstance(run.scheduler, StaticScheduler):
            held_token_s = self.live_token_s
        return {
            "num_gpu_blocks": run.ledger.num_gpu_blocks,
            "block_size": size,
            "capacity_tokens": usable * size,
            "usage_mean": block_s / totals.busy_s / usable if totals.busy_s else 0.0,
            "usage_max": most_blocks / usable,
            **_wasted(run, held_token_s, held_block_s * size),
        }

    def prefix_cache(self) -> dict[str, Any]:
        """Tokens found in the prefix cache when requests were first scheduled, of all that they asked for.

        As vLLM's counters have it: what a preempted request finds when it comes back counts in neither.
        """
        names = ("prefix_cache_hit_rate", "prefix_cache_hit_tokens", "prefix_cache_evicted_blocks")
        caching, queried, hit = self.run.scheduler.caching, self.queried_tokens, self.hit_tokens
        if caching is None:
            return {names[0]: None, "prefix_cache_reason": "prefix caching is off"}
        values = (hit / queried if queried else None, hit, caching.blocks.evicted_blocks)
        reason = {} if queried else {"prefix_cache_reason": "no request was scheduled"}
        return dict(zip(names, values, strict=True)) | reason

    def found_again(self) -> int:
        """Tokens that preempted requests found in the prefix cache when they came back."""
        caching = self.run.scheduler.caching
        return 0 if caching is None else caching.cached_tokens - self.hit_tokens


def _attempts(table: RequestTable) -> Iterator[tuple[np.ndarray, Callable[[str], np.ndarray]]]:
    """The last attempts of the requests, then those that failed: whose, and columns of them by name."""
    recorder = table.run.recorder
    yield np.arange(len(table)), recorder.column
    request = recorder.column("attempt_request")
    if len(request):
        yield request, lambda name: recorder.column(f"attempt_{name}")


def _held_until_s(table: RequestTable, of: Callable[[str], np.ndarray]) -> np.ndarray:
    """When the engine was done with each of these attempts."""
    finish_s = of("finish_s")
    if table.run.recorder.released_s is None:
        return finish_s
    released_s = of("released_s")
    return np.where(np.isnan(released_s), finish_s, released_s)


def _wasted(run: Run, held_token_s: float, room_token_s: float) -> dict[str, Any]:
    """The share of the blocks held by decodes that no token is in."""
    if run.requests.contents is not None and run.scheduler.caching is not None:
        return {
            "wasted_fraction": None,
            "wasted_reason": "blocks are shared, so tokens are in several contexts",
        }
    return {"wasted_fraction": max(0.0, 1.0 - held_token_s / room_token_s) if room_token_s else None}


def _live_token_s(table: RequestTable) -> float:
    """Tokens times seconds of those who still get some, without padding; contexts grow evenly."""
    requests, recorder = table.run.requests, table.run.recorder
    decoding_s = recorder.column("finish_s") - recorder.column("first_token_s")
    context_tokens = requests.prompt_tokens + table.got_tokens / 2.0
    return float(np.nansum(decoding_s * context_tokens))
