"""A leap stands for iterations that repeat one batch; it must not change a bit of the answer.

``max_leap=1`` ends every iteration by itself. Random small engines under random requests are run that
way and with longer leaps, and everything they say is compared. Arrivals and departures at the very
instants at which iterations end are where it could go wrong, so many are put there.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from support import NO_FRONT_END, EvenBatch, EvenSteps, answer, base

from sim.results import Result
from sim.scenario import Scenario
from sim.serving.scheduler import KV_BLOCKS, SEQUENCE_LIMIT, TOKEN_BUDGET
from sim.simulation import Run, simulate
from sim.simulation.recorder import CANCELLED, NEVER_SCHEDULABLE
from sim.workload import Requests

TICK_S = 2.0**-6


@dataclass(frozen=True)
class Case:
    """A small engine and what is sent to it; with *ticks* every iteration takes `TICK_S`."""

    scenario: Scenario
    requests: Requests
    ticks: bool = False

    def run(self, max_leap: int | None = None) -> Run:
        step_time = EvenSteps(TICK_S) if self.ticks else None
        return simulate(self.scenario, max_leap, requests=self.requests, step_time=step_time)


def small_engine(rng: random.Random) -> Scenario:
    """A pool of 320 to 1920 tokens, and limits that bind now and then."""
    block_size = rng.choice([1, 4, 16])
    blocks = rng.randint(20, 120) * 16 // block_size
    engine = {
        "block_size": block_size,
        "num_gpu_blocks_override": blocks + 1,  # one is the engine's own
        "max_model_len": blocks * block_size,
        "max_num_seqs": rng.choice([1, 3, 8, 64]),
        "max_num_batched_tokens": rng.choice([2, 4, 16, 64, 64, 256, 256]),
        "long_prefill_token_threshold": rng.choice([0, 0, 1, 8, 32]),
        "scheduler_reserve_full_isl": rng.random() < 0.7,
    }
    engine["long_prefill_token_threshold"] = min(
        engine["long_prefill_token_threshold"], engine["max_num_batched_tokens"]
    )
    return base().replace({**NO_FRONT_END, **{f"engine.{key}": value for key, value in engine.items()}})


def random_case(seed: int, ticks: bool = False) -> Case:
    """Up to 40 requests within moments or seconds, some too long for the engine, a third impatient."""
    rng = random.Random(seed)
    scenario = small_engine(rng)
    longest = scenario.engine["max_model_len"]
    half = min(longest, 1000) // 2
    count, span_s = rng.randint(3, 40), rng.choice([0.01, 0.3, 3.0, 10.0])

    def instant(limit_s: float) -> float:
        ticks_s = TICK_S if ticks else 2.0**-32
        return rng.randrange(1, int(limit_s / ticks_s) + 2) * ticks_s

    prompts = [
        longest + 1 if rng.random() < 0.01 else rng.randint(1, rng.choice([8, 64, half]))
        for _ in range(count)
    ]
    outputs = [rng.choice([1, 2, rng.randint(1, half)]) for _ in range(count)]
    patience_s = [instant(3.0) if rng.random() < 0.3 else float("inf") for _ in range(count)]
    arrival_s = sorted(instant(span_s) for _ in range(count))
    return Case(
        scenario,
        Requests(np.array(arrival_s), np.array(prompts), np.array(outputs), np.array(patience_s)),
        ticks,
    )


def with_front_end(case: Case) -> Case:
    """*case* behind a front end that takes its time, with different times for different prompts."""
    front_end = {"front_end_latency_s": 0.01, "front_end_service_s": 0.03, "front_end_prompt_token_s": 1e-4}
    changes = {f"engine.{key}": value for key, value in front_end.items()}
    return replace(case, scenario=case.scenario.replace(changes))


def iteration_ends_s(run: Run) -> np.ndarray:
    """When each iteration of *run* ended, in s: those of a composition from the step-time model."""
    log = {name: run.recorder.column(name) for name in ("start_s", "decodes", "context_tokens", "iterations")}
    several = np.flatnonzero(log["iterations"] > 1)
    counts = log["iterations"][several]
    row = np.repeat(several, counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    n, context = log["decodes"][row].astype(np.int64), log["context_tokens"][row].astype(np.int64)
    inside_s = log["start_s"][row] + run.step_time.elapsed_s(n, context, number)
    return np.union1d(run.recorder.column("end_s"), inside_s)


def pinned_case(seed: int) -> Case:
    """A random case in which requests come and go exactly when iterations end.

    Nothing that happens at an instant changes what came before it, so instants are pinned one after
    another: run, take an end later than the last, and let somebody come and somebody leave there. Every
    other time it is an end that was somebody's last.
    """
    rng = random.Random(seed)
    case = random_case(seed)
    at_s = 0.0
    for round_number in range(4):
        run = case.run()
        finish_s = run.recorder.column("finish_s")
        ends_s = finish_s if round_number % 2 else iteration_ends_s(run)
        ends_s = np.sort(ends_s[ends_s > at_s])
        if not len(ends_s):
            break
        at_s = float(ends_s[rng.randrange((len(ends_s) + 1) // 2)])  # leave room for later ones
        case = replace(case, requests=_come_and_go(case.requests, finish_s, at_s, rng))
    return case


def _come_and_go(requests: Requests, finish_s: np.ndarray, at_s: float, rng: random.Random) -> Requests:
    """*requests* with a new one *at_s*, at which one that is in the system then (or ends then) leaves."""
    patience_s = np.array(requests.patience_s)
    inside = np.flatnonzero((requests.arrival_s < at_s) & (finish_s >= at_s))
    if len(inside):
        leaves = rng.choice(inside.tolist())
        patience_s[leaves] = at_s - requests.arrival_s[leaves]
    place = int(np.searchsorted(requests.arrival_s, at_s, side="right"))
    new = (at_s, rng.randint(1, 100), rng.choice([1, 2, 50]), float("inf"))
    columns = (requests.arrival_s, requests.prompt_tokens, requests.output_tokens, patience_s)
    return Requests(*(np.insert(column, place, value) for column, value in zip(columns, new, strict=True)))


def happened(run: Run) -> Counter[str]:
    """Which of the things that make leaping hard occurred in *run*: 1 or 0 each."""
    recorder = run.recorder
    status, queued_s, finish_s = (recorder.column(name) for name in ("status", "queued_s", "finish_s"))
    preempted = recorder.column("preemptions") > 0
    admitted = np.isfinite(recorder.column("first_scheduled_s"))
    got_token = np.isfinite(recorder.column("first_token_s"))
    left = (status == CANCELLED) & (finish_s > queued_s)
    ends_s = iteration_ends_s(run)
    start_s, end_s = recorder.column("start_s"), recorder.column("end_s")
    repeats = recorder.column("iterations") > 1

    def in_a_leap(at_s: np.ndarray) -> bool:
        return bool(((at_s[:, None] > start_s[repeats]) & (at_s[:, None] <= end_s[repeats])).any())

    chunks = int(recorder.column("prefill_sequences").sum())
    held_by = recorder.column("held_by")
    events = {
        "preemption": preempted.any(),
        "left while waiting": (left & ~admitted).any(),
        "left in prefill": (left & admitted & ~got_token & ~preempted).any(),
        "left in decode": (left & got_token & ~preempted).any(),
        "left after preemption": (left & preempted).any(),
        "chunked prefill": chunks > int(admitted.sum()) and not preempted.any(),
        "never schedulable": (status == NEVER_SCHEDULABLE).any(),
        "arrival in a leap": in_a_leap(queued_s),
        "departure in a leap": in_a_leap(finish_s[left]),
        "arrival at an end": np.isin(queued_s, ends_s).any(),
        "departure at an end": np.isin(finish_s[left], ends_s).any(),
        "held by token_budget": (held_by == TOKEN_BUDGET).any(),
        "held by sequence_limit": (held_by == SEQUENCE_LIMIT).any(),
        "held by kv_blocks": (held_by == KV_BLOCKS).any(),
    }
    return Counter({name: int(bool(occurred)) for name, occurred in events.items()})


def leaps_change_nothing(case: Case, name: str, some: int) -> Counter[str]:
    """Assert it for *case*, for leaps without a limit and of *some*; returns what happened in it.

    Blocks and tokens are conserved in every run, and only a preempted sequence ever loses a step.
    """
    stepped = case.run(max_leap=1)
    expected = answer(stepped)
    checks = Result(stepped).summary()["checks"]
    assert checks["blocks_conserved"], name
    assert checks["tokens_conserved"], name
    assert len(stepped.recorder.column("gap_s")) <= stepped.scheduler.preemptions, name
    for max_leap in (None, some):
        found = answer(case.run(max_leap))
        assert [part for part in expected if found[part] != expected[part]] == [], f"{name}, leap {max_leap}"
    return happened(stepped)


ALWAYS = (
    "preemption",
    "left while waiting",
    "left in prefill",
    "left in decode",
    "chunked prefill",
    "arrival in a leap",
    "departure in a leap",
    "held by token_budget",
    "held by sequence_limit",
    "held by kv_blocks",
)


def assert_often(tally: Counter[str], names: tuple[str, ...], cases: int) -> None:
    """Each of *names* happened in one case of twenty at least: nothing above passed for want of it."""
    assert {name: tally[name] for name in names if tally[name] < cases / 20} == {}


def test_where_everything_happens_at_once() -> None:
    """Iterations, arrivals and departures all lie on one coarse clock: every instant is a tie."""
    cases, tally = 160, Counter[str]()
    for seed in range(cases):
        tally += leaps_change_nothing(random_case(seed, ticks=True), f"ticks {seed}", 2 + seed % 6)
    assert_often(tally, (*ALWAYS, "left after preemption", "arrival at an end", "departure at an end"), cases)
    assert tally["never schedulable"] > 0


def test_where_nothing_happens_at_once() -> None:
    """Real step times, and arrivals anywhere, half of them behind a front end that queues."""
    cases, tally = 80, Counter[str]()
    for seed in range(1000, 1000 + cases):
        case = random_case(seed)
        tally += leaps_change_nothing(
            with_front_end(case) if seed % 2 else case, f"free {seed}", 2 + seed % 6
        )
    assert_often(tally, ALWAYS, cases)


def test_where_somebody_comes_and_goes_as_an_iteration_ends() -> None:
    """Real step times, and arrivals and departures put at the ends of iterations, to the last bit."""
    cases, tally = 60, Counter[str]()
    for seed in range(2000, 2000 + cases):
        tally += leaps_change_nothing(pinned_case(seed), f"pinned {seed}", 2 + seed % 6)
    assert_often(tally, ALWAYS, cases)
    assert tally["arrival at an end"] > 0.9 * cases
    assert tally["departure at an end"] > 0.9 * cases


def test_a_departure_comes_before_the_output_of_its_instant() -> None:
    """A client that gives up at the very end of its last iteration gets no last token, leaping or not."""
    alone = Requests(np.array([TICK_S]), np.array([5]), np.array([40]), np.array([40 * TICK_S]))
    case = Case(
        small_engine(random.Random(1)).replace({"engine.max_num_batched_tokens": 64}), alone, ticks=True
    )
    for max_leap in (1, 7, None):
        rows = Result(case.run(max_leap)).requests
        assert rows["status"].tolist() == ["cancelled"]
        assert rows["output_tokens"].tolist() == [39]
        assert rows["finish_s"].tolist() == [41 * TICK_S]


class CountedSteps(EvenSteps):
    """Counts the batches that it is asked about."""

    def __init__(self, step_s: float) -> None:
        super().__init__(step_s)
        self.asked = 0

    def composition(self) -> EvenBatch:
        batch, elapsed_s = super().composition(), EvenBatch.elapsed_s

        def counted_s(iterations: int) -> float:
            self.asked += 1
            return elapsed_s(batch, iterations)

        batch.elapsed_s = counted_s  # type: ignore[method-assign]
        return batch


def test_leaps_are_taken() -> None:
    """An answer of 300 tokens is one leap, or 299 steps: the tests above compare two things, not one."""
    asked = []
    for max_leap in (1, 2, None):
        step_time = CountedSteps(TICK_S)
        simulate(base().replace({"run.requests": 1}), max_leap, step_time=step_time)
        asked.append(step_time.asked)
    assert asked == [299, 150, 1]
