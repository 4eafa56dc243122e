"""The event loops of replicas whose answers stand still while prompts are computed."""

from __future__ import annotations

from typing import Any

from sim.serving.prefill_first import PrefillFirstScheduler
from sim.serving.sequence import DECODE, Sequence
from sim.simulation.pipelined import PipelinedReplica
from sim.simulation.replica import Replica


class PrefillFirstReplica(Replica):
    """One engine with steps of prompts and steps of decodes, in simulated time.

    A decode that stood still has a gap from its last token to the end of the next step of decodes, which
    is therefore a row of its own (`PrefillFirstScheduler.resuming`).
    """

    scheduler: PrefillFirstScheduler  # no slots: two bases with slots of their own have no common heir

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._standing: list[Sequence] = []  # stood still until the step of decodes in progress

    def _mixed_step(self, now: float) -> float:
        """Whoever decodes has got its last token for some time *now*."""
        if self._composing:
            self._close(now)
        for sequence in self.scheduler.running:
            if sequence.state == DECODE and sequence.gap_since_s < 0.0:
                self.recorder.stretch(sequence.index, sequence.first_row)
                sequence.gap_since_s = now
        return super()._mixed_step(now)

    def _begin(self, now: float) -> float:
        end_s = super()._begin(now)
        if self.scheduler.resuming:
            self._standing = [s for s in self.scheduler.running if s.gap_since_s >= 0.0]
        return end_s

    def _close(self, now: float) -> None:
        """Write the row of the composition that ends *now*; who stood still has its token."""
        super()._close(now)
        standing, self._standing = self._standing, []
        for sequence in standing:
            self.recorder.gap(sequence.index, now - sequence.gap_since_s)
            sequence.gap_since_s = -1.0
            sequence.first_row = self.recorder.num_rows


class PipelinedPrefillFirstReplica(PrefillFirstReplica, PipelinedReplica):
    """Such an engine that schedules asynchronously."""

    scheduler: PrefillFirstScheduler
