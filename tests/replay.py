"""Every token of a run, one by one: what the results, which never look at one, are tested on.

The log says when each iteration began and ended; a scheduler of our own, driven through them step by step,
says who was in it. A sequence that has computed its prompt and all its tokens so far gets one more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sim.serving.scheduler import Scheduler
from sim.serving.sequence import Sequence
from sim.simulation import Run


@dataclass
class Replay:
    """The times of all tokens by request, and what the iterations held."""

    tokens_s: list[list[float]]
    blocks: list[int] = field(default_factory=list)  # in use, iteration by iteration
    seconds: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)  # requests once the batch is formed, and so below
    waiting: list[int] = field(default_factory=list)
    kept_tokens: list[int] = field(default_factory=list)  # KV tokens of those that decode
    only_decodes: list[bool] = field(default_factory=list)
    preemptions: int = 0

    def gaps_s(self, request: int) -> np.ndarray:
        return np.diff(self.tokens_s[request])


def iterations(run: Run) -> Iterator[tuple[float, float, int, int, int]]:
    """Start, end, decodes, context tokens and prefill tokens of every single iteration of the log."""
    names = (
        "start_s",
        "end_s",
        "prefill_sequences",
        "iterations",
        "decodes",
        "context_tokens",
        "prefill_tokens",
    )
    columns = [run.recorder.column(name).tolist() for name in names]
    for start_s, end_s, prefills, count, decodes, context, new in zip(*columns, strict=True):
        if prefills or count == 1:
            yield start_s, end_s, decodes, context, new
            continue
        batch = run.step_time.composition()
        batch.begin(start_s, decodes, context)
        ends_s = [start_s + batch.elapsed_s(i) for i in range(count + 1)]
        assert ends_s[-1] == end_s
        for i in range(count):
            yield ends_s[i], ends_s[i + 1], decodes, context + i * decodes, 0


def replay(run: Run) -> Replay:
    """Walk through *run*, token by token. Fails where log and scheduler do not agree."""
    engine, requests = run.scenario.engine, run.requests
    scheduler = Scheduler(
        run.scheduler.num_blocks,
        engine["block_size"],
        engine["max_num_seqs"],
        engine["max_num_batched_tokens"],
        engine["long_prefill_token_threshold"],
        engine["scheduler_reserve_full_isl"],
    )
    queued_s = run.recorder.column("queued_s")
    patience_s = np.inf if requests.patience_s is None else requests.patience_s
    leaves_s = requests.arrival_s + patience_s
    coming = [i for i in range(len(requests)) if queued_s[i] < leaves_s[i]]  # NaN: never let in
    inside: dict[int, Sequence] = {}
    computed, found = [0] * len(requests), Replay([[] for _ in range(len(requests))])
    before_s = 0.0
    for start_s, end_s, decodes, context, new in iterations(run):
        assert start_s == before_s or (not inside and start_s == queued_s[coming[0]])
        before_s = end_s
        while coming and queued_s[coming[0]] <= start_s:
            i = coming.pop(0)
            inside[i] = Sequence(i, int(requests.prompt_tokens[i]), int(requests.output_tokens[i]))
            scheduler.add(inside[i])
        scheduler.schedule()
        scheduled = {s.index: tokens for s, tokens in scheduler.scheduled_tokens().items()}
        assert sum(scheduled.values()) == decodes + new
        for sequence in scheduler.preempted:
            computed[sequence.index] = 0
        found.preemptions += len(scheduler.preempted)
        found.blocks.append(scheduler.num_blocks - scheduler.free_blocks)
        found.seconds.append(end_s - start_s)
        found.starts_s.append(start_s)
        found.running.append(len(scheduler.running))
        found.waiting.append(scheduler.num_waiting)
        found.kept_tokens.append(context)
        found.only_decodes.append(not new)
        gone = [i for i in inside if leaves_s[i] <= end_s]
        for i in gone:
            scheduler.abort(inside.pop(i))
        coming = [i for i in coming if leaves_s[i] > end_s or queued_s[i] > end_s]
        scheduler.finish()
        for i, tokens in scheduled.items():
            computed[i] += tokens
            got = len(found.tokens_s[i])
            if i in inside and computed[i] == requests.prompt_tokens[i] + got:
                found.tokens_s[i].append(end_s)
                if got + 1 == requests.output_tokens[i]:
                    del inside[i]
    assert not coming
    assert not inside
    return found
