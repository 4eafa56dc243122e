"""Prompts that go on from earlier ones, by a table of how much and a table of how long ago."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from test_workload_chains import assert_streams_begin_alike

from sim.faults import InputFault
from sim.scenario import load
from sim.workload import Contents, Requests, generate, reusable_tokens
from sim.workload.reuse import reused_contents
from sim.workload.streams import Streams

LENGTHS = {"kind": "lognormal", "prompt_mean": 2000, "output_mean": 20, "cv": 0.8}
SEEN = {"up_to_tokens": [1500], "quantiles": [0, 0.5, 1], "rows": [[0, 0, 0.5], [0, 0.4, 0.9]]}
AGE = {"quantiles": [0, 0.5, 1], "seconds": [2, 20, 60]}
REUSE: dict[str, Any] = {"kind": "reuse", "seen": SEEN, "age": AGE}


def sent(prefixes: dict[str, Any] | None, requests: int = 3000, seed: int = 1) -> Requests:
    workload = {"arrivals": {"kind": "poisson"}, "lengths": LENGTHS, "prefixes": prefixes}
    return generate(workload, {"rate_per_s": 4}, {"requests": requests, "seed": seed})


def contents_of(requests: Requests) -> Contents:
    assert requests.contents is not None
    return requests.contents


def seen_before(requests: Requests) -> np.ndarray:
    return reusable_tokens(contents_of(requests), requests.prompt_tokens, requests.output_tokens)


def test_a_cache_without_limit_finds_what_the_table_says() -> None:
    """In each class of lengths the mean share seen before is the table's mean, within sampling (99.9 %)."""
    requests = sent(REUSE, 6000)
    share = seen_before(requests) / requests.prompt_tokens
    settled = requests.arrival_s > AGE["seconds"][-1]
    longer = requests.prompt_tokens > SEEN["up_to_tokens"][0]
    for rows, mean in ((settled & ~longer, 0.125), (settled & longer, 0.425)):
        own = share[rows]
        assert abs(own.mean() - mean) < 3.291 * own.std() / math.sqrt(len(own)) + 0.5 / 100


def test_reuse_moves_nothing_else_and_a_longer_run_begins_with_the_shorter_one() -> None:
    """Times and lengths are as without; prompts are told from nothing that comes later."""
    plain, shared, longer = sent(None), sent(REUSE), sent(REUSE, 4000)
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert getattr(plain, name).tobytes() == getattr(shared, name).tobytes()
    assert seen_before(longer)[:3000].tobytes() == seen_before(shared).tobytes()
    assert contents_of(sent(REUSE)).ids.tobytes() == contents_of(shared).ids.tobytes()
    assert_streams_begin_alike(contents_of(shared))


def test_ages_are_those_of_the_table() -> None:
    """The last request to have had a prompt's beginning came as long before as the table says: the median
    lies between its 40 % and 60 % points, though the parent must be long enough and nobody else's."""
    requests = sent(REUSE, 4000)
    contents, last, ages = contents_of(requests), {}, []
    for row, at in enumerate(requests.arrival_s):
        segments = contents.of(row)[0]
        known = [stream for stream, _ in segments if stream in last]
        if known and at > AGE["seconds"][-1]:
            ages.append(at - last[known[-1]])
        last.update((stream, at) for stream, _ in segments)
    low, high = np.exp(np.interp([0.4, 0.6], AGE["quantiles"], np.log(AGE["seconds"])))
    assert len(ages) > 1000
    assert low < np.median(ages) < high


def test_all_prompts_begin_with_the_head() -> None:
    """With a head every prompt but the first finds it at least; a prompt no longer than it is all head."""
    requests = sent({**REUSE, "head_tokens": 700})
    expected = np.minimum(700, requests.prompt_tokens - 1)
    seen = seen_before(requests)
    assert (seen[1:] >= expected[1:]).all()
    assert (seen[1:] == expected[1:]).mean() > 0.4
    assert_streams_begin_alike(contents_of(requests))


def test_who_is_too_long_goes_on_from_the_longest() -> None:
    """No earlier prompt has 95 tokens: the last request shares the 60 of the longest, not fewer."""
    arrival_s, prompts = np.arange(4.0), np.array([10, 60, 30, 100])
    always = {"seen": {"quantiles": [0, 1], "rows": [[0.95, 0.95]]},
              "age": {"quantiles": [0, 1], "seconds": [0.5, 0.6]}}  # fmt: skip
    contents = reused_contents(always, arrival_s, prompts, Streams(1))
    assert contents is not None
    assert reusable_tokens(contents, prompts, np.ones(4, dtype=np.int64))[3] == 60


FAULTS = {
    "prefixes.seen.rows must have a row for each of 2 classes": {"seen": {**SEEN, "rows": [[0, 0, 1]]}},
    "prefixes.seen.rows must have a number for each quantile": {
        "seen": {**SEEN, "rows": [[0, 1], [0, 1, 1]]}
    },
    "prefixes.seen.rows must lie between 0 and 1": {"seen": {**SEEN, "rows": [[0, 0, 2], [0, 0, 1]]}},
    "prefixes.seen.up_to_tokens must rise": {
        "seen": {**SEEN, "up_to_tokens": [5, 5], "rows": [[0, 0, 1]] * 3}
    },
    "prefixes.age.quantiles must rise from 0 to 1": {"age": {"quantiles": [0, 0.5], "seconds": [1, 2]}},
    "prefixes.age.seconds must never fall": {"age": {"quantiles": [0, 1], "seconds": [2, 1]}},
}


@pytest.mark.parametrize("words", FAULTS)
def test_tables_are_checked(words: str) -> None:
    """What a table lacks is said by key."""
    workload = {"lengths": LENGTHS, "prefixes": {**REUSE, **FAULTS[words]}}
    with pytest.raises(InputFault, match=words):
        load({"hardware": "a100-80gb-sxm", "model": "llama-3-8b", "workload": workload,
              "load": {"rate_per_s": 1}})  # fmt: skip


def test_ages_need_times() -> None:
    """A closed loop has no arrivals from which an age could be counted."""
    with pytest.raises(InputFault, match="load must have rate_per_s or mode trace"):
        load({"hardware": "a100-80gb-sxm", "model": "llama-3-8b",
              "workload": {"lengths": LENGTHS, "prefixes": REUSE}, "load": {"concurrency": 4}})  # fmt: skip
