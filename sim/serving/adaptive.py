"""vLLM's threshold on prefill chunks, raised to a fair share of the token budget."""

from __future__ import annotations

from sim.serving.scheduler import Scheduler


class AdaptiveScheduler(Scheduler):
    """A chunk may always be what the budget has for each request that waits or runs."""

    def threshold(self) -> int:
        """The cap on a prefill's tokens in this step, 0 for none."""
        threshold = super().threshold()
        share = self.max_num_batched_tokens // max(len(self.running) + self.num_waiting, 1)
        return max(threshold, share) if threshold else 0
