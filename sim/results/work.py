"""What a run computed and how busy it was: totals, use of the GPU, what held up the queue, conservation."""

from __future__ import annotations

from typing import Any

from sim.results.requests import RequestTable
from sim.results.steps import Totals
from sim.serving.scheduler import HELD_BY
from sim.simulation import Run


class Work:
    """Answers about the work of a run, from tables of its requests."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.first_send_s, self.last_finish_s, self.last_step_s = float("inf"), 0.0, 0.0
        self.done = self.prompt_tokens = self.output_tokens = 0  # of the completed
        self.got_tokens = 0  # by every client, in failed attempts too
        self.gaps = 0  # between the tokens of those that are measured

    def add(self, table: RequestTable) -> None:
        """Add the requests of *table*, and the steps that are in no other."""
        requests, log, done = table.run.requests, table.log, table.completed
        for rows in log.parts():
            self.totals.add(rows)
        if len(log.end_s):
            self.last_step_s = float(log.end_s[-1])
        if len(table):
            self.first_send_s = min(self.first_send_s, float(requests.arrival_s.min()))
        self.last_finish_s = max(self.last_finish_s, float(table.finish_s[done].max(initial=0.0)))
        self.done += int(done.sum())
        self.prompt_tokens += int(requests.prompt_tokens[done].sum())
        self.output_tokens += int(requests.output_tokens[done].sum())
        self.got_tokens += int(table.got_tokens.sum())
        self.got_tokens += int(table.run.recorder.column("attempt_tokens").sum())
        self.gaps += int((requests.output_tokens[table.measured] - 1).sum())

    def makespan(self) -> dict[str, Any]:
        """Totals over the time from the first send to the last completion, as load generators print them."""
        names = ("duration_s", "request_throughput", "output_throughput", "total_token_throughput")
        if not self.done:
            return {**dict.fromkeys(names), "reason": "no request completed"}
        duration_s = self.last_finish_s - self.first_send_s
        totals = (self.done, self.output_tokens, self.prompt_tokens + self.output_tokens)
        return dict(zip(names, (duration_s, *(total / duration_s for total in totals)), strict=True))

    def utilization(self, run: Run) -> dict[str, Any]:
        """Shares of the span from the first send to the last completion."""
        span_s = self.last_step_s - self.first_send_s
        if not span_s > 0.0:
            return {"busy": None, "mfu": None, "mbu": None, "front_end": None, "reason": "nothing ran"}
        flops, moved = self._operations(run)
        dtype = run.model.weight_dtype(run.scenario.engine["weight_dtype"])
        return {
            "busy": self.totals.busy_s / span_s,
            "mfu": flops / span_s / run.profile.peak_flops(dtype),
            "mbu": moved / span_s / run.profile.memory_bandwidth_bytes_per_s,
            "front_end": run.front_end.busy_s / span_s,
        }

    def _operations(self, run: Run) -> tuple[float, float]:
        """Floating-point operations and bytes of *run* on each GPU: linear layers, attention, LM head.

        Bytes are weights once an iteration and the KV cache that decodes read.
        """
        engine, model, totals = run.scenario.engine, run.model, self.totals
        gpus = engine["tensor_parallel_size"]
        linear = sum(n * k for n, k in model.layer_gemms(gpus)) * model.layers
        n, k = model.lm_head_gemm(gpus)
        attention = 4.0 * model.heads_per_gpu(gpus) * model.head_dim * model.layers
        flops = 2.0 * linear * (totals.decoded_tokens + totals.prefill_tokens)
        flops += 2.0 * n * k * float(self.got_tokens) + attention * totals.pairs
        moved = float(totals.iterations) * model.weight_bytes(engine["weight_dtype"], gpus)
        moved += totals.context_tokens * model.kv_bytes_per_token(engine["kv_cache_dtype"], gpus)
        return flops, moved

    def batch_size_mean(self) -> float:
        """Sequences in an iteration, on average over iterations; 0 where nothing ran."""
        return self.totals.sequences / max(self.totals.iterations, 1)

    def binding(self) -> dict[str, Any]:
        """What held up the head of the queue, as shares of busy time; *resource* is the largest of them."""
        busy_s = self.totals.busy_s or 1.0
        shares = {name: float(s) / busy_s for name, s in zip(HELD_BY, self.totals.held_by_s, strict=True)}
        resource = max((name for name in shares if name != "nothing"), key=lambda name: shares[name])
        return {"resource": resource if shares[resource] > 0.01 else "nothing", "shares": shares}

    def tokens_conserved(self, run: Run, gaps: int) -> bool:
        """Whether every token computed is accounted for, and the *gaps* between tokens are all there."""
        scheduler = run.scheduler
        scheduled = self.totals.decoded_tokens + self.totals.prefill_tokens
        kept = self.prompt_tokens + self.output_tokens - self.done
        lost = scheduler.discarded_tokens + run.recorder.abandoned_tokens + scheduler.padded_tokens
        found = 0 if scheduler.caching is None else scheduler.caching.cached_tokens
        return scheduled + found == kept + lost and gaps == self.gaps
