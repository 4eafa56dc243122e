"""Who sends: open-loop clients that may lose patience."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import Any

import numpy as np
from simpy import Environment, Event, Timeout

from sim.serving.sequence import Sequence
from sim.simulation.front_end import FrontEnd
from sim.simulation.recorder import CANCELLED, NEVER_SCHEDULABLE, Recorder
from sim.simulation.replica import Replica
from sim.workload import Requests

Progress = Callable[[int, int, str], None]  # requests sent, of how many, what that number is
_CHUNK = 4096  # rows of the workload that are Python objects at a time


def open_loop(
    env: Environment,
    requests: Requests,
    schedulable: np.ndarray,
    front_end: FrontEnd,
    replica: Replica,
    recorder: Recorder,
    progress: Progress | None = None,
) -> Generator[Event, None, None]:
    """Send every request at its own time, whatever became of the others.

    One heap entry for all of them. Requests that are not *schedulable* (bool, one a request) are
    refused on arrival; a request with finite patience is given up *patience_s* after its send,
    wherever it is then: an abort at the instant at which an iteration ends comes before its output.
    """
    now, never = 0.0, float("inf")
    for index, prompt, output, at_s, leave_s in _admissible(
        requests, schedulable, front_end, recorder, progress
    ):
        if leave_s <= at_s:  # still in the front end
            recorder.status[index] = CANCELLED
            recorder.finish_s[index] = leave_s
            continue
        if at_s > now:
            yield Timeout(env, at_s - now)
            now = at_s
        sequence = Sequence(index, prompt, output)
        replica.submit(sequence)
        if leave_s < never:
            Timeout(env, leave_s - now, sequence).callbacks.append(replica.give_up)


def _admissible(
    requests: Requests,
    schedulable: np.ndarray,
    front_end: FrontEnd,
    recorder: Recorder,
    progress: Progress | None,
) -> Iterator[tuple[Any, ...]]:
    """Index, prompt, output, time in the engine's queue and time of leaving of each schedulable request.

    As plain Python values, a chunk in memory at a time; the others are recorded as refused.
    """

    def chunks() -> Iterator[Iterator[tuple[Any, ...]]]:
        for first in range(0, len(requests), _CHUNK):
            if progress:
                progress(first, len(requests), "sent")
            part = slice(first, first + _CHUNK)
            arrival_s, prompts, possible = (
                requests.arrival_s[part],
                requests.prompt_tokens[part],
                schedulable[part],
            )
            status, finish_s = recorder.column("status")[part], recorder.column("finish_s")[part]
            status[~possible] = NEVER_SCHEDULABLE
            finish_s[~possible] = arrival_s[~possible]
            queued_s = front_end.pass_through(arrival_s[possible], prompts[possible])
            recorder.column("queued_s")[part][possible] = queued_s
            patience_s = np.inf if requests.patience_s is None else requests.patience_s[part]
            columns = (
                np.flatnonzero(possible) + first,
                prompts[possible],
                requests.output_tokens[part][possible],
                queued_s,
                (arrival_s + patience_s)[possible],
            )
            yield zip(*(column.tolist() for column in columns), strict=True)

    return chain.from_iterable(chunks())
