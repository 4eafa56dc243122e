"""Sharing drawn by popularity, by sessions and by several answers; how much of it a cache could use."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_workload_chains import assert_streams_begin_alike

from sim.scenario.tree import Faults
from sim.scenario.yaml_core import read_file
from sim.workload import (
    Contents,
    Requests,
    generate,
    lru_hit_ratio,
    mean_tokens,
    read_trace,
    reusable_tokens,
    stream,
)
from sim.workload.chains import check_chains, compress

SHARED = Path(__file__).parents[1].parent / "shared" / "data" / "traces"
LENGTHS = {"kind": "lognormal", "prompt_mean": 60, "output_mean": 20, "cv": 1.0}
PATIENCE = {"kind": "exponential", "mean_s": 9.0}
GROUPS = {"kind": "groups", "groups": 20, "tokens_mean": 30, "tokens_cv": 0.5, "zipf": 1.0, "share": 0.8}
LONG_HEADS = {**GROUPS, "tokens_mean": 80}  # many a first prompt is all head
SESSIONS = {"turns": {"kind": "geometric", "mean": 3.0}, "gap": {"kind": "exponential", "mean_s": 5.0}}


def sent(requests: int = 400, rate_per_s: float = 4.0, seed: int = 1, **workload: Any) -> Requests:
    whole = {"arrivals": {"kind": "poisson"}, "lengths": LENGTHS, **workload}
    return generate(whole, {"rate_per_s": rate_per_s}, {"requests": requests, "seed": seed})


def contents_of(requests: Requests) -> Contents:
    assert requests.contents is not None
    return requests.contents


def reusable(requests: Requests, block_tokens: int = 1) -> np.ndarray:
    return reusable_tokens(
        contents_of(requests), requests.prompt_tokens, requests.output_tokens, block_tokens
    )


def columns(requests: Requests) -> list[np.ndarray]:
    assert requests.patience_s is not None
    return [requests.arrival_s, requests.prompt_tokens, requests.output_tokens, requests.patience_s]


def tokens_of(requests: Requests, row: int, length: int) -> list[tuple[int, int]]:
    """The first *length* tokens of a request and its answer, each as what tells it from others."""
    segments, tail = contents_of(requests).of(row)
    tokens: list[tuple[int, int]] = []
    for name, end in segments:
        tokens += [(name, at) for at in range(len(tokens), end)]
    own = tail if tail >= 0 else -1 - row
    return tokens + [(own, at) for at in range(len(tokens), length)]


@pytest.mark.parametrize("more", [{}, {"sessions": SESSIONS}], ids=["alone", "sessions"])
def test_heads_move_nothing_else(more: dict[str, Any]) -> None:
    """With shared heads the same requests come at the same times, as long as before, as patient."""
    plain = sent(patience=PATIENCE, **more)
    headed = sent(patience=PATIENCE, prefixes=GROUPS, **more)
    assert contents_of(headed).ids.min() < 20
    for before, after in zip(columns(plain), columns(headed), strict=True):
        assert before.tobytes() == after.tobytes()


def test_heads_are_drawn_from_a_stream_of_their_own() -> None:
    """One number a request, below the share where it has a head: another share moves no draw."""
    own = stream(1, "prefixes").random(300)
    for share in (0.2, 0.7):
        headed = np.diff(contents_of(sent(300, prefixes={**GROUPS, "share": share})).offsets) > 0
        assert np.array_equal(headed, own < share)


@pytest.mark.parametrize("more", [{"prefixes": GROUPS}, {"sessions": SESSIONS, "prefixes": GROUPS},
                                  {"answers": 3, "prefixes": GROUPS}], ids=str)  # fmt: skip
def test_a_longer_run_begins_with_the_shorter_one(more: dict[str, Any]) -> None:
    """Columns and contents alike."""
    short, long = sent(100, patience=PATIENCE, **more), sent(400, patience=PATIENCE, **more)
    for before, after in zip(columns(short), columns(long), strict=True):
        assert before.tobytes() == after[:100].tobytes()
    assert all(contents_of(short).of(row) == contents_of(long).of(row) for row in range(100))


@pytest.mark.parametrize("more", [{"prefixes": GROUPS}, {"sessions": SESSIONS}, {"answers": 4},
                                  {"sessions": SESSIONS, "prefixes": GROUPS},
                                  {"answers": 2, "prefixes": GROUPS}], ids=str)  # fmt: skip
@pytest.mark.parametrize("block_tokens", [1, 16])
def test_reusable_tokens_are_those_of_an_earlier_request(more: dict[str, Any], block_tokens: int) -> None:
    """Token by token: the longest beginning that an earlier prompt and answer has, in whole blocks, without
    the prompt's last token and the answer's last, whose keys and values nobody computed."""
    requests = sent(60, **more)
    assert_streams_begin_alike(contents_of(requests))
    cached: set[tuple[tuple[int, int], ...]] = set()
    for row, found in enumerate(reusable(requests, block_tokens).tolist()):
        prompt, output = int(requests.prompt_tokens[row]), int(requests.output_tokens[row])
        tokens = tuple(tokens_of(requests, row, prompt + output - 1))
        ends = range(block_tokens, prompt, block_tokens)
        assert found == max((end for end in ends if tokens[:end] in cached), default=0)
        cached |= {tokens[:end] for end in range(block_tokens, len(tokens) + 1, block_tokens)}


@pytest.mark.parametrize(("zipf", "share"), [(0.0, 1.0), (1.0, 0.8), (2.0, 0.3)])
def test_hits_of_popular_heads_follow_the_closed_form(zipf: float, share: float) -> None:
    """Of N requests, those with a head but for the first of each group: N s - sum(1 - (1 - s p_g)^N)."""
    count, head, prompt, groups = 1500, 100, 160, 300
    prefixes = {"kind": "groups", "groups": groups, "tokens": head, "zipf": zipf, "share": share}
    lengths = {"kind": "fixed", "prompt_tokens": prompt, "output_tokens": 2}
    weights = np.arange(1, groups + 1) ** -zipf
    chances = share * weights / weights.sum()
    expected = count * share - (1 - (1 - chances) ** count).sum()
    found = [
        reusable(sent(count, seed=seed, lengths=lengths, prefixes=prefixes)).sum() / head
        for seed in range(1, 11)
    ]
    spread = np.sqrt((count * share * (1 - share) + groups / 4) / len(found))
    assert abs(np.mean(found) - expected) < 3.5 * spread


def test_a_prompt_no_longer_than_its_head_is_all_head() -> None:
    """It shares all its tokens, and the last one is computed all the same."""
    lengths = {"kind": "fixed", "prompt_tokens": 50, "output_tokens": 2}
    requests = sent(10, lengths=lengths, prefixes={"kind": "groups", "groups": 1, "tokens": 80})
    assert contents_of(requests).of(3) == (((0, 50),), -1)
    assert reusable(requests).tolist() == [0] + [49] * 9


def test_several_answers_share_their_prompt_and_nothing_else() -> None:
    """They come at once, at the same rate of requests; every answer has its own length."""
    requests = sent(400, answers=4)
    alone = sent(400)
    assert np.array_equal(requests.arrival_s[::4], requests.arrival_s[3::4])
    assert requests.prompt_tokens.tolist() == np.repeat(alone.prompt_tokens[:100], 4).tolist()
    assert np.array_equal(requests.output_tokens, alone.output_tokens)
    many = sent(40_000, answers=4)
    assert many.arrival_s[-1] == pytest.approx(40_000 / 4.0, rel=0.04)
    found = reusable(requests).reshape(100, 4)
    assert (found[:, 0] == 0).all()
    assert (found[:, 1:] == requests.prompt_tokens.reshape(100, 4)[:, 1:] - 1).all()
    assert (contents_of(requests).tails == -1).all()


def turns_by_session(requests: Requests, groups: int = 0) -> list[list[int]]:
    """The rows of each session that has two turns in the run at least, in order; *groups* heads are none."""
    sessions: dict[int, list[int]] = {}
    for row in range(len(requests)):
        segments, tail = contents_of(requests).of(row)
        name = tail if tail >= 0 else segments[-1][0] if segments else -1
        if name >= groups:
            sessions.setdefault(name, []).append(row)
    return [rows for rows in sessions.values() if len(rows) > 1]


@pytest.mark.parametrize("more", [{}, {"prefixes": LONG_HEADS}], ids=["alone", "heads"])
def test_a_turn_goes_on_from_prompt_and_answer_of_the_last(more: dict[str, Any]) -> None:
    """It is longer than both, and shares all of them but the answer's last token; it comes a gap later."""
    gap = {"kind": "fixed", "mean_s": 5.0}
    requests = sent(sessions={"turns": SESSIONS["turns"], "gap": gap}, **more)
    found = reusable(requests)
    groups = 20 if more else 0
    pairs = [pair for rows in turns_by_session(requests, groups) for pair in pairwise(rows)]
    assert len(pairs) > 200
    for before, after in pairs:
        said = requests.prompt_tokens[before] + requests.output_tokens[before]
        assert requests.prompt_tokens[after] > said
        assert found[after] == said - 1
        assert requests.arrival_s[after] - requests.arrival_s[before] == pytest.approx(5.0, abs=1e-9)


@pytest.mark.parametrize("kind", ["fixed", "geometric"])
def test_sessions_come_at_the_asked_rate_from_the_start(kind: str) -> None:
    """Sessions that began earlier are there at t = 0: each third of the run has a third of its requests,
    and the mean prompt is the one that is told beforehand."""
    gap = {"kind": "exponential", "mean_s": 200.0}
    sessions = {"turns": {"kind": kind, "mean": 4.0}, "gap": gap}
    run = {"duration_s": 3000.0, "seed": 1}
    workload = {"arrivals": {"kind": "poisson"}, "lengths": LENGTHS, "sessions": sessions}
    requests = generate(workload, {"rate_per_s": 10.0}, run)
    thirds, _ = np.histogram(requests.arrival_s, bins=3, range=(0, 3000))
    assert thirds == pytest.approx(10_000, rel=0.08)
    assert requests.prompt_tokens.mean() == pytest.approx(mean_tokens(workload)[0], rel=0.05)


def test_users_who_think_wait_for_an_earlier_request() -> None:
    """The row to wait for is a lower one, of the turn before; nominal arrivals are think times apart."""
    requests = sent(sessions={"turns": SESSIONS["turns"], "think": SESSIONS["gap"]})
    assert requests.follows is not None
    previous, think_s = requests.follows.previous, requests.follows.think_s
    waiting = np.flatnonzero(previous >= 0)
    assert len(waiting) > 200
    assert (previous < np.arange(len(requests))).all()
    passed_s = requests.arrival_s[waiting] - requests.arrival_s[previous[waiting]]
    assert passed_s == pytest.approx(think_s[waiting], abs=1e-9)
    pairs = {pair for rows in turns_by_session(requests) for pair in pairwise(rows)}
    assert pairs == {(int(previous[row]), int(row)) for row in waiting}
    assert sent(sessions=SESSIONS).follows is None


@pytest.mark.parametrize(("capacity", "hits"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3)])
def test_a_small_cache_keeps_first_blocks(capacity: int, hits: int) -> None:
    """A prompt of three blocks, then one of one block, then the first again: its first block goes last."""
    ends = np.array([30, 30])
    contents = Contents(np.array([0, 1, 1, 2]), np.array([0, 0]), ends, np.full(3, -1))
    assert lru_hit_ratio(contents, np.array([30, 10, 30]), 10, capacity) == hits / 7


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_hit_ratios_of_a_recorded_trace(name: str) -> None:
    """By cache size within half a point of those found independently from the raw ids, and without limit."""
    path = SHARED / "mooncake" / f"{name}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip("needs Mooncake's traces beside the repository")
    profile = read_file(SHARED / "profiles" / f"mooncake_{name}.yaml", Faults()).value["prefix"]
    trace = read_trace(path)
    assert trace.chains is not None
    check_chains(trace.chains, trace.prompt_tokens, 512, str(path))
    contents = compress(trace.chains, trace.prompt_tokens, 512)
    assert contents is not None
    found = reusable_tokens(contents, trace.prompt_tokens, trace.output_tokens).sum()
    assert found / trace.prompt_tokens.sum() == pytest.approx(
        profile["infinite_cache_token_hit_ratio"], abs=0.001
    )
    recorded = profile["lru_hit_ratio_by_capacity_blocks"]
    for capacity in ("1000", "10000", "50000"):
        ratio = recorded[capacity]
        assert lru_hit_ratio(contents, trace.prompt_tokens, 512, int(capacity)) == pytest.approx(
            float(ratio), abs=0.005
        )
