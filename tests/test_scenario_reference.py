"""What the tables of keys say of themselves: the JSON schema, the reference page, their own consistency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from scenario_inputs import HARDWARE, MODEL, SCENARIO, WORKLOAD

from sim.scenario import json_schema, reference_markdown
from sim.scenario.keys import KINDS, Key
from sim.scenario.quantities import RefusedError
from sim.scenario.schema import METRICS, PLACEHOLDERS, TABLES
from sim.scenario.tree import Faults, Place
from sim.scenario.yaml_core import read_text

ROOT = Path(__file__).parents[1]
ALL_KEYS = [pytest.param(key, id=f"{kind}:{key.path}") for kind, keys in TABLES.items() for key in keys]


def valid(kind: str, text: str) -> bool:
    value = read_text(text, Place("x.yaml"), Faults()).value
    return Draft202012Validator(json_schema(kind)).is_valid(value)


@pytest.mark.parametrize("kind", sorted(TABLES))
def test_the_json_schema_is_one(kind: str) -> None:
    """Valid by the draft that it names."""
    Draft202012Validator.check_schema(json_schema(kind))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("hardware", HARDWARE), ("models", MODEL), ("workloads", WORKLOAD), ("scenarios", SCENARIO)],
)
def test_the_json_schema_takes_what_loads(kind: str, text: str) -> None:
    """And not what has an unknown key, or lacks a needed one."""
    assert valid(kind, text)
    assert not valid(kind, text + "unknown: 1\n")
    assert not valid(kind, "name: alone\n")


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("slo: {ttft_p99_s: 2, itl_max_s: 250ms, e2e_p99.9_s: 30}", True), ("slo: {ttft_p99: 2}", False),
        ("engine: {kv_cache_memory_bytes: 10 GiB}", True), ("engine: {kv_cache_memory_bytes: 10K}", False),
        ("engine: {max_num_seqs: 0}", False), ("engine: {kv_cache_dtype: fp9}", False),
        ("run: {warmup: 30s}", True), ("cost: {gpu_hour_usd: 2}", True),
    ],
)  # fmt: skip
def test_the_json_schema_knows_units_bounds_and_patterns(line: str, right: bool) -> None:
    """So that an editor marks the same words as `load`."""
    assert valid("scenarios", SCENARIO + line) is right


@pytest.mark.parametrize("hardware", ["{base: small-24gb, memory_bytes: 80GB}", "./mine.yaml"])
def test_the_json_schema_takes_patches_and_paths(hardware: str) -> None:
    """A patch needs none of the keys that a whole profile needs, but may only have those."""
    assert valid("scenarios", SCENARIO.replace("small-24gb", hardware))
    assert not valid("scenarios", SCENARIO.replace("small-24gb", "{base: small-24gb, memory: 1}"))
    assert valid("scenarios", SCENARIO.replace("{rate_per_s: 4}", "burst"))


def test_the_reference_page_is_the_committed_one() -> None:
    """docs/scenario.md is what the tables say; write it again with `reference_markdown`."""
    assert (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8") == reference_markdown()


def test_the_reference_page_has_every_key() -> None:
    """With its meaning."""
    page = reference_markdown()
    for keys in TABLES.values():
        assert all(f"| `{key.path}` |" in page and key.meaning.replace("|", "\\|") in page for key in keys)


@pytest.mark.parametrize("key", ALL_KEYS)
def test_a_row_is_consistent(key: Key) -> None:
    """A known kind, a meaning that is a sentence, a default that the key itself takes, known placeholders."""
    assert key.kind in KINDS
    assert key.meaning.endswith(".")
    assert not (key.required and key.default is not None)
    assert all(part in PLACEHOLDERS for part in key.parts if part.startswith("<"))
    if key.default not in (None, {}):
        assert key.read(key.default) == key.default


@pytest.mark.parametrize("key", ALL_KEYS)
def test_no_key_takes_just_anything(key: Key) -> None:
    """Lists, unknown objects and, but for text, odd words are refused, by a refusal and nothing else."""
    words = () if key.kind in ("text", "reference", "mapping") else ("", "\n", "1e999", "{")
    values: tuple[Any, ...] = ([], [["a"]] if key.kind == "matrix" else [[1]], object(), *words)
    for value in values:
        with pytest.raises(RefusedError):
            key.read(value)


WRONG_LIMITS = ("mean", "p100_s", "p0_s", "p99_ms", "min_s", "p_s")


@pytest.mark.parametrize("metric", METRICS)
def test_limits_are_a_pattern(metric: str) -> None:
    """Any metric with its mean, maximum or any percentile."""
    limit = PLACEHOLDERS["<limit>"]
    assert all(limit.matches(f"{metric}_{what}_s") for what in ("mean", "max", "p50", "p99", "p99.9", "p5"))
    assert not any(limit.matches(f"{metric}_{what}") for what in WRONG_LIMITS)
