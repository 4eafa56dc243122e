"""The event loop, on timelines that a hand can derive: every iteration takes one second.

A request that comes at t and is alone: prefill from t to t + 1, its first token at t + 1, then one token
a second. Every story is told twice, in leaps and step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import pytest
from simpy import Environment

from sim.clock import TICK_S
from sim.serving.scheduler import Scheduler
from sim.serving.sequence import Sequence
from sim.simulation.clients import open_loop
from sim.simulation.front_end import FrontEnd
from sim.simulation.recorder import STATUS, Recorder
from sim.simulation.replica import Replica
from sim.workload import Requests


class Second:
    """A batch whose iterations take one second each."""

    start_s = 0.0

    def begin(self, start_s: float, n: int, context_tokens: int) -> None:
        self.start_s = start_s

    def elapsed_s(self, iterations: int) -> float:
        return float(iterations)

    def reaches(self, elapsed_s: float, last: int) -> tuple[int, float]:
        count = max(ceil(min(elapsed_s, last)), 1)
        return count, float(count)


class Seconds:
    """The step-time model of such batches; prefill takes a second, too."""

    def composition(self) -> Second:
        return Second()

    def mixed_s(
        self,
        decodes: int,
        context_tokens: int,
        prefills: int,
        prefill_tokens: int,
        with_cached: int,
        squares: int,
        sampled: int,
    ) -> float:
        return 1.0

    def elapsed_s(self, n: np.ndarray, context_tokens: np.ndarray, iterations: np.ndarray) -> np.ndarray:
        return iterations.astype(np.float64)


@dataclass(frozen=True)
class Outcome:
    """What became of the requests, by column, and the number of events it took."""

    recorder: Recorder
    events: int

    def times(self, name: str) -> list[float]:
        return self.recorder.column(name).tolist()

    @property
    def status(self) -> list[str]:
        return [STATUS[code] for code in self.recorder.status]

    @property
    def rows(self) -> list[tuple[float, float, int, int, int]]:
        """Start, end, iterations, decodes and prefill tokens of every batch."""
        names = ("start_s", "end_s", "iterations", "decodes", "prefill_tokens")
        return list(zip(*(self.recorder.column(name).tolist() for name in names), strict=True))


@dataclass(frozen=True)
class Timeline:
    """Runs requests (arrival, prompt, answer[, patience]) on a replica of one-second iterations."""

    max_leap: int

    def __call__(
        self,
        *requests: tuple[float, ...],
        blocks: int = 1000,
        seqs: int = 16,
        budget: int = 256,
        front_end: FrontEnd | None = None,
        schedulable: list[bool] | None = None,
    ) -> Outcome:
        at_s, prompts, answers = (np.array([r[i] for r in requests]) for i in range(3))
        patience_s = np.array([r[3] if len(r) > 3 else np.inf for r in requests])
        workload = Requests(at_s.astype(float), prompts.astype(int), answers.astype(int), patience_s)
        env, recorder = Environment(), Recorder(len(requests))
        replica = Replica(env, Scheduler(blocks, 16, seqs, budget), Seconds(), recorder, self.max_leap)
        possible = np.array(schedulable or [True] * len(requests))
        front_end = front_end or FrontEnd(0.0, 0.0, 0.0)
        open_loop(env, workload, possible, front_end, replica, recorder)
        env.run()
        assert replica.scheduler.free_blocks == blocks
        assert not replica.scheduler.running
        return Outcome(recorder, next(env._eid))


@pytest.fixture(params=[1, 1 << 30], ids=["stepping", "leaping"])
def timeline(request: pytest.FixtureRequest) -> Timeline:
    return Timeline(request.param)


# -- who is in which batch -------------------------------------------------------------------------


def test_an_idle_replica_starts_at_once(timeline: Timeline) -> None:
    """It comes at 3, is computed from then on, and has its three tokens at 4, 5 and 6."""
    run = timeline((3.0, 10, 3))
    assert run.times("queued_s") == run.times("first_scheduled_s") == [3.0]
    assert run.times("first_token_s") == [4.0]
    assert run.times("finish_s") == [6.0]
    assert run.rows == [(3.0, 4.0, 1, 0, 10), (4.0, 6.0, 2, 1, 0)]


def test_an_idle_replica_starts_again(timeline: Timeline) -> None:
    """Nothing happens between 2 and 7.5: no iteration is counted, and the next starts on time."""
    run = timeline((0.0, 10, 2), (7.5, 10, 2))
    assert run.times("finish_s") == [2.0, 9.5]
    assert run.rows == [(0.0, 1.0, 1, 0, 10), (1.0, 2.0, 1, 1, 0), (7.5, 8.5, 1, 0, 10), (8.5, 9.5, 1, 1, 0)]


def test_two_that_come_at_one_instant_share_a_batch(timeline: Timeline) -> None:
    """Also when the first of them wakes an idle replica."""
    run = timeline((2.0, 10, 2), (2.0, 20, 2))
    assert run.times("first_scheduled_s") == [2.0, 2.0]
    assert run.times("first_token_s") == [3.0, 3.0]
    assert run.rows == [(2.0, 3.0, 1, 0, 30), (3.0, 4.0, 1, 2, 0)]


@pytest.mark.parametrize("at_s", [1.0, 2.0, 5.0])
def test_who_comes_as_an_iteration_ends_is_in_the_next(timeline: Timeline, at_s: float) -> None:
    """Arrivals at an instant are seen by the schedule that is formed at it."""
    run = timeline((0.0, 10, 20), (at_s, 10, 2))
    assert run.times("first_scheduled_s")[1] == at_s
    assert run.times("first_token_s")[1] == at_s + 1
    assert run.times("finish_s") == [20.0, at_s + 2]


@pytest.mark.parametrize("after_s", [TICK_S, 0.5, 1 - TICK_S])
def test_who_comes_in_mid_iteration_waits_for_its_end(timeline: Timeline, after_s: float) -> None:
    """From a tick after 4 to a tick before 5: scheduled at 5. The other is not slowed down."""
    run = timeline((0.0, 10, 20), (4 + after_s, 10, 2))
    assert run.times("first_scheduled_s")[1] == 5.0
    assert run.times("first_token_s")[1] == 6.0
    assert run.times("finish_s") == [20.0, 7.0]


def test_a_leap_is_cut_at_the_arrival_and_the_log_says_so(timeline: Timeline) -> None:
    """One row from 1 to 5, one with the prefill, then both decode, then one alone again."""
    run = timeline((0.0, 10, 20), (4.5, 10, 3))
    assert run.rows == [
        (0.0, 1.0, 1, 0, 10),
        (1.0, 5.0, 4, 1, 0),
        (5.0, 6.0, 1, 1, 10),
        (6.0, 8.0, 2, 2, 0),
        (8.0, 20.0, 12, 1, 0),
    ]


def test_an_arrival_at_the_end_of_the_last_iteration_finds_it_idle_or_busy_alike(timeline: Timeline) -> None:
    """The other leaves at 5: who comes at 5 is computed from 5 on."""
    run = timeline((0.0, 10, 5), (5.0, 10, 1))
    assert run.times("finish_s") == [5.0, 6.0]


def test_long_prompts_come_in_chunks(timeline: Timeline) -> None:
    """600 tokens in a budget of 256: 256, 256 and 88; the first token after the third second."""
    run = timeline((0.0, 600, 2))
    assert [row[4] for row in run.rows] == [256, 256, 88, 0]
    assert run.times("first_scheduled_s") == [0.0]
    assert run.times("first_token_s") == [3.0]
    assert run.times("finish_s") == [4.0]


def test_a_full_batch_keeps_the_next_waiting(timeline: Timeline) -> None:
    """One sequence at a time: the second starts when the first has gone, in order of arrival."""
    run = timeline((0.0, 10, 4), (1.5, 10, 2), (2.5, 10, 2), seqs=1)
    assert run.times("first_scheduled_s") == [0.0, 4.0, 6.0]
    assert run.times("finish_s") == [4.0, 6.0, 8.0]


def test_arrivals_that_cannot_be_admitted_do_not_disturb_a_leap() -> None:
    """A thousand iterations and twenty arrivals into a full batch: events by request, not by iteration."""
    requests = [(0.0, 10, 1000), *((10.25 + i, 10, 2) for i in range(20))]
    leaping, stepping = Timeline(1 << 30)(*requests, seqs=1), Timeline(1)(*requests, seqs=1)
    assert leaping.rows == stepping.rows
    assert leaping.times("finish_s") == stepping.times("finish_s")
    assert leaping.events < 5 * len(requests)


def test_who_comes_unannounced_is_served_the_same() -> None:
    """The same thirty requests from a client that says nothing ahead: other events, equal rows.

    Announced ones take an event each and no more, some of them in the middle of a leap.
    """
    requests = [(0.0, 10, 100), *((7.25 * i, 10, 1 + i % 9) for i in range(1, 30))]
    announced = Timeline(1 << 30)(*requests)
    env, recorder = Environment(), Recorder(len(requests))
    replica = Replica(env, Scheduler(1000, 16, 16, 256), Seconds(), recorder)
    for index, (at_s, prompt, answer) in enumerate(requests):
        arrival = env.timeout(at_s, Sequence(index, int(prompt), int(answer)))
        arrival.callbacks.append(lambda event: replica.submit(event.value))
    env.run()
    unannounced = Outcome(recorder, next(env._eid))
    assert unannounced.rows == announced.rows
    assert unannounced.times("finish_s") == announced.times("finish_s")
    assert announced.events <= len(requests) + 1 < unannounced.events


def test_requests_that_can_never_run_are_refused_on_arrival(timeline: Timeline) -> None:
    """They leave as they come, and the others do not notice."""
    run = timeline((0.0, 10, 3), (1.5, 10**6, 3), (2.0, 10, 2), schedulable=[True, False, True])
    assert run.status == ["completed", "never_schedulable", "completed"]
    assert run.times("finish_s") == [3.0, 1.5, 4.0]
    assert np.isnan(run.times("queued_s")[1])


# -- who gives up ----------------------------------------------------------------------------------


def test_an_abort_as_an_iteration_ends_loses_its_token(timeline: Timeline) -> None:
    """Patience of 3 s: tokens at 1 and 2, the one that would come at 3 is lost."""
    run = timeline((0.0, 10, 20, 3.0))
    assert run.status == ["cancelled"]
    assert run.times("finish_s") == [3.0]
    assert run.recorder.partial_answers[0] == 2


def test_an_abort_a_tick_later_has_its_token(timeline: Timeline) -> None:
    """Three tokens; the iteration in progress still runs to its end at 4, and its token is lost."""
    run = timeline((0.0, 10, 20, 3 + TICK_S))
    assert run.times("finish_s") == [3 + TICK_S]
    assert run.recorder.partial_answers[0] == 3
    assert run.rows[-1][:2] == (1.0, 4.0)


def test_patience_that_ends_with_the_answer_is_too_short(timeline: Timeline) -> None:
    """The last token of three would come at 3: patience of 3 s loses it, a tick more completes."""
    assert timeline((0.0, 10, 3, 3.0)).status == ["cancelled"]
    assert timeline((0.0, 10, 3, 3 + TICK_S)).status == ["completed"]


def test_blocks_of_the_aborted_are_free_when_the_iteration_ends(timeline: Timeline) -> None:
    """Seven blocks: the second needs them all, and gets them at 5, after the first has gone at 4.5."""
    run = timeline((0.0, 60, 40, 4.5), (1.0, 100, 2), blocks=7)
    assert run.status == ["cancelled", "completed"]
    assert run.recorder.partial_answers[0] == 4
    assert run.times("first_scheduled_s") == [0.0, 5.0]
    assert run.times("finish_s") == [4.5, 7.0]


def test_the_impatient_leave_the_queue_and_let_others_pass(timeline: Timeline) -> None:
    """The second gives up at 3, before its turn; the third takes its place at 6."""
    run = timeline((0.0, 10, 6), (1.0, 10, 5, 2.0), (1.0, 10, 2), seqs=1)
    assert run.status == ["completed", "cancelled", "completed"]
    assert run.times("finish_s") == [6.0, 3.0, 8.0]
    assert run.recorder.partial_answers[1] == 0
    assert np.isnan(run.times("first_scheduled_s")[1])


def test_patience_can_end_in_the_front_end(timeline: Timeline) -> None:
    """5 s of front end and 2 s of patience: gone at 3, never in the engine; exactly 5 s are too few, too."""
    run = timeline((1.0, 10, 2, 2.0), (1.0, 10, 2, 5.0), (1.0, 10, 2, 8.0), front_end=FrontEnd(5.0, 0.0, 0.0))
    assert run.status == ["cancelled", "cancelled", "completed"]
    assert run.times("finish_s") == [3.0, 6.0, 8.0]
    assert run.rows == [(6.0, 7.0, 1, 0, 10), (7.0, 8.0, 1, 1, 0)]


def test_a_prefill_can_be_given_up(timeline: Timeline) -> None:
    """600 tokens take three seconds; at 1.5 the client goes, and the third chunk never runs."""
    run = timeline((0.0, 600, 5, 1.5), (0.0, 10, 2))
    assert run.status == ["cancelled", "completed"]
    assert run.recorder.abandoned_tokens == 512
    assert run.times("first_scheduled_s") == [0.0, 2.0]
    assert run.times("finish_s")[1] == 4.0


# -- who is held up --------------------------------------------------------------------------------


def test_the_preempted_are_recomputed_and_their_gap_is_told(timeline: Timeline) -> None:
    """Ten blocks, two sequences of 64 + 64 tokens: the 18th iteration needs two blocks more.

    The second loses its own: 17 tokens by then; it prefills 81 tokens from 64 to 65, when the first
    has gone, and ends at 111. Its pause from 17 to 65 is one gap of 48 s.
    """
    run = timeline((0.0, 64, 64), (0.0, 64, 64), blocks=10)
    assert run.times("finish_s") == [64.0, 111.0]
    assert run.times("first_scheduled_s") == [0.0, 0.0]
    assert run.recorder.preemptions.tolist() == [0, 1]
    assert run.times("gap_request") == [1]
    assert run.times("gap_s") == [48.0]


# -- what the clock and the scheduler are asked ----------------------------------------------------


class Listening(Seconds):
    """Notes what each step with prefill in it is said to hold."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def mixed_s(self, *asked: int) -> float:
        self.asked.append(asked)
        return 1.0


def test_a_step_is_priced_by_what_is_in_it() -> None:
    """A decodes (10 tokens, 11 from second 2 on), B's 600 come as 255, 255 and 90 beside it.

    Told: decodes, their context, chunks, new tokens, new x cached, new x new, tokens that come out. B's
    chunks sample nothing until the last.
    """
    clock, env, recorder = Listening(), Environment(), Recorder(2)
    replica = Replica(env, Scheduler(1000, 16, 16, 256), clock, recorder)
    sent = Requests(np.array([0.0, 1.0]), np.array([10, 600]), np.array([9, 2]))
    open_loop(env, sent, np.array([True, True]), FrontEnd(0.0, 0.0, 0.0), replica, recorder)
    env.run()
    assert clock.asked == [
        (0, 0, 1, 10, 0, 100, 1),
        (1, 11, 1, 255, 0, 255 * 255, 1),
        (1, 12, 1, 255, 255 * 255, 255 * 255, 1),
        (1, 13, 1, 90, 90 * 510, 90 * 90, 2),
    ]


def test_a_leap_lasts_exactly_as_long_as_the_blocks() -> None:
    """Two sequences of 64 tokens in ten blocks: their fifth blocks, taken in step 2, last to step 17.

    That is a leap of 16 iterations, none less; step 18 preempts.
    """
    scheduler = Scheduler(10, 16, 16, 256)
    for index in range(2):
        scheduler.add(Sequence(index, 64, 64))
    assert scheduler.schedule(1000) == 1
    scheduler.finish()
    assert scheduler.schedule(1000) == 16
    scheduler.finish(16)
    assert scheduler.schedule(1000) == 1
    assert [s.index for s in scheduler.preempted] == [1]
