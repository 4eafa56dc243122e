"""vLLM V0's schedules without chunked prefill, derived by hand, against a walk of its lists, and in leaps.

Block size 16; ``free`` counts all blocks (V0 keeps none to itself); requests that arrive "at step k" are
queued before schedule k. A step is prompts or decodes. A decode must find a free block in its turn, whether
it takes one or not.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from cases import assert_often, in_seconds, leaps_change_nothing, random_case, statuses
from support import NO_FRONT_END, base

from sim.results import Result
from sim.scenario import Scenario
from sim.serving.prefill_first import PrefillFirstScheduler
from sim.serving.sequence import DONE, Sequence
from sim.simulation import Run, simulate

Requests = Mapping[str, tuple[int, int, int]]  # arrival step, prompt, answer
Row = dict[str, Any]


def steps(
    requests: Requests,
    count: int,
    *,
    blocks: int = 100,
    budget: int = 256,
    seqs: int = 16,
    watermark: int = 0,
    aborts: Mapping[int, list[str]] | None = None,
) -> list[Row]:
    """The first *count* steps of our scheduler."""
    scheduler = PrefillFirstScheduler(blocks, 16, seqs, budget, watermark)
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
        for name in (aborts or {}).get(step, ()):
            if requests[name][0] <= step:
                scheduler.abort(sequences[name])
        ended = scheduler.finish(1 if row["tokens"] else 0)
        row["finished"] = sorted(names[s.index] for s in ended)
        row["free"] = scheduler.free_blocks
        row["ignored"] = [names[s.index] for s in scheduler.ignored]
        row["answered"] = {name: s.generated for name, s in sequences.items() if s.state == DONE}
        rows.append(row)
    return rows


def tokens(rows: list[Row]) -> list[dict[str, int]]:
    return [row["tokens"] for row in rows]


# -- by hand -----------------------------------------------------------------------------------------


def test_whole_prompts_are_taken_while_they_fit_in_the_budget() -> None:
    """Budget 100: 60 and 40 are one step, 10 more are not. 50 beside 60 wait, and nobody passes them."""
    rows = steps({"A": (1, 60, 2), "B": (1, 40, 2), "C": (1, 10, 2)}, 4, budget=100)
    assert tokens(rows) == [{"A": 60, "B": 40}, {"C": 10}, {"A": 1, "B": 1, "C": 1}, {}]
    rows = steps({"A": (1, 60, 2), "B": (1, 50, 2), "C": (1, 10, 2)}, 2, budget=100)
    assert tokens(rows) == [{"A": 60}, {"B": 50, "C": 10}]


def test_slots_are_counted_with_those_that_run() -> None:
    """Two slots: C comes in when A and B have their second token, after step 2."""
    rows = steps({"A": (1, 8, 2), "B": (1, 8, 2), "C": (1, 8, 1)}, 3, seqs=2)
    assert tokens(rows) == [{"A": 8, "B": 8}, {"A": 1, "B": 1}, {"C": 8}]


def test_the_block_check_says_never_ok_or_later() -> None:
    """100 blocks, one of them the watermark: N's 100 would never leave one and is dropped.

    A takes 50 of 100. B's 50 would leave none: later, and C, which would fit, does not pass. A takes its 51st
    block for token 801 in step 2 and ends with step 3: B and C are step 4.
    """
    requests = {"N": (1, 1600, 2), "A": (1, 800, 3), "B": (2, 800, 1), "C": (2, 16, 1)}
    rows = steps(requests, 4, budget=4096, watermark=1)
    assert tokens(rows) == [{"A": 800}, {"A": 1}, {"A": 1}, {"B": 800, "C": 16}]
    assert [row["free"] for row in rows] == [50, 49, 100, 100]
    assert rows[0]["ignored"] == rows[3]["ignored"] == ["N"]
    assert tokens(steps({"N": (1, 1584, 1)}, 1, budget=4096, watermark=1)) == [{"N": 1584}]


def test_the_watermark_lets_in_what_leaves_it_free() -> None:
    """50 free and a watermark of one: 49 blocks go in, 50 do not."""
    for prompt, expected in ((784, {"B": 784}), (785, {"A": 1})):
        rows = steps({"A": (1, 800, 9), "B": (2, prompt, 1)}, 2, budget=4096, watermark=1)
        assert tokens(rows)[1] == expected


def test_a_step_with_a_prompt_has_no_decode() -> None:
    """A stands still while B and then C are computed, and all three decode in step 4."""
    rows = steps({"A": (1, 10, 20), "B": (2, 150, 2), "C": (3, 150, 2)}, 5)
    assert tokens(rows) == [{"A": 10}, {"B": 150}, {"C": 150}, {"A": 1, "B": 1, "C": 1}, {"A": 1}]
    assert rows[3]["finished"] == ["B", "C"]


def test_whoever_finds_no_free_block_preempts_the_last_admitted() -> None:
    """A and B hold two of four blocks each, and token 21 opens none: A preempts B all the same.

    Two blocks are free then, B's 21 tokens fit, and in step 4 it is all the same again. A watermark of one
    keeps B out until A has ended.
    """
    two = {"A": (1, 20, 4), "B": (1, 20, 4)}
    rows = steps(two, 4, blocks=4)
    assert tokens(rows) == [{"A": 20, "B": 20}, {"A": 1}, {"B": 21}, {"A": 1}]
    assert [row["preempted"] for row in rows] == [[], ["B"], [], ["B"]]
    assert [row["free"] for row in rows] == [0, 2, 0, 2]
    rows = steps({"A": (1, 20, 4), "B": (1, 20, 4)}, 6, blocks=5, watermark=1)
    assert tokens(rows) == [{"A": 20, "B": 20}, {"A": 1, "B": 1}, {"A": 1, "B": 1}, {"A": 1, "B": 1}, {}, {}]


def test_the_last_block_is_enough_for_the_last_of_the_list() -> None:
    """A opens no block at token 21; B opens the last one at token 33: nobody is preempted.

    The other way round B, second, finds none left at its turn and is its own victim.
    """
    rows = steps({"A": (1, 20, 9), "B": (1, 32, 9)}, 2, blocks=5)
    assert (rows[1]["tokens"], rows[1]["preempted"]) == ({"A": 1, "B": 1}, [])
    rows = steps({"A": (1, 32, 9), "B": (1, 20, 9)}, 2, blocks=5)
    assert (rows[1]["tokens"], rows[1]["preempted"]) == ({"A": 1}, ["B"])


def test_a_lone_sequence_that_outgrows_the_pool_is_dropped() -> None:
    """Two blocks: 33 tokens need a third. A preempts itself in step 2 and could never come back."""
    rows = steps({"A": (1, 32, 9)}, 3, blocks=2)
    assert tokens(rows) == [{"A": 32}, {}, {}]
    assert [row["preempted"] for row in rows] == [[], ["A"], []]
    assert rows[2]["ignored"] == ["A"]


def test_a_preempted_answer_is_recomputed_whole_from_the_front_of_the_queue() -> None:
    """A and B have 64 tokens in, 64 out; ten blocks, one of them the watermark; C comes at 3 and needs one.

    Step 2: both open their fifth block, none is left. Step 3: A finds none and preempts B, which has two
    tokens; its 66 need five blocks and leave no watermark, and C does not pass. A takes blocks in steps 18,
    34 and 50 and ends with step 64. Step 65 computes B's 66 tokens, and C's 8. B has 3 tokens then, and its
    64th with step 126.
    """
    rows = steps({"A": (1, 64, 64), "B": (1, 64, 64), "C": (3, 8, 1)}, 127, blocks=10, watermark=1)
    assert tokens(rows)[:3] == [{"A": 64, "B": 64}, {"A": 1, "B": 1}, {"A": 1}]
    assert [row["preempted"] for row in rows[:4]] == [[], [], ["B"], []]
    assert [row["free"] for row in rows[:3]] == [2, 0, 5]
    assert [at for at in range(4, 64) if rows[at - 1]["free"] < rows[at - 2]["free"]] == [18, 34, 50]
    assert rows[63]["finished"] == ["A"]
    assert rows[64]["tokens"] == {"B": 66, "C": 8}
    assert [at for at, row in enumerate(rows, 1) if "B" in row["finished"]] == [126]


@pytest.mark.parametrize(("step", "had"), [(2, 1), (3, 1), (4, 2)])
def test_an_abort_in_a_step_of_prompts_takes_no_token_from_a_decode(step: int, had: int) -> None:
    """A has a token of step 1, none of step 2, which is B's prompt, and loses that of the step it leaves."""
    rows = steps({"A": (1, 10, 20), "B": (2, 150, 5)}, 6, aborts={step: ["A"]})
    assert rows[step - 1]["answered"] == {"A": had}
    assert rows[step - 1]["free"] == 90


# -- in time -----------------------------------------------------------------------------------------


def engine(**settings: Any) -> Scenario:
    """The preset with small limits."""
    small = {"preset": "vllm-v0", "max_model_len": 2048, "max_num_batched_tokens": 2048, **settings}
    return base().replace({**NO_FRONT_END, **{f"engine.{key}": value for key, value in small.items()}})


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice."""
    return in_seconds(request.param)


def test_a_decode_that_stands_still_has_one_long_gap(run: Callable[..., Run]) -> None:
    """Steps of a second: A's tokens come at 1, 4, 5 and 6, since B's and C's prompts are steps 2 and 3."""
    done = run(engine(), (0.0, 10, 4), (0.5, 20, 2), (1.5, 20, 2))
    table = Result(done).requests
    assert table["stall_s"].tolist() == [3.0, 2.0, 1.0]
    assert table["finish_s"].tolist() == [6.0, 4.0, 4.0]
    assert table["ttft_s"].tolist() == [1.0, 1.5, 1.5]


def test_a_preempted_decode_has_one_gap_from_its_last_token_to_its_next(run: Callable[..., Run]) -> None:
    """As above by hand: B has its second token at 2 and its third at 65, A stands still for nobody."""
    scenario = engine(num_gpu_blocks_override=10, watermark=0.1, max_model_len=144, max_num_seqs=2)
    done = run(scenario, (0.0, 64, 64), (0.0, 64, 64))
    table = Result(done).requests
    assert table["stall_s"].tolist() == [1.0, 63.0]
    assert table["preemptions"].tolist() == [0, 1]


def test_all_blocks_are_usable_and_the_watermark_is_a_share_of_them(run: Callable[..., Run]) -> None:
    """Of 100 blocks one is the watermark: 99 can be filled, and a request that needs 100 is refused."""
    scenario = engine(num_gpu_blocks_override=100, max_model_len=1600)
    done = run(scenario, (0.0, 1580, 5), (0.0, 1580, 6))
    assert done.scheduler.num_blocks == 100
    assert Result(done).requests["status"].tolist() == ["completed", "never_schedulable"]


# -- against the lists themselves ----------------------------------------------------------------------


@dataclass(eq=False)
class Walker:
    """V0's two lists, walked: requests are (name, prompt, answer) with what they have."""

    blocks: int
    budget: int
    seqs: int
    watermark: int
    waiting: deque[str] = field(default_factory=deque)
    running: list[str] = field(default_factory=list)
    length: dict[str, int] = field(default_factory=dict)  # known tokens
    last: dict[str, int] = field(default_factory=dict)  # at which it ends
    held: dict[str, int] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.blocks - sum(self.held.values())

    def prompts(self) -> dict[str, int]:
        """Take from the head of the queue what fits."""
        taken: dict[str, int] = {}
        while self.waiting:
            name = self.waiting[0]
            size, need = self.length[name], -(-self.length[name] // 16)
            if size > self.budget or self.blocks - need < self.watermark:
                self.waiting.popleft()
                continue
            fits = sum(taken.values()) + size <= self.budget and len(self.running) < self.seqs
            if self.free - need < self.watermark or not fits:
                break
            self.waiting.popleft()
            self.running.append(name)
            taken[name], self.held[name] = size, need
        return taken

    def decodes(self) -> tuple[dict[str, int], list[str]]:
        """One token each, while there is a free block at everybody's turn."""
        queue, self.running, preempted = deque(self.running), [], []
        while queue:
            name = queue.popleft()
            while self.free < 1:
                victim = queue.pop() if queue else name
                del self.held[victim]
                preempted.append(victim)
                if victim == name:
                    break
            else:
                self.held[name] = -(-self.length[name] // 16)
                self.running.append(name)
        self.waiting.extendleft(preempted)
        return dict.fromkeys(self.running, 1), preempted

    def step(self, gone: list[str]) -> Row:
        taken, preempted = self.prompts(), []
        if not taken:
            taken, preempted = self.decodes()
        for name in gone:
            self.held.pop(name, None)
            self.running = [other for other in self.running if other != name]
            self.waiting = deque(other for other in self.waiting if other != name)
        finished = []
        for name in taken:
            if name in self.held:
                self.length[name] += 1
                if self.length[name] == self.last[name]:
                    finished.append(name)
                    del self.held[name]
                    self.running.remove(name)
        return {"tokens": taken, "preempted": preempted, "finished": sorted(finished), "free": self.free}


def walked(requests: Requests, count: int, limits: Mapping[str, int], aborts: Any) -> Iterator[Row]:
    walker = Walker(**limits)
    gone: set[str] = set()
    for step in range(1, count + 1):
        for name, (at, prompt, answer) in requests.items():
            if at == step:
                walker.length[name], walker.last[name] = prompt, prompt + answer
                walker.waiting.append(name)
        leaving = [name for name in aborts.get(step, ()) if name in walker.length and name not in gone]
        gone.update(leaving)
        yield walker.step(leaving)


def test_every_step_is_that_of_the_walked_lists() -> None:
    """Tokens, victims in their order, ends and free blocks, over random cases with aborts."""
    tally = Counter[str]()
    for seed in range(150):
        rng = random.Random(seed)
        blocks = rng.randint(4, 40)
        limits = {"blocks": blocks, "budget": rng.choice([64, 256, 1024]), "seqs": rng.choice([1, 3, 8, 32]),
                  "watermark": rng.choice([0, 0, 1, 2])}  # fmt: skip
        longest = rng.choice([20, 80, 16 * blocks])
        requests = {
            f"r{i:02}": (rng.randint(1, 60), rng.randint(1, longest), rng.randint(1, longest))
            for i in range(rng.randint(2, 25))
        }
        aborts = {rng.randint(1, 80): [name] for name in requests if rng.random() < 0.2}
        ours = steps(requests, 200, aborts=aborts, **limits)
        for step, expected in enumerate(walked(requests, 200, limits, aborts), 1):
            assert {key: ours[step - 1][key] for key in expected} == expected, f"seed {seed}, step {step}"
        tally["preempted"] += any(row["preempted"] for row in ours)
        tally["several at once"] += any(len(row["preempted"]) > 1 for row in ours)
        tally["ignored"] += bool(ours[-1]["ignored"])
        tally["its own victim"] += any(row["preempted"] and not row["tokens"] for row in ours)
    assert_often(tally, ("preempted", "several at once", "ignored", "its own victim"), 4)


def test_lmdeploy_tells_of_all_its_prompts_together() -> None:
    """Sixteen prompts of 2000 tokens: V0 computes two at a time in its budget, LMDeploy all in a step."""
    first = {}
    for preset in ("vllm-v0", "lmdeploy"):
        keys = {"engine.preset": preset, "engine.max_model_len": 4096, "load": "burst", "run.requests": 16}
        done = simulate(base().replace({**NO_FRONT_END, **keys, "run.warmup": 0.0}))
        first[preset] = sorted(set(Result(done).requests["first_token_s"].tolist()))
    assert len(first["lmdeploy"]) == 1
    assert len(first["vllm-v0"]) == 8
    assert first["vllm-v0"][0] < first["lmdeploy"][0] / 4


# -- leaps -------------------------------------------------------------------------------------------


def random_v0(rng: random.Random, time_s: Callable[[float], float]) -> dict[str, Any]:
    other = rng.random() < 0.2
    preset = {"engine.preset": "lmdeploy"} if other else {"engine.preset": "vllm-v0"}
    return {
        **preset,
        "engine.max_num_batched_tokens": rng.choice([2048, 4096]),
        "engine.watermark": 0.0 if other else rng.choice([0.0, 0.01, 0.05]),
        **({"admission.max_queued_requests": rng.choice([1, 3, 8])} if rng.random() < 0.2 else {}),
        **({"admission.queue_deadline_s": time_s(3.0)} if rng.random() < 0.3 else {}),
        **({"admission.reserve": "expected"} if rng.random() < 0.1 else {}),
    }


@pytest.mark.parametrize("ticks", [True, False], ids=["ties", "free"])
def test_leaps_change_nothing(ticks: bool) -> None:
    """To the last bit, and blocks, tokens and gaps are conserved, with patience, deadlines and queues."""
    tally, cases = Counter[str](), 80
    for seed in range(cases):
        done = leaps_change_nothing(random_case(seed, ticks, random_v0), f"v0 {seed}", 2 + seed % 5)
        tally += Counter(statuses(done).keys())
        tally["preempted"] += done.scheduler.preemptions > 0
        tally["stood still"] += len(done.recorder.column("gap_s")) > done.scheduler.preemptions
        assert not done.scheduler.ignored
    often = ("completed", "cancelled", "timed_out", "rejected", "preempted", "stood still")
    assert_often(tally, often, cases // 20)
