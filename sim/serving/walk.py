"""The engine's own loop over its running sequences, for the steps that counting cannot carry.

Where blocks run short under the priority policy the victim may be anywhere in the list, and with a prefix
cache it matters which blocks were taken before a prefill lost its own. Such a step costs O(running).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.serving.sequence import DECODE, LEAVING, PREFILL, Sequence

if TYPE_CHECKING:
    from sim.serving.scheduler import Scheduler


def walk(scheduler: Scheduler, iteration: int) -> int:
    """Give running sequences of *scheduler* tokens and blocks one by one; returns the budget left.

    Who gets none though it could decode is *skipped*: it computes its one token later, like a prefill.
    """
    size, budget = scheduler.block_size, scheduler.max_num_batched_tokens
    threshold = scheduler.threshold()
    queue = list(scheduler.running)
    given: dict[Sequence, tuple[int, int]] = {}  # tokens and blocks of this step
    at = 0
    while at < len(queue) and budget > 0:
        sequence = queue[at]
        if sequence.state == DECODE:
            new, has = 1, sequence.origin + iteration - 1
        else:
            new, has = scheduler.chunk(sequence, budget, threshold), sequence.computed
        if sequence.state == LEAVING or not new:
            at += 1
            continue
        need = -(-(has + new) // size) - -(-has // size)
        while need > scheduler.free_blocks:
            victim = _victim(scheduler, queue)
            place = queue.index(victim)
            del queue[place]
            tokens, blocks = given.pop(victim, (0, 0))
            budget += tokens
            at -= place < at
            scheduler.preempt(victim, iteration, tokens, blocks)
            if victim is sequence:
                break
        else:
            scheduler.take(sequence, need, has + new)  # here already, since whoever comes next may find it
            given[sequence] = new, need
            budget -= new
            at += 1
            continue
        if scheduler.self_preemption_ends_step:
            break
    scheduler.skipped = [s for s in queue if s.state == DECODE and s not in given]
    for sequence in scheduler.skipped:
        scheduler.pause(sequence, iteration)
    scheduler.chunks = [(s, new, s.computed) for s, (new, _) in given.items() if s.state == PREFILL]
    return budget


def _victim(scheduler: Scheduler, queue: list[Sequence]) -> Sequence:
    """The least urgent, or simply the last admitted."""
    if scheduler.by_priority:
        return max(queue, key=lambda sequence: (sequence.priority, sequence.came))
    return queue[-1]
