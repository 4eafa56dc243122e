"""What every request was doing when: the phases that a run's records divide its life into."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.simulation import Run
from sim.simulation.recorder import DECODING_AGAIN, PREEMPTED, RESUMED

PHASES = ("front end", "queue", "prefill", "decode", "preempted", "recompute")
FRONT_END, QUEUE, PREFILL, DECODE, WAITS_AGAIN, RECOMPUTE = range(6)

_AFTER_TURN = np.empty(3, dtype=np.int64)
_AFTER_TURN[[PREEMPTED, RESUMED, DECODING_AGAIN]] = WAITS_AGAIN, RECOMPUTE, DECODE


@dataclass(frozen=True)
class Phases:
    """One element a phase, by request and then by time; times in s.

    Those of a request follow one another without a break from its send to its end, and none is empty.
    """

    request: np.ndarray
    phase: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    def among(self, *phases: int) -> np.ndarray:
        """Which elements are of one of *phases* (bool)."""
        return np.isin(self.phase, phases)

    @property
    def waiting(self) -> np.ndarray:
        """Phases in the engine's queue."""
        return self.among(QUEUE, WAITS_AGAIN)

    @property
    def running(self) -> np.ndarray:
        """Phases in the engine's running list."""
        return self.among(PREFILL, DECODE, RECOMPUTE)


def phases_of(run: Run) -> Phases:
    """The phases of all requests of *run*; of one that was turned away on arrival there are none."""
    recorder, every = run.recorder, np.arange(len(run.requests))
    times_s = [run.requests.arrival_s]
    times_s += [recorder.column(name) for name in ("queued_s", "first_scheduled_s", "first_token_s")]
    request = np.concatenate([every, every, every, every, recorder.column("turn_request")])
    start_s = np.concatenate([*times_s, recorder.column("turn_s")])
    phase = np.repeat([FRONT_END, QUEUE, PREFILL, DECODE], len(every))
    phase = np.concatenate([phase, _AFTER_TURN[recorder.column("turn_to")]])

    finish_s = recorder.column("finish_s")[request]
    happened = np.flatnonzero(start_s < finish_s)
    # Stable: at one instant the order above stands, which is the order of a life.
    happened = happened[np.lexsort((start_s[happened], request[happened]))]
    request, phase, start_s, end_s = (a[happened] for a in (request, phase, start_s, finish_s))
    goes_on = request[:-1] == request[1:]
    end_s[:-1][goes_on] = start_s[1:][goes_on]
    some = start_s < end_s
    return Phases(request[some], phase[some], start_s[some], end_s[some])
