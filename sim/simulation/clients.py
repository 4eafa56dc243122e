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
    sent, refused = np.flatnonzero(schedulable), np.flatnonzero(~schedulable)
    for index, at_s in zip(refused.tolist(), requests.arrival_s[refused].tolist(), strict=True):
        recorder.status[index] = NEVER_SCHEDULABLE
        recorder.finish_s[index] = at_s
    prompts, outputs = requests.prompt_tokens[sent], requests.output_tokens[sent]
    queued_s = front_end.pass_through(requests.arrival_s[sent], prompts)
    patience_s = np.inf if requests.patience_s is None else requests.patience_s[sent]
    leaves_s = requests.arrival_s[sent] + patience_s
    recorder.column("queued_s")[sent] = queued_s
    now, never = 0.0, float("inf")
    for index, prompt, output, at_s, leave_s in _rows(progress, sent, prompts, outputs, queued_s, leaves_s):
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


def _rows(progress: Progress | None, *columns: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """The rows of equally long *columns* as plain Python values, a chunk in memory at a time."""

    def chunks() -> Iterator[Iterator[tuple[Any, ...]]]:
        for first in range(0, len(columns[0]), _CHUNK):
            if progress:
                progress(first, len(columns[0]), "sent")
            yield zip(*(column[first : first + _CHUNK].tolist() for column in columns), strict=True)

    return chain.from_iterable(chunks())
