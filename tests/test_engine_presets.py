"""What presets say of themselves, which settings they have, and vLLM's own limits on its queue."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import in_seconds
from support import NO_FRONT_END, base

import sim
from sim.cli.engines import defaults_by_gpu, engine_document, engine_text
from sim.faults import InputFault
from sim.results import Result
from sim.scenario import Preset, Scenario, engine_preset, find_preset, preset_names, presets_with
from sim.scenario.presets import READ, RECORDED, newest
from sim.scenario.schema import ENGINE_SETTINGS
from sim.serving.adaptive import AdaptiveScheduler
from sim.serving.queue_rules import QueueRules
from sim.serving.scheduler import Scheduler
from sim.serving.sequence import DECODE, LEAVING, PREFILL, WAITING, Sequence
from sim.simulation import Run

TESTS = Path(__file__).parent
PRESETS = [engine_preset(name) for name in preset_names()]
ENGINE_KEYS = set(ENGINE_SETTINGS)


# -- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("vllm-v1", "vllm-v1@0.33"),
        ("vllm-v1@0.32.7", "vllm-v1@0.32"),
        ("vllm-v1@0.33.1", "vllm-v1@0.33"),
        ("vllm-v0", "vllm-v0@0.6.6"),
        ("vllm-v0@0.6", "vllm-v0@0.6.6"),
        ("vllm-v0@0.6.6.1", "vllm-v0@0.6.6"),
    ],
)
def test_a_version_may_be_left_out_or_be_longer(written: str, meant: str) -> None:
    """No version is the newest one that is recorded."""
    assert find_preset(written) == meant


@pytest.mark.parametrize(
    ("written", "nearest"),
    [("vlm-v0", "did you mean vllm-v0@0.6.6?"), ("vllm-v1@0.3", "did you mean vllm-v1@0.33?"),
     ("vllm", "did you mean vllm-v1@0.33?"), ("tgi", "possible: lmdeploy@0.2, sglang@0.5, ")],
)  # fmt: skip
def test_an_unknown_name_is_told_the_nearest(written: str, nearest: str) -> None:
    """Of another engine, or of the engine's versions; where nothing is near, all."""
    with pytest.raises(InputFault, match=re.escape(nearest)):
        find_preset(written)


def test_a_version_that_was_only_read_must_be_asked_for() -> None:
    """Among versions the newest that is recorded stands for the engine, and if none is, the newest."""
    old, new = engine_preset("vllm-v1@0.32"), engine_preset("vllm-v1@0.33")
    assert (old.status, new.status) == (RECORDED, RECORDED)
    assert newest([new, old]) is new
    assert newest([replace(new, status=READ), old]) is old
    assert newest([old := replace(old, status=READ), new := replace(new, status=READ)]) is new


# -- what they say -----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_accounts_for_every_setting(preset: Preset) -> None:
    """Each engine key is set, lacking, or has a default of its own; what it lacks, it holds to."""
    defaults = preset.defaults({"memory_bytes": 80 * 2**30}, {"max_position_embeddings": 8192}, {})
    assert defaults.keys() | preset.lacks.keys() | preset.default_words.keys() <= ENGINE_KEYS
    assert {key: defaults.get(key) for key in preset.lacks} == dict(preset.lacks)
    assert all(preset.name not in presets_with(key) and presets_with(key) for key in preset.lacks)
    scheduling = {"enable_prefix_caching", "async_scheduling", "scheduling_policy", "watermark"}
    assert scheduling <= defaults.keys()


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_every_rule_is_held_by_a_test_that_exists(preset: Preset) -> None:
    """A rule names a function of these tests, or none; most have one."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(TESTS.glob("test_*.py")))
    rules = [rule for chapter in preset.chapters for rule in chapter.rules]
    named = [rule.test for rule in rules if rule.test]
    assert [test for test in named if f"def {test}(" not in text] == []
    assert len(named) > 0.6 * len(rules) or preset.name == "static"


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_a_preset_is_explained_in_words_and_as_a_document(preset: Preset) -> None:
    """The four facts, verification, every setting, and what it does not have, in both."""
    text, document = engine_text(preset.name), engine_document(preset.name)
    words = " ".join(text.split())
    for fact in (*preset.facts.as_dict().values(), preset.verification, preset.status, *preset.differences):
        assert fact in words
    assert document["facts"] == preset.facts.as_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["settings"].keys() | document["settings_lacking"].keys() | {"preset"} == ENGINE_KEYS
    assert all(f"engine.{key} " in text or f"engine.{key}:" in text for key in ENGINE_KEYS - {"preset"})


def test_the_defaults_of_each_gpu_are_what_a_scenario_gets() -> None:
    """The words on an A100, an H100 and a B200 come to the numbers of the engine's own table."""
    by_gpu = defaults_by_gpu(engine_preset("vllm-v1"))
    assert [by_gpu[gpu]["max_num_batched_tokens"] for gpu in
            ("a100-80gb-sxm", "h100-80gb-sxm", "b200-180gb-sxm")] == [2048, 8192, 16384]  # fmt: skip
    engine = base().replace({"hardware": "a100-80gb-sxm"}).engine
    assert by_gpu["a100-80gb-sxm"].items() <= engine.items()


def test_whole_prompts_need_a_budget_of_the_longest_context() -> None:
    """V0's default budget follows the context; all else that it does not have holds its value."""
    engine = base().replace({"engine.preset": "vllm-v0", "engine.max_model_len": 8192}).engine
    lacking = {"async_scheduling": False, "enable_prefix_caching": False}
    expected = {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "watermark": 0.01, **lacking}
    assert expected.items() <= engine.items()
    assert (
        base()
        .replace({"engine.preset": "vllm-v0", "engine.max_model_len": 512})
        .engine["max_num_batched_tokens"]
        == 2048
    )


def test_a_setting_that_a_preset_does_not_have_may_say_what_holds_anyway() -> None:
    """A resolved scenario names every setting, and is read again."""
    assert (
        base().replace({"engine.preset": "static", "engine.async_scheduling": False}).engine["preset"]
        == "static"
    )


# -- one version against the other -------------------------------------------------------------------


def test_a_request_that_preempts_itself_ends_the_step_in_one_version_only() -> None:
    """A, the least urgent, has 31 tokens and two blocks of four; B and C come for step 2 and take the others.

    In step 3 A opens a block at token 33, there is none, and it is the victim itself. 0.32 ends the step
    there; in 0.33 B and C, behind it in the list, have their tokens.
    """
    served = {}
    for name in ("vllm-v1@0.32", "vllm-v1@0.33"):
        ends = engine_preset(name).self_preemption_ends_step
        scheduler = Scheduler(4, 16, 8, 256, by_priority=True, self_preemption_ends_step=ends)
        a, b, c = (Sequence(index, prompt, 9) for index, prompt in enumerate((31, 10, 10)))
        a.priority = 9
        for coming in ((a,), (b, c), ()):
            for sequence in coming:
                scheduler.add(sequence)
            scheduler.schedule()
            served[name] = {s.index: n for s, n in scheduler.scheduled_tokens().items()}
            scheduler.finish()
        assert scheduler.preempted == [a]
    assert served == {"vllm-v1@0.32": {}, "vllm-v1@0.33": {1: 1, 2: 1}}


def test_the_adaptive_threshold_is_a_fair_share_of_the_budget() -> None:
    """Budget 100 and a threshold of 10: two prompts may have 50 each, four 25; fixed, 10 each."""
    for count, adaptive, expected in ((2, True, 50), (4, True, 25), (2, False, 10), (20, True, 10)):
        chosen = AdaptiveScheduler if adaptive else Scheduler
        scheduler = chosen(1000, 16, 64, 100, 10)
        for index in range(count):
            scheduler.add(Sequence(index, 80, 3))
        scheduler.schedule()
        assert set(scheduler.scheduled_tokens().values()) == {expected}


# -- 503 ---------------------------------------------------------------------------------------------


def at(state: int, prompt: int, generated: int = 0) -> Sequence:
    sequence = Sequence(0, prompt, 100)
    sequence.state, sequence.generated = state, generated
    return sequence


def test_requests_in_flight_are_those_that_wait_and_those_that_run() -> None:
    """Two wait, one prefills, one decodes: a limit of four refuses, of five does not; the ended are out."""
    waiting = [at(WAITING, 10), at(WAITING, 10)]
    running = [at(PREFILL, 10), at(DECODE, 10, 3), at(LEAVING, 10, 100)]
    refused = [QueueRules(most_in_flight=n).refuses(at(WAITING, 1), waiting, 2, running) for n in (4, 5)]
    assert refused == [True, False]


def test_prompt_tokens_count_whole_until_the_first_token_of_the_answer() -> None:
    """100 wait, 50 are half computed; a decode and one that was preempted after two tokens are past it.

    The limit is reached at 150 without the newcomer's own 1000.
    """
    waiting = [at(WAITING, 100), at(WAITING, 400, 2)]
    running = [at(PREFILL, 50), at(DECODE, 800, 1)]
    refused = [
        QueueRules(most_prefill_tokens=n).refuses(at(WAITING, 1000), waiting, 2, running) for n in (150, 151)
    ]
    assert refused == [True, False]


@pytest.fixture(params=[1, None], ids=["stepping", "leaping"])
def run(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """Every story is told twice."""
    return in_seconds(request.param)


def limited(asynchronous: bool, **limits: Any) -> Scenario:
    keys = {"max_num_seqs": 1, "async_scheduling": asynchronous, **limits}
    return base().replace({**NO_FRONT_END, **{f"engine.{key}": value for key, value in keys.items()}})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_comes_to_a_full_server_is_refused(asynchronous: bool, run: Callable[..., Run]) -> None:
    """At most two in flight: the third, at 1.5, is refused while the first runs and the second waits.

    So it is where the second came while a step ran and is on its way into the queue. At 4.5 the first has
    ended, with its third token at 3: there is room.
    """
    scenario = limited(asynchronous, max_num_queued_reqs=2)
    done = run(scenario, (0.0, 8, 3), (1.25, 8, 9), (1.5, 8, 1), (4.5, 8, 1))
    assert Result(done).requests["status"].tolist() == ["completed", "completed", "rejected", "completed"]


def test_a_backlog_of_prompts_is_refused_and_answers_are_none(run: Callable[..., Run]) -> None:
    """A limit of 20 tokens: A of 30 is let in, since nothing was there. B, at 0.5, finds A's 30.

    A's first token comes at 1: C, at 1.5, finds none. D finds C, which waits for the only slot.
    """
    scenario = limited(False, max_num_queued_tokens=20)
    done = run(scenario, (0.0, 30, 5), (0.5, 8, 1), (1.5, 25, 1), (2.5, 8, 1))
    assert Result(done).requests["status"].tolist() == ["completed", "rejected", "completed", "rejected"]


def test_contiguous_reservations_share_nothing() -> None:
    """Without blocks there is no prefix caching: the default says so, and asking for it is a fault."""
    contiguous = "engine.kv_layout=contiguous"
    assert sim.load("chat-8b-a100").engine["enable_prefix_caching"] is True
    assert sim.load("chat-8b-a100", [contiguous]).engine["enable_prefix_caching"] is False
    with pytest.raises(InputFault, match=r"does not go with engine\.kv_layout contiguous"):
        sim.load("chat-8b-a100", [contiguous, "engine.enable_prefix_caching=true"])
