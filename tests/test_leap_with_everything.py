"""A leap changes nothing with prefix caching, priorities, asynchronous scheduling and aborts on either.

The small engines of `test_leap_equals_step`, a third of whose clients leave, with these switched on at
random, prompts that share heads or are equal, and hosts that are sometimes slower than the GPU.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
from cases import assert_often
from support import answer
from test_leap_equals_step import Case, pinned_case, random_case

from sim.results import Result
from sim.workload import Requests
from sim.workload.contents import Contents

HEADS = 4
CASES = 160


def sharing(requests: Requests, rng: random.Random) -> Contents:
    """Two prompts of three begin with one of a few heads; whose prompts are equal may have equal answers."""
    lengths = [rng.choice([5, 20, 64, 200]) for _ in range(HEADS)]
    offsets, ids, ends, tails = [0], [], [], []
    for prompt in requests.prompt_tokens.tolist():
        tail = -1
        if rng.random() < 0.7:
            head = rng.randrange(HEADS)
            end = prompt if rng.random() < 0.3 else min(prompt, lengths[head])
            if end == prompt and rng.random() < 0.5:
                tail = 1000 + head * 5000 + prompt
            ids.append(head)
            ends.append(end)
        offsets.append(len(ids))
        tails.append(tail)
    return Contents(*(np.array(column, dtype=np.int64) for column in (offsets, ids, ends, tails)))


def full_case(seed: int) -> Case:
    """Case *seed* of the small engines, with what this file is about at random."""
    rng = random.Random(f"everything {seed}")
    case = pinned_case(seed) if seed % 4 == 3 else random_case(seed, ticks=seed % 2 == 0)
    by_priority = rng.random() < 0.5
    host = {"engine.host_step_s": rng.choice([1e-3, 6e-3, 7e-3, 2e-2])} if rng.random() < 0.4 else {}
    if rng.random() < 0.3:
        host |= {"engine.eager_layer_s": 2e-4, "engine.cuda_graphs": rng.random() < 0.5}
    scenario = case.scenario.replace(
        {
            "engine.async_scheduling": rng.random() < 0.6,
            "engine.enable_prefix_caching": rng.random() < 0.7,
            "engine.scheduling_policy": "priority" if by_priority else "fcfs",
            "engine.watermark": rng.choice([0.0, 0.0, 0.1]),
            **host,
        }
    )
    urgency = np.array([rng.randrange(3) for _ in range(len(case.requests))])
    requests = replace(
        case.requests,
        contents=sharing(case.requests, rng) if rng.random() < 0.7 else None,
        priorities=urgency if by_priority else None,
    )
    return replace(case, scenario=scenario, requests=requests)


def test_leaps_change_nothing_with_everything_on() -> None:
    """Summary, requests and step log in equal bytes; all blocks are free at the end, no token is lost."""
    tally: Counter[str] = Counter()
    for seed in range(CASES):
        case = full_case(seed)
        stepped = case.run(max_leap=1)
        expected, summary = answer(stepped), Result(stepped).summary()
        assert summary["checks"]["blocks_conserved"], seed
        assert summary["checks"]["tokens_conserved"], seed
        assert not summary["requests"]["unfinished"], seed
        for max_leap in (None, 2 + seed % 6):
            found = answer(case.run(max_leap))
            assert [part for part in expected if found[part] != expected[part]] == [], (seed, max_leap)
        engine = case.scenario.engine
        tally["asynchronous"] += engine["async_scheduling"]
        tally["by priority"] += engine["scheduling_policy"] == "priority"
        tally["preempted"] += summary["preemptions"] > 0
        tally["hit"] += (summary["prefix_cache_hit_rate"] or 0.0) > 0.0
        tally["evicted"] += summary.get("prefix_cache_evicted_blocks", 0) > 0
        tally["left"] += summary["requests"]["cancelled"] > 0
    assert_often(tally, ("asynchronous", "by priority", "preempted", "hit", "evicted", "left"), CASES // 8)
