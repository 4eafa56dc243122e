"""The seven tests of a benchmark: each loads, changes one thing, and shows what docs/benchmark.md says."""

from __future__ import annotations

import benchmark
import pytest

from sim.cli.compare import loaded
from sim.planning.compare import Compared, Comparison, compare

EFFECTS = {
    "long-prompts": {"ttft_s.p50": 1, "itl_s.p99": 1, "prefix_cache_hit_rate": -1},
    "long-answers": {"tpot_s.p50": 1, "kv_cache.usage_mean": 1, "output_throughput": 1},
    "cache-misses": {"prefix_cache_hit_rate": -1, "ttft_s.p50": 1, "kv_cache.usage_mean": 1},
    "cancellations": {"requests.cancelled": 1, "requests.retries": 1, "useful_output_throughput": -1},
    "bursts": {"ttft_s.p99": 1, "kv_cache.usage_max": 1},
    "mixed-tenants": {"by_class.chat.ttft_s.p50": 1, "by_class.chat.tpot_s.p50": 1, "kv_cache.usage_max": 1},
    "deadline-pressure": {"requests.rejected": 1, "goodput_fraction": -1, "request_throughput": 1},
}
"""More (1) or less (-1) than in the base, in every seed."""
CHANGES = {
    "long-prompts": {"lengths"},
    "long-answers": {"lengths"},
    "cache-misses": {"prefixes"},
    "cancellations": {"patience", "retries"},
    "bursts": {"arrivals"},
    "mixed-tenants": {"batch", "load"},
    "deadline-pressure": {"engine", "admission", "load"},
}


@pytest.fixture(scope="module")
def shown() -> Comparison:
    """Short runs of them all."""
    return compare(loaded([benchmark.SET, "run.requests=500"]), seeds=2, workers=1)


def of(comparison: Comparison, name: str) -> Compared:
    return next(one for one in comparison.scenarios if one.name == name)


def test_there_are_seven_on_one_base(shown: Comparison) -> None:
    """The base is the first, and the page says something of each other one."""
    assert shown.first.name == "base"
    assert {one.name for one in shown.others} == set(benchmark.TESTS) == set(EFFECTS)
    assert all(one.fault is None for one in shown.scenarios)


@pytest.mark.parametrize("name", EFFECTS)
def test_each_shows_its_effect(shown: Comparison, name: str) -> None:
    """In the direction that the page tells, with every seed."""
    here, numbers = of(shown, name), {number.path: number for number in shown.compared}
    for path, sign in EFFECTS[name].items():
        pairs = zip(shown.first.values(numbers[path]), here.values(numbers[path]), strict=True)
        assert all(sign * (after - before) > 0 for before, after in pairs), path


@pytest.mark.parametrize("name", EFFECTS)
def test_what_does_not_change_shares_its_draws(shown: Comparison, name: str) -> None:
    """Each changes one thing: the rest is the base's traffic, draw by draw."""
    assert of(shown, name).not_shared == ()


@pytest.mark.parametrize("name", CHANGES)
def test_each_changes_one_thing(shown: Comparison, name: str) -> None:
    """One part of the traffic, or, under pressure, what goes with a deadline."""
    keys = [found.key.removeprefix("workload.classes.chat.") for found in of(shown, name).changed]
    assert {key.removeprefix("workload.classes.").partition(".")[0] for key in keys} == CHANGES[name]


def test_the_page_has_every_number_that_it_says_to_look_at(shown: Comparison) -> None:
    """A path that no run has would silently be missing."""
    there = {number.path for number in shown.compared}
    assert {path for test in benchmark.TESTS.values() for path in test.look_at} <= there
    text = benchmark.page(shown)
    assert all(f"## {name.replace('-', ' ').capitalize()}" in text for name in EFFECTS)


@pytest.mark.slow
def test_the_page_is_what_is_simulated_now() -> None:
    """docs/benchmark.md; write it again with docs/benchmark.py."""
    page = benchmark.page(compare(loaded([benchmark.SET])))
    assert benchmark.PAGE.read_text(encoding="utf-8") == page
