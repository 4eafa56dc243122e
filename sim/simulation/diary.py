"""What a replica writes down while it runs: a row a batch, first tokens, gaps, and who was sent back."""

from __future__ import annotations

from math import isnan

from sim.serving.queue_rules import QueueRules
from sim.serving.scheduler import Scheduler
from sim.serving.sequence import DONE, PREFILL, Sequence
from sim.serving.static import StaticScheduler
from sim.simulation.clockwork import Clockwork
from sim.simulation.recorder import DECODING_AGAIN, PREEMPTED, RESUMED, Recorder, pack_step


class Diary:
    """The records of one replica's iterations, from what its scheduler has formed."""

    __slots__ = (
        "_aborted",
        "_batch",
        "_blocks_first",
        "_composing",
        "_context_tokens",
        "_decodes",
        "_done",
        "_held_by",
        "_sent_back",
        "in_lobby",
        "queue_rules",
        "recorder",
        "scheduler",
        "step_time",
    )

    def __init__(
        self,
        scheduler: Scheduler | StaticScheduler,
        step_time: Clockwork,
        recorder: Recorder,
        queue_rules: QueueRules | None,
    ) -> None:
        self.scheduler = scheduler
        self.step_time = step_time
        self.recorder = recorder
        self.queue_rules = queue_rules
        self.in_lobby = 0  # sequences that the engine has not looked at yet (see `pipelined`)
        self._batch = step_time.composition()
        self._composing = False  # the same sequences decode, iteration after iteration
        self._done = 0  # iterations of the batch before those in progress
        self._decodes = 0
        self._context_tokens = 0
        self._blocks_first = 0
        self._held_by = 0
        self._aborted: list[Sequence] = []
        self._sent_back: set[int] = set()  # requests that were preempted and are not scheduled again yet

    def _open(self, now: float) -> None:
        """Start a composition: these sequences decode until one comes, ends or is preempted."""
        scheduler = self.scheduler
        scheduler.batch_changed = False
        self._done = 0
        self._decodes = decodes = scheduler.decoding
        self._context_tokens = context_tokens = scheduler.context_tokens
        self._blocks_first = scheduler.blocks_held()
        self._held_by = scheduler.held_by
        self._batch.begin(now, decodes, context_tokens)
        self._composing = True

    def _close(self, now: float) -> None:
        """Write the row of the composition that ends *now*."""
        recorder, scheduler = self.recorder, self.scheduler
        recorder.num_rows += 1
        recorder.steps += pack_step(
            self._batch.start_s,
            now,
            0.0,
            self._done,
            self._context_tokens,
            0,
            self._blocks_first,
            scheduler.blocks_in_use,
            scheduler.num_waiting + self.in_lobby,
            self._decodes,
            0,
            self._held_by,
        )
        self._composing = False

    def _mixed_step(self, now: float) -> float:
        """Write the row of a step with prefill in it; returns its duration."""
        scheduler, recorder = self.scheduler, self.recorder
        if self._composing:
            self._close(now)
        chunks, decodes, context_tokens = scheduler.chunks, scheduler.decoding, scheduler.context_tokens
        tokens, with_cached, squares, sampled, admitted = 0, 0, 0, decodes, 0
        first_scheduled_s = recorder.first_scheduled_s
        for sequence, new, cached in chunks:
            tokens += new
            with_cached += new * cached
            squares += new * new
            if sequence.computed == sequence.prompt_tokens + sequence.generated:
                sampled += 1
            if isnan(first_scheduled_s[sequence.index]):
                first_scheduled_s[sequence.index] = now
                recorder.cached_tokens[sequence.index] = cached
                admitted += 1
            elif self._sent_back:
                self._resume(sequence.index, now)
        if self.queue_rules is not None:
            self.queue_rules.admitted(admitted, now, scheduler.num_waiting + self.in_lobby)
        duration_s = self.step_time.mixed_s(
            decodes, context_tokens, len(chunks), tokens, with_cached, squares, sampled
        )
        blocks = scheduler.num_blocks - scheduler.free_blocks
        recorder.num_rows += 1
        recorder.steps += pack_step(
            now,
            now + duration_s,
            with_cached + 0.5 * squares,
            1,
            context_tokens,
            tokens,
            blocks,
            blocks,
            scheduler.num_waiting + self.in_lobby,
            decodes,
            len(chunks),
            scheduler.held_by,
        )
        return duration_s

    def _first_tokens(self, now: float) -> None:
        """Sequences whose prefill is complete have a token: their first, or the one after a gap."""
        recorder = self.recorder
        for sequence, _, _ in self.scheduler.chunks:
            request = sequence.index
            if sequence.state == PREFILL:  # not complete
                continue
            if recorder.status[request]:  # aborted, or nobody's
                sequence.first_row = recorder.num_rows
                continue
            if sequence.gap_since_s < 0.0:
                recorder.first_token_s[request] = now
            else:
                recorder.gap(request, now - sequence.gap_since_s)
                recorder.turn(request, now, DECODING_AGAIN)
                sequence.gap_since_s = -1.0
            sequence.first_row = recorder.num_rows

    def _hold_up(self, now: float) -> None:
        """Preempted sequences that were decoding got their last token for some time *now*."""
        recorder = self.recorder
        if self._composing:
            self._close(now)
        for sequence in self.scheduler.preempted:
            recorder.preemptions[sequence.index] += 1
            if sequence.state != DONE:
                recorder.turn(sequence.index, now, PREEMPTED)
                self._sent_back.add(sequence.index)
        for sequence in (*self.scheduler.preempted, *self.scheduler.skipped):
            if sequence.generated and sequence.gap_since_s < 0.0 and sequence.state != DONE:
                recorder.stretch(sequence.index, sequence.first_row)
                sequence.gap_since_s = now

    def _resume(self, request: int, now: float) -> None:
        """*request* is in a batch: for the first time since it was preempted, if it was."""
        if request in self._sent_back:
            self._sent_back.remove(request)
            self.recorder.turn(request, now, RESUMED)

    def _record_aborted(self) -> None:
        for sequence in self._aborted:
            self.recorder.abandoned(sequence.index, sequence.generated, sequence.computed)
        self._aborted.clear()
