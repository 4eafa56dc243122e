"""Sessions turn by turn and call by call: against a loop that plays them one after the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sim.workload import Requests, generate, mean_context_tokens, mean_tokens
from sim.workload.session_shape import contexts, session_shape
from sim.workload.streams import Streams

TURNS = {"kind": "geometric", "mean": 3.0}
TABLE = {"kind": "table", "values": [1, 2, 12], "weights": [0.6, 0.3, 0.1]}
THINK = {"kind": "lognormal", "mean_s": 40.0, "cv": 1.5}
TOOLS = {
    "calls": {"kind": "table", "values": [0, 1, 6], "weights": [0.5, 0.3, 0.2]},
    "time": {"kind": "table", "quantiles": [0, 0.9, 1], "seconds": [0.1, 2, 60]},
    "output": {"kind": "lognormal", "mean": 300, "cv": 2},
}
AGENTS = {"turns": TURNS, "think": THINK, "tools": TOOLS, "first": {"kind": "fixed", "mean": 5000}}
FIXED = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 40}


def sent(sessions: dict[str, Any], lengths: dict[str, Any] = FIXED, requests: int = 3000) -> Requests:
    workload = {"arrivals": {"kind": "poisson"}, "lengths": lengths, "sessions": sessions}
    return generate(workload, {"rate_per_s": 5.0}, {"requests": requests, "seed": 1})


def chains(requests: Requests) -> list[list[int]]:
    """The rows of each session whose beginning is in the run, in order."""
    assert requests.follows is not None
    after = {int(before): row for row, before in enumerate(requests.follows.previous) if before >= 0}
    found = []
    for row in np.flatnonzero(requests.follows.previous < 0).tolist():
        chain = [row]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        found.append(chain)
    return found


def test_an_agent_session_by_hand() -> None:
    """Two turns of one call: 100 tokens are asked, 40 answered, 7 come from the tool after 2 s, 40 answered;
    the next turn adds 100 after 30 s more. Times are those of answers that take none."""
    fixed = {"kind": "fixed", "mean": 1}
    tools = {"calls": fixed, "time": {"kind": "fixed", "mean_s": 2.0}, "output": {"kind": "fixed", "mean": 7}}
    turns = {"kind": "fixed", "mean": 2}
    requests = sent({"turns": turns, "think": {"kind": "fixed", "mean_s": 30.0}, "tools": tools})
    whole = next(
        rows for rows in chains(requests) if requests.prompt_tokens[rows[0]] == 100 and len(rows) == 4
    )
    assert requests.prompt_tokens[whole].tolist() == [100, 147, 287, 334]
    assert np.diff(requests.arrival_s[whole]) == pytest.approx([2, 30, 2], abs=1e-9)
    assert requests.follows is not None
    assert requests.follows.think_s[whole].tolist() == [0, 2, 30, 2]


def test_sessions_are_those_of_a_loop() -> None:
    """Prompt by prompt: drawn one after the other from the same streams, session by session."""
    streams, count = Streams(1), 60_000
    shape = session_shape({"sessions": AGENTS})
    turns = shape.turns.open(streams, "sessions.turns")(count)
    calls = iter(shape.calls.open(streams, "sessions.calls")(4 * count).tolist())
    outputs = iter(
        np.maximum(np.rint(shape.tool_tokens.open(streams, "sessions.tools.output")(4 * count)), 1)
    )
    played = set()
    for of_session in turns[:8000].astype(int).tolist():
        context, prompts = 0, []
        for turn in range(of_session):
            new = 5000 if turn == 0 else 100
            for call in range(1 + int(next(calls))):
                context += int(next(outputs)) if call else new
                prompts.append(context)
                context += 40
        played.add(tuple(prompts))
    requests = sent(AGENTS)
    whole = [rows for rows in chains(requests) if requests.prompt_tokens[rows[0]] == 5000]
    ended = [rows for rows in whole if requests.contents is None or requests.contents.of(rows[-1])[1] < 0]
    assert len(ended) > 40
    assert all(tuple(requests.prompt_tokens[rows].tolist()) in played for rows in ended)


def test_a_request_follows_the_one_before_it_in_its_session() -> None:
    """A lower row; its prompt has all that the other's had and its answer; both have one stream of tokens."""
    requests = sent(AGENTS)
    pairs = [(rows[i], rows[i + 1]) for rows in chains(requests) for i in range(len(rows) - 1)]
    assert len(pairs) > 1000
    assert requests.contents is not None
    for before, after in pairs:
        assert before < after
        assert requests.prompt_tokens[after] > requests.prompt_tokens[before] + 40
        assert requests.contents.of(before)[1] == requests.contents.of(after)[0][-1][0]


@pytest.mark.parametrize("turns", [TURNS, {"kind": "fixed", "mean": 3}, TABLE], ids=str)
@pytest.mark.parametrize("agents", [False, True])
def test_means_are_those_of_what_is_sent(turns: dict[str, Any], agents: bool) -> None:
    """The mean prompt, and the mean context of a running sequence, by closed form: over many sessions whole,
    where no run's end cuts the long ones off."""
    sessions = {**AGENTS, "turns": turns} if agents else {"turns": turns, "gap": THINK}
    lengths = {"kind": "geometric", "prompt_mean": 100, "output_mean": 40}
    workload = {"arrivals": {"kind": "poisson"}, "lengths": lengths, "sessions": sessions}
    shape = session_shape(workload)
    rng = np.random.default_rng(1)
    count, total, number, seat = 10_000, 0.0, 0, 0.0
    of_turns = shape.turns.open(Streams(2), "turns")(count).astype(int)
    of_calls = iter(shape.calls.open(Streams(2), "calls")(int(of_turns.sum())).astype(int).tolist())
    for of_session in of_turns.tolist():
        steps = [0 if call else 1 for _ in range(of_session) for call in range(1 + next(of_calls))]
        new = np.where(steps, rng.geometric(0.01, len(steps)), rng.lognormal(np.log(300), 0, len(steps)))
        new[0] = 5000 if agents else new[0]
        out = rng.geometric(1 / 40, len(steps))
        prompt = np.cumsum(new + out) - out
        total, number, seat = (
            total + prompt.sum(),
            number + len(steps),
            seat + (out * prompt + out**2 / 2).sum(),
        )
    assert mean_tokens(workload)[0] == pytest.approx(total / number, rel=0.03)
    assert mean_context_tokens(workload) == pytest.approx(seat / (40 * number), rel=0.04)


def test_requests_come_at_the_asked_rate() -> None:
    """Turns and calls together: sessions begin so much more rarely."""
    requests = sent(AGENTS, requests=30_000)
    assert requests.arrival_s[-1] == pytest.approx(30_000 / 5.0, rel=0.1)


def test_a_lognormal_pause_may_be_shorter_than_its_mean() -> None:
    """Half of them are shorter than mean / sqrt(1 + cv^2), the median; intervals of 99.9 %."""
    pauses_s = session_shape({"sessions": AGENTS}).pause.draw(1, "pauses", 50_000)
    below = np.count_nonzero(pauses_s < 40.0 / np.sqrt(1 + 1.5**2)) / len(pauses_s)
    assert abs(below - 0.5) < 3.291 * 0.5 / np.sqrt(len(pauses_s))
    assert abs(pauses_s.mean() - 40.0) < 3.291 * 1.5 * 40.0 / np.sqrt(len(pauses_s))


def test_a_context_that_is_full_begins_anew() -> None:
    """With the session's first tokens and what is new: never above the limit, its text shared within one
    stretch alone; the mean prompt is told beforehand."""
    limit = 6000
    sessions = {**AGENTS, "turns": {"kind": "fixed", "mean": 12}, "context_tokens": limit}
    requests = sent(sessions, requests=8000)
    assert requests.prompt_tokens.max() <= limit
    assert requests.contents is not None
    anew = 0
    for rows in chains(requests):
        for before, after in pairwise(rows):
            goes_on = requests.contents.of(before)[1]
            anew += goes_on < 0
            if goes_on < 0:
                assert requests.prompt_tokens[after] > 5000
            else:
                assert goes_on == requests.contents.of(after)[0][-1][0]
                assert requests.prompt_tokens[after] >= min(limit, requests.prompt_tokens[before] + 41)
    assert anew > 100
    workload = {"lengths": FIXED, "sessions": sessions}
    assert requests.prompt_tokens.mean() == pytest.approx(mean_tokens(workload)[0], rel=0.02)


@pytest.mark.parametrize("mean", [0.4, 3.0])
def test_calls_that_begin_at_none_have_the_moments_of_a_geometric(mean: float) -> None:
    """Failures before a success: variance mean (1 + mean), so E[X^2] = mean + 2 mean^2; and so a sample's,
    whose own spread is inside 99.9 %."""
    tools = TOOLS | {"calls": {"kind": "geometric", "mean": mean}}
    calls = session_shape({"sessions": AGENTS | {"tools": tools}}).calls
    assert (calls.mean, calls.mean_square) == pytest.approx((mean, mean + 2 * mean**2))
    squares = calls.draw(1, "calls", 50_000) ** 2
    assert abs(squares.mean() - calls.mean_square) < 3.291 * squares.std() / np.sqrt(len(squares))
    assert squares.min() == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_context_is_the_sessions_first_tokens_and_what_came_since(seed: int) -> None:
    """Played one after the other, any lengths: a prompt above the most begins anew, and is clamped to the
    most only where the first prompt and what is new are more than that."""
    rng = np.random.default_rng(seed)
    most, sizes = 1500, rng.integers(2, 40, 12)
    starts = np.cumsum(sizes) - sizes
    added, answers = rng.integers(1, 120, sizes.sum()), rng.integers(1, 90, sizes.sum())
    added[starts] = rng.integers(900, 1490, 12)
    played, cut = [], []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        prompt, times = 0, 0
        for row in range(start, start + size):
            prompt += added[row]
            if prompt > most:
                prompt, times = added[start] + added[row], times + 1
            played.append(min(prompt, most))
            cut.append(times)
            prompt += answers[row]
    prompts, cuts = contexts(starts, sizes, added, answers, most)
    assert max(cut) > 1
    assert prompts.tolist() == played
    assert cuts.tolist() == cut
