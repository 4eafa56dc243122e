"""What a workload may say of traffic classes, and what it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from scenario_inputs import SCENARIO, Catalogue

from sim.scenario import json_schema, load
from sim.scenario.tree import Faults, Place
from sim.scenario.yaml_core import read_text

AROUND = """\
lengths: {kind: fixed, prompt_tokens: 900, output_tokens: 80}
patience: {kind: fixed, mean_s: 30}
"""
USERS = f"{AROUND}classes: {{a: {{concurrency: 2}}}}"
TWO = f"""\
{AROUND}classes:
  chat: {{share: 3, slo: {{ttft_p99_s: 1}}}}
  mail: {{priority: 1, lengths: {{kind: geometric, prompt_mean: 9, output_mean: 5}}, patience: null}}
"""
DAY = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,9,2\n5,9,2\n"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path)


def scenario(catalogue: Catalogue, workload: str, load: str = "{rate_per_s: 4}", more: str = "") -> str:
    catalogue.write("workloads/mixed.yaml", workload)
    catalogue.write("traces/day.csv", DAY)
    return SCENARIO.replace("workload: chat", "workload: mixed").replace("{rate_per_s: 4}", load) + more


def test_a_class_has_from_around_it_what_it_does_not_say(catalogue: Catalogue) -> None:
    """A key, or a whole section of another kind; null takes away. The workload has no traffic of its own."""
    workload = catalogue.load(scenario(catalogue, TWO)).workload
    assert set(workload) == {"name", "classes"}
    chat, mail = workload["classes"]["chat"], workload["classes"]["mail"]
    assert chat["lengths"] == {"kind": "fixed", "prompt_tokens": 900, "output_tokens": 80}
    assert chat["patience"] == {"kind": "fixed", "mean_s": 30.0}
    assert (chat["share"], chat["slo"]) == (3.0, {"ttft_p99_s": 1.0})
    assert mail["lengths"] == {"kind": "geometric", "prompt_mean": 9.0, "output_mean": 5.0}
    assert (mail["priority"], mail["arrivals"]["kind"]) == (1, "poisson")
    assert "patience" not in mail


def test_a_resolved_workload_resolves_to_itself(catalogue: Catalogue) -> None:
    """What a result holds can be run again, traces and all, and is the same scenario."""
    trace = "  old: {arrivals: {kind: trace, path: ../traces/day.csv}}\n"
    first = catalogue.load(scenario(catalogue, TWO + trace))
    assert Path(first.workload["classes"]["old"]["arrivals"]["path"]).is_absolute()
    told = json.loads(json.dumps(first.resolved()))
    assert told["workload"]["classes"]["old"]["arrivals"]["path"] == "../traces/day.csv"
    plain = catalogue.load(scenario(catalogue, TWO))
    assert load(json.loads(json.dumps(plain.resolved())), folders=catalogue.folders).sha256 == plain.sha256


def test_one_key_of_one_class_can_be_set_from_outside(catalogue: Catalogue) -> None:
    """As any other key; the rest stays, what it has from around it too."""
    text = scenario(catalogue, TWO)
    changed = catalogue.load(text).replace({"workload.classes.chat.lengths.output_tokens": 7}).workload
    assert changed["classes"]["chat"]["lengths"] == {
        "kind": "fixed",
        "prompt_tokens": 900,
        "output_tokens": 7,
    }
    assert changed["classes"]["mail"]["lengths"]["kind"] == "geometric"


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        (f"{AROUND}classes: {{}}", "classes must have at least one class"),
        (f"{AROUND}classes: [1]", "classes must be a mapping"),
        (f"{AROUND}classes: {{a b: {{}}}}", "classes.a b is unknown"),
        (f"{AROUND}classes: {{chat: 3}}", "classes.chat must be a mapping"),
        (f"{AROUND}classes: {{chat: {{shares: 3}}}}", "classes.chat.shares is unknown; did you mean share?"),
        (f"{AROUND}classes: {{chat: {{share: 0}}}}", "classes.chat.share must be a number > 0 (got 0)"),
        (f"{AROUND}classes: {{chat: {{share: 1, concurrency: 4}}}}",
         "classes.chat.concurrency excludes share"),
        (f"{AROUND}classes: {{chat: {{think: {{kind: fixed, mean_s: 9}}}}}}",
         "classes.chat.think goes with concurrency only"),
        ("classes: {chat: {}}", "classes.chat.lengths is missing: how long prompts and outputs are"),
        (f"{AROUND}classes: {{chat: {{lengths: {{kind: table}}}}}}",
         "classes.chat.lengths.prompt is missing"),
        (f"{AROUND}classes: {{chat: {{concurrency: 4, answers: 2}}}}",
         "classes.chat.concurrency does not go with answers"),
        (f"{AROUND}classes: {{chat: {{lengths: {{kind: trace, path: no.csv}}}}}}",
         "classes.chat.lengths.path must be a file (no.csv is not there)"),
        (f"{AROUND}tenant_zipf: 1", "tenant_zipf goes with tenants only"),
        (f"{AROUND}tenants: 2\ntenant_shares: [0.9, 0.9]", "tenant_shares must add up to at most 1"),
        (f"{AROUND}tenants: 2\ntenant_shares: [0.6, 0.41]",
         "tenant_shares must add up to at most 1 (got 1.01)"),
        (f"{AROUND}classes: {{chat: {{tenants: 1, tenant_shares: [0.1, 0.2]}}}}",
         "classes.chat.tenant_shares must be of 1 tenants at most"),
        (f"{TWO}priorities: {{weights: [0.5, 0.5]}}", "priorities does not go with classes"),
    ],
)  # fmt: skip
def test_what_classes_cannot_be_is_told(catalogue: Catalogue, workload: str, sentence: str) -> None:
    """In a sentence, at its line."""
    faults = catalogue.faults(scenario(catalogue, workload))
    assert any(fault.startswith("mixed.yaml:") and f": {sentence}" in fault for fault in faults), faults


@pytest.mark.parametrize("told", ["[0.6, 0.4]", "[0.3, 0.3, 0.3, 0.1]", "[0.2]"])
def test_shares_of_tenants_may_be_all_there_is_or_less(catalogue: Catalogue, told: str) -> None:
    """As many tenants as there are shares, whose sum is 1 but for rounding; or more of them."""
    workload = catalogue.load(scenario(catalogue, f"{AROUND}tenants: 4\ntenant_shares: {told}")).workload
    assert workload["tenant_shares"] == json.loads(told)


@pytest.mark.parametrize(
    ("workload", "load", "more", "sentence"),
    [
        (TWO, "burst", "", "load.mode must not be burst with workload.classes"),
        (TWO, "{concurrency: 8}", "", "load.concurrency does not go with workload.classes"),
        (TWO, "{}", "", "load must have rate_per_s, which the classes share (chat, mail)"),
        (TWO, "trace", "", "load trace needs classes with the times of a trace (chat, mail"),
        (USERS, "{rate_per_s: 1}", "", "load.rate_per_s must be absent"),
        (USERS, "{}", "run: {duration_s: 9}", "run.duration_s does not go"),
    ],
)  # fmt: skip
def test_loads_that_classes_cannot_have(
    catalogue: Catalogue, workload: str, load: str, more: str, sentence: str
) -> None:
    """They share a rate, or have users of their own."""
    faults = catalogue.faults(scenario(catalogue, workload, load, more))
    assert any(f": {sentence}" in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (TWO.replace(", patience: null", ""), True), ("classes: {a: {lengths: {kind: fixed}}}", True),
        ("classes: {a: {shar: 1}}", False),
        ("name: alone", False), ("classes: {a: {base: b}}", False),
    ],
)  # fmt: skip
def test_editors_know_classes(text: str, right: bool) -> None:
    """The JSON schema of a workload has them; lengths are needed where there are none."""
    value: Any = read_text(text, Place("x.yaml"), Faults()).value
    assert Draft202012Validator(json_schema("workloads")).is_valid(value) is right
