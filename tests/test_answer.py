"""The answer's words on figure, report and page: who serves what, how it was judged, what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from analytic import FakeScenario, queueing

import sim
from sim.planning.knee import Knee, find_knee
from sim.report.answer import answer, how_judged, interval_sentence
from sim.report.assumptions import assumptions
from sim.report.page_runs import run_loads
from sim.results import Result
from sim.simulation import simulate


def found(**scenario: Any) -> Knee:
    return find_knee(FakeScenario(**scenario), simulate=queueing(service_s=0.08, tpot_s=0.018))


@pytest.fixture(scope="module")
def knee() -> Knee:
    return found()


def test_the_sentence_names_model_and_gpus_and_the_total_ends(knee: Knee) -> None:
    """Of two intervals the wider stands in brackets; which it is, and the other, follows in a sentence."""
    assert knee.interval is not None
    total = replace(knee, interval=replace(knee.interval, sampling=(7.2, 7.4), total=(6.1, 8.6)))
    assert answer(total).startswith("llama-3-8b on 1 x a100-80gb-sxm: serves ")
    assert "(6.1\N{EN DASH}8.6)" in answer(total)
    assert "7.2" not in answer(total)
    assert total.interval is not None
    said = interval_sentence(total.interval.as_dict(7.36))
    assert "between 6.1 and 8.6 requests/s (95 % confidence), all known errors included" in said.lower()
    assert "sampling of requests alone, between 7.2 and 7.4" in said


def test_without_a_knee_the_sentence_still_says_of_what() -> None:
    """An answer that no load passes has no brackets and no interval."""
    nothing = found(slo={"ttft_p99_s": 0.01})
    assert answer(nothing).startswith("llama-3-8b on 1 x a100-80gb-sxm: no load meets TTFT p99")
    assert interval_sentence({}) == ""
    assert "judged by 4 replications" in how_judged(nothing)


def test_how_loads_were_judged_is_what_the_search_did() -> None:
    """Equal replications have equal seeds at all loads; lengths of runs and replications are as stated."""
    made: dict[float, set[int]] = {}

    def noted(scenario: Any) -> Any:
        made.setdefault(scenario.load["rate_per_s"], set()).add(scenario.run["seed"])
        return queueing(service_s=0.08, tpot_s=0.018)(scenario)

    knee = find_knee(FakeScenario(), simulate=noted)
    assert all(1 in seeds for seeds in made.values())
    longest = max(made.values(), key=len)
    assert all(seeds <= longest for seeds in made.values())
    pooled = [point.summary["replications"] for point in knee.points if "replications" in point.summary]
    said = how_judged(knee)
    assert "same random numbers: seed 1 first" in said
    assert f"{min(pooled)} to {max(pooled)} replications" in said
    sizes = {point.summary["requests"]["offered"] for point in knee.points}
    assert all(f"{size:,}" in said for size in (min(sizes), max(sizes)))


def test_a_trace_is_not_said_to_be_random() -> None:
    """Where the trace's own times are replayed, all loads have the trace."""
    knee = find_knee(FakeScenario(load={"mode": "trace"}), simulate=queueing(trace_rate_per_s=2.0))
    assert "the same trace" in how_judged(knee)
    assert "random" not in how_judged(knee)


def test_an_answer_has_no_clock_in_it(knee: Knee) -> None:
    """How fast the machine was stands in no point, so that equal searches give equal JSON."""
    assert "wall_s" in knee.points[0].summary["simulator"]
    assert "wall_s" not in json.dumps(knee.as_dict())


def test_a_static_group_s_prompts_are_not_in_the_ledger() -> None:
    """Activations are estimated for one step, not for a group; static batching says so, unless given them."""
    plain = FakeScenario()
    for preset, given, expected in (
        ("vllm-v1@0.32", None, False),
        ("static", None, True),
        ("static", 2**30, False),
    ):
        engine = {**plain.engine, "preset": preset, "activation_bytes": given}
        words = assumptions(replace(plain, engine=engine), 2000)["engine"]
        assert ("set engine.activation_bytes" in words) is expected


def test_what_requests_share_and_how_they_are_scheduled_is_said() -> None:
    """Sessions, heads, answers and priorities, and the engine's ways; nothing of what is not in use."""
    plain = sim.load("chat-8b-a100", ["engine.async_scheduling=false"])
    sessions = {"turns": {"kind": "fixed", "mean": 3}, "gap": {"kind": "fixed", "mean_s": 5}}
    heads = {"kind": "groups", "groups": 20, "tokens": 100}
    for changes, where, said in (
        ({"workload.sessions": sessions}, "workload", "sessions of 3 turns"),
        ({"workload.prefixes": heads}, "workload", "20 shared heads"),
        ({"workload.answers": 4}, "workload", "4 answers to a prompt"),
        ({"workload.priorities": {"weights": [0.5, 0.5]}}, "workload", "2 priorities"),
        ({"engine.scheduling_policy": "priority"}, "engine", "scheduling by priority"),
        ({"engine.async_scheduling": True}, "engine", "asynchronous scheduling"),
    ):
        assert assumptions(plain.replace(changes), 9)[where].endswith(f", {said}")
        assert said not in assumptions(plain, 9)[where]


def test_the_knee_judges_the_run_beyond_its_capacity() -> None:
    """A single run far above the capacity is not called steady because it is too short to show growth."""
    chat = sim.load("chat-8b-a100", ["run.requests=300", "run.most_replications=2", "run.precision=0.2"])
    knee = find_knee(chat, simulate=lambda scenario: Result(simulate(scenario)))
    assert knee.rate_per_s is not None
    low = replace(knee, capacity_rate_per_s=knee.rate_per_s)
    assert [run.summary["stable"] for run in run_loads(low)] == [True, True, False]
