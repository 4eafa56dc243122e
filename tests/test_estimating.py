"""SGLang's schedules, derived by hand, against a walk of its lists, and in leaps.

A block is one token unless said. Requests that arrive "at step k" are queued before schedule k; a step is
prompts, in chunks, or decodes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import assert_often, in_seconds, leaps_change_nothing, random_case, sent, statuses
from support import NO_FRONT_END, EvenSteps, base
from test_leap_with_everything import sharing

from sim.results import Result
from sim.scenario import Scenario
from sim.serving.estimating import LONGEST_ESTIMATE, EstimatingScheduler
from sim.serving.sequence import Sequence
from sim.simulation import Run, simulate
from sim.workload.contents import Contents

Requests = Mapping[str, tuple[int, int, int]]  # arrival step, prompt, answer
Row = dict[str, Any]


def steps(
    requests: Requests,
    count: int,
    *,
    blocks: int = 1000,
    size: int = 1,
    budget: int = 256,
    seqs: int = 64,
    asynchronous: bool = False,
    conservativeness: float = 1.0,
    aborts: Mapping[int, str] | None = None,
) -> list[Row]:
    """The first *count* steps of our scheduler."""
    options = {"asynchronous": asynchronous, "conservativeness": conservativeness}
    scheduler = EstimatingScheduler(blocks, size, seqs, budget, chunked_prefill=True, **options)
    sequences = {name: Sequence(i, r[1], r[2]) for i, (name, r) in enumerate(requests.items())}
    names = list(requests)
    rows = []
    for step in range(1, count + 1):
        for name, (at, _, _) in requests.items():
            if at == step:
                scheduler.add(sequences[name])
        scheduler.schedule()
        row: Row = {
            "tokens": {names[s.index]: n for s, n in scheduler.scheduled_tokens().items()},
            "preempted": [names[s.index] for s in scheduler.preempted],
        }
        if step in (aborts or {}):
            scheduler.abort(sequences[(aborts or {})[step]])
        ended = scheduler.finish(1 if row["tokens"] else 0)
        row["finished"] = sorted(names[s.index] for s in ended)
        row |= {"free": scheduler.free_blocks, "share": scheduler.share}
        rows.append(row)
    return rows


def tokens(rows: list[Row]) -> list[dict[str, int]]:
    return [row["tokens"] for row in rows]


# -- by hand -----------------------------------------------------------------------------------------


def test_a_cut_prompt_goes_on_first_and_decodes_wait() -> None:
    """Budget 64: B's 150 tokens are three steps, the last of which has room for C; A stands still."""
    rows = steps({"A": (1, 10, 9), "B": (2, 150, 2), "C": (3, 20, 2)}, 6, budget=64)
    expected = [{"A": 10}, {"B": 64}, {"B": 64}, {"B": 22, "C": 20}, {"A": 1, "B": 1, "C": 1}, {"A": 1}]
    assert tokens(rows) == expected


FOUR = {name: (step, 100, 200) for step, name in enumerate("ABCD", 1)}


@pytest.mark.parametrize(
    ("queue", "admitted"),
    [({"X": (5, 20, 50), "Y": (5, 10, 20)}, {}), ({"Y": (5, 10, 20), "X": (5, 20, 50)}, {"Y": 10})],
)
def test_a_request_is_admitted_beside_a_share_of_the_answers_to_come(
    queue: Requests, admitted: dict[str, int]
) -> None:
    """1020 tokens, four of 100 with one of 200 answered: 620 free, 4 x 199 x 0.7 reserved, 62.8 left.

    X wants 20 + 50 + 1, Y 10 + 20 + 1: X at the head lets nobody in, Y at the head leaves 32.8 for X.
    """
    rows = steps({**FOUR, **queue}, 5, blocks=1020)
    assert tokens(rows)[4] == (admitted or dict.fromkeys("ABCD", 1))


def test_who_is_admitted_in_the_same_step_needs_all_of_its_answer() -> None:
    """1000 tokens: 100 + 500 fit, and beside the whole of them 100 + 299 do, with one more 100 + 300 not."""
    for answer, together in ((298, 2), (299, 1)):
        rows = steps({"A": (1, 100, 500), "B": (1, 100, answer)}, 1, budget=1000)
        assert len(tokens(rows)[0]) == together


def test_nothing_is_reserved_beyond_4096_tokens_of_an_answer() -> None:
    """4908 tokens hold 10, 4096 of the 4900 to come, and one more; 4107 are just too few for that."""
    for blocks, expected in ((4908, {"A": 10}), (4107, {})):
        assert tokens(steps({"A": (1, 10, 4900)}, 1, blocks=blocks)) == [expected]


def test_the_share_falls_with_every_step_of_decodes() -> None:
    """From 0.7 by 0.602 in 600 steps, and no further; an idle engine starts anew."""
    shares = [row["share"] for row in steps({"A": (1, 10, 701)}, 703)]
    assert shares[0] == 0.7
    assert shares[300] == pytest.approx(0.399)
    assert shares[600] == pytest.approx(0.098)
    assert shares[699] == pytest.approx(0.098)
    assert shares[700] == 0.7


def test_a_full_batch_is_not_looked_at_again_before_somebody_leaves() -> None:
    """X finds 61.5 of the 71 tokens that it wants, and its client goes. Y would fit, but E must end first."""
    requests = {**FOUR, "E": (5, 100, 60), "X": (6, 20, 50), "Y": (20, 1, 1)}
    rows = steps(requests, 80, blocks=1160, aborts={10: "X"})
    first = next(step for step, row in enumerate(rows, 1) if "Y" in row["tokens"])
    ended = next(step for step, row in enumerate(rows, 1) if "E" in row["finished"])
    assert first == ended + 1 > 60
    assert min(row["free"] for row in rows[20:ended]) > 300
    assert not any("X" in row["tokens"] for row in rows)


def test_those_who_have_answered_least_are_retracted() -> None:
    """A has answered most; of B and C, equal in that, C has the longer prompt and loses all it has.

    The share becomes what A and B have answered of theirs, and twenty steps more. C goes behind D.
    """
    requests = {"A": (1, 10, 300), "B": (31, 100, 100), "C": (31, 200, 100), "D": (40, 300, 50)}
    rows = steps(requests, 300, blocks=600, budget=1000, conservativeness=0.1)
    step = next(i for i, row in enumerate(rows) if row["preempted"])
    assert rows[step]["preempted"] == ["C"]
    assert rows[step]["tokens"] == {"A": 1, "B": 1}
    answered = sum(name in row["tokens"] for row in rows[:step] for name in "AB")
    assert rows[step]["share"] == pytest.approx((answered + 40) / 401, abs=1e-3)
    assert [n for row in rows[step:] for n, new in row["tokens"].items() if new > 1] == ["D", "C"]


def test_an_asynchronous_engine_keeps_the_slot_of_who_has_ended_one_step() -> None:
    """One slot: A ends with step 2. B has the slot in step 3, or, where that is seen a step later, in 4."""
    requests = {"A": (1, 4, 2), "B": (1, 4, 1)}
    assert tokens(steps(requests, 3, seqs=1)) == [{"A": 4}, {"A": 1}, {"B": 4}]
    assert tokens(steps(requests, 4, seqs=1, asynchronous=True)) == [{"A": 4}, {"A": 1}, {}, {"B": 4}]


# -- against the engine's own way, list by list ------------------------------------------------------


class Walker:
    """The same engine, request by request: nothing is counted, nothing is remembered but lists."""

    def __init__(self, blocks: int, size: int, budget: int, seqs: int, conservativeness: float) -> None:
        self.first = 0.7 * conservativeness
        self.blocks, self.size, self.budget, self.seqs = blocks, size, budget, seqs
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.prompt: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.cut: set[str] = set()  # prompts that a budget has cut
        self.share, self.full = self.first, False

    @property
    def free(self) -> int:
        return self.blocks - sum(self.held.values())

    def come(self, name: str, prompt: int, answer: int) -> None:
        self.prompt[name], self.wanted[name], self.answered[name] = prompt, answer, 0
        self.waiting.append(name)

    def step(self) -> Row:
        taken, preempted = self.prompts(), []
        if not taken:
            preempted = self.retract()
            taken = dict.fromkeys(self.running, 1)
            for name in self.running:
                self.held[name] = -(-(self.length(name)) // self.size)
                self.computed[name] = self.length(name)
            if taken:
                self.share = max(self.share - 0.86 * self.first / 600, 0.14 * self.first)
        finished = []
        for name in taken:
            if self.computed[name] == self.length(name):
                self.answered[name] += 1
                if self.answered[name] == self.wanted[name]:
                    finished.append(name)
                    self.running.remove(name)
                    del self.held[name]
                    self.full = False
        if not self.running and not self.waiting:
            self.share = self.first
        return {"tokens": taken, "preempted": preempted, "finished": sorted(finished), "free": self.free}

    def length(self, name: str) -> int:
        return self.prompt[name] + self.answered[name]

    def to_come(self, name: str) -> int:
        return min(self.wanted[name] - self.answered[name], LONGEST_ESTIMATE)

    def prompts(self) -> dict[str, int]:
        budget, taken = self.budget, {}
        for name in self.running:
            if name in self.cut:
                taken[name] = min(self.length(name) - self.computed[name], budget)
                budget -= taken[name]
                self.computed[name] += taken[name]
        self.cut = {name for name in self.cut if self.computed[name] < self.length(name)}
        reserved = self.share * sum(self.to_come(name) for name in self.running)
        while self.waiting and not self.full:
            name = self.waiting[0]
            need = -(-self.length(name) // self.size)
            short = len(self.running) >= self.seqs or need > self.free
            left = self.free * self.size - reserved
            if not short and budget == 0:
                break
            if short or self.length(name) + self.to_come(name) + self.size >= left:
                self.full = bool(self.running)
                break
            self.waiting.pop(0)
            self.running.append(name)
            self.held[name], taken[name] = need, min(self.length(name), budget)
            self.computed[name] = taken[name]
            budget -= taken[name]
            if self.computed[name] == self.length(name):
                reserved += self.to_come(name)
            else:
                self.cut.add(name)
        return taken

    def retract(self) -> list[str]:
        def need() -> int:
            return sum(-(-self.length(name) // self.size) - self.held[name] for name in self.running)

        gone: list[str] = []
        ranked = sorted(self.running, key=lambda name: (-self.answered[name], self.prompt[name]))
        while need() > self.free and len(ranked) > 1:
            name = ranked.pop()
            self.running.remove(name)
            del self.held[name]
            gone.append(name)
        if gone:
            answered = sum(self.answered[name] for name in self.running)
            wanted = sum(self.wanted[name] for name in self.running)
            self.share = min((answered + 20 * len(self.running)) / (wanted + 1), 1.0)
            self.full = False
            self.waiting += gone
        return gone


def test_every_step_is_that_of_the_walked_lists() -> None:
    """Tokens, victims, ends and free blocks, over random cases of which many run short."""
    tally = Counter[str]()
    for seed in range(120):
        rng = random.Random(seed)
        size = rng.choice([1, 1, 4])
        limits = {"blocks": rng.randint(60, 300) // size, "budget": rng.choice([8, 32, 256]),
                  "seqs": rng.choice([2, 8, 64]), "size": size,
                  "conservativeness": rng.choice([0.02, 0.1, 1.0])}  # fmt: skip
        longest = rng.choice([10, 40])
        requests = {
            f"r{i:02}": (rng.randint(1, 60), rng.randint(1, longest), rng.randint(1, 2 * longest))
            for i in range(rng.randint(2, 25))
        }
        ours, walker = steps(requests, 200, **limits), Walker(**limits)
        for step in range(1, 201):
            for name, (at, prompt, answer) in requests.items():
                if at == step:
                    walker.come(name, prompt, answer)
            expected = walker.step()
            found = {key: ours[step - 1][key] for key in expected}
            assert found == expected, f"seed {seed}, step {step}"
        tally["preempted"] += any(row["preempted"] for row in ours)
        tally["chunked"] += len({name for row in ours for name, n in row["tokens"].items() if n > 1}) < sum(
            n > 1 for row in ours for n in row["tokens"].values()
        )
    assert_often(tally, ("preempted", "chunked"), 15)


# -- leaps -------------------------------------------------------------------------------------------


def random_sglang(rng: random.Random, time_s: Callable[[float], float]) -> dict[str, Any]:
    return {
        "engine.preset": "sglang",
        "engine.max_num_batched_tokens": rng.choice([64, 64, 256]),
        "engine.enable_chunked_prefill": True,
        "engine.async_scheduling": rng.random() < 0.6,
        "engine.host_step_s": rng.choice([1e-3, 6e-3, 2e-2]),
        **({"admission.max_queued_requests": rng.choice([1, 3, 8])} if rng.random() < 0.2 else {}),
        **({"admission.queue_deadline_s": time_s(3.0)} if rng.random() < 0.3 else {}),
    }


@pytest.mark.parametrize("ticks", [True, False], ids=["ties", "free"])
def test_leaps_change_nothing(ticks: bool) -> None:
    """To the last bit, and blocks, tokens and gaps are conserved, overlapped or not."""
    tally, cases = Counter[str](), 30
    for seed in range(cases):
        case = random_case(seed, ticks, random_sglang)
        done = leaps_change_nothing(case, f"sglang {seed}", 2 + seed % 5)
        tally += Counter(statuses(done).keys())
        tally["preempted"] += done.scheduler.preemptions > 0
        tally["stood still"] += len(done.recorder.column("gap_s")) > done.scheduler.preemptions
        tally["overlapped"] += case.scenario.engine["async_scheduling"]
    often = ("completed", "cancelled", "timed_out", "rejected", "preempted", "stood still", "overlapped")
    assert_often(tally, often, cases // 20)


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice."""
    return in_seconds(request.param)


def small(**engine: Any) -> Scenario:
    keys = {"preset": "sglang", "num_gpu_blocks_override": 1000, "max_model_len": 1000, **engine}
    return base().replace({**NO_FRONT_END, **{f"engine.{key}": value for key, value in keys.items()}})


def test_what_an_empty_engine_could_not_admit_is_refused_on_arrival(run: Callable[..., Run]) -> None:
    """1000 tokens: 500 + 498 and a block more leave one; with 499 nothing is left, and nobody would look."""
    done = run(small(async_scheduling=False), (0, 500, 498), (0, 500, 499))
    assert Result(done).requests["status"].tolist() == ["completed", "never_schedulable"]


# -- the cache ---------------------------------------------------------------------------------------


def test_prefixes_are_found_to_the_token(run: Callable[..., Run]) -> None:
    """B's prompt of 50 begins with 33 tokens of A's: it computes 17. C's is A's: it computes the last one."""
    shared = Contents(*(np.array(column) for column in ([0, 1, 2, 3], [0, 0, 0], [40, 33, 40], [-1] * 3)))
    requests = replace(sent((0, 40, 2), (5, 50, 2), (10, 40, 2)), contents=shared)
    scenario = small(async_scheduling=False)
    done = simulate(scenario, requests=requests, step_time=EvenSteps(1.0))
    assert done.recorder.column("cached_tokens").tolist() == [0, 33, 39]
    off = simulate(
        scenario.replace({"engine.enable_prefix_caching": False}), requests=requests, step_time=EvenSteps(1.0)
    )
    assert off.recorder.column("cached_tokens").tolist() == [0, 0, 0]


def test_leaps_change_nothing_with_the_cache() -> None:
    """To the last bit, with prompts that share heads or are equal, overlapped or not."""
    tally, cases = Counter[str](), 30
    for seed in range(cases):
        rng = random.Random(f"cache {seed}")
        case = random_case(seed, seed % 2 == 0, random_sglang)
        case = replace(case, requests=replace(case.requests, contents=sharing(case.requests, rng)))
        done = leaps_change_nothing(case, f"sglang with a cache {seed}", 2 + seed % 5)
        summary = Result(done).summary()
        tally["hit"] += (summary["prefix_cache_hit_rate"] or 0.0) > 0.0
        tally["evicted"] += summary.get("prefix_cache_evicted_blocks", 0) > 0
        tally["preempted"] += done.scheduler.preemptions > 0
    assert_often(tally, ("hit", "evicted"), cases // 4)
    assert tally["preempted"]
