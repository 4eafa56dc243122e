"""The KV cache's books where clients ask again, or leave without a word: by hand and by what must agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import admitting, sent
from support import EvenSteps

from sim.results import Result
from sim.simulation import simulate
from sim.workload import Contents


def contiguous(**rules: Any) -> dict[str, Any]:
    """Reservations of 4096 tokens in a pool of 1000 blocks of 16, and these rules."""
    return {"engine.kv_layout": "contiguous", "engine.enable_prefix_caching": False, **rules}


def usage(rules: dict[str, Any], *requests: tuple[float, ...], silent: bool = False) -> dict[str, Any]:
    drawn = sent(*requests)
    if silent:
        drawn = replace(drawn, silent=np.ones(len(drawn), dtype=bool))
    done = simulate(admitting().replace(contiguous(**rules)), requests=drawn, step_time=EvenSteps(1.0))
    cache: dict[str, Any] = Result(done).summary()["kv_cache"]
    return cache


def test_a_failed_attempt_held_its_reservation() -> None:
    """Given up after 4 s, asked again 2 s later, given up again: one of 256 blocks whenever it ran."""
    again = {"workload.retries": {"max": 1, "base_s": 2.0, "jitter": 0, "on": ["abandoned"]}}
    cache = usage(again, (0.0, 5, 50, 4.0))
    assert cache["usage_mean"] == pytest.approx(256 / 1000)
    assert cache["usage_max"] == 256 / 1000


def test_a_client_that_left_without_a_word_holds_its_reservation_to_the_end() -> None:
    """For the engine nothing happens when it leaves: the pool is used as if it had stayed."""
    stayed = usage({}, (0.0, 5, 50), (3.0, 5, 30))
    left = usage({}, (0.0, 5, 50, 4.0), (3.0, 5, 30, 9.0), silent=True)
    assert left == stayed
    assert left["usage_max"] == 512 / 1000


def test_what_failed_attempts_found_is_found_and_nothing_was_computed_again() -> None:
    """A prompt that comes twice, the second time given up and asked again: each attempt's hit is a hit."""
    drawn = sent((0.0, 64, 5), (20.0, 64, 40, 3.0))
    one_stream = Contents(np.array([0, 1, 2]), np.array([0, 0]), np.array([64, 64]), np.array([-1, -1]))
    again = {"workload.retries": {"max": 1, "base_s": 2.0, "jitter": 0, "on": ["abandoned"]}}
    done = simulate(
        admitting().replace(again), requests=replace(drawn, contents=one_stream), step_time=EvenSteps(1.0)
    )
    summary = Result(done).summary()
    assert summary["requests"]["retries"] == 1
    assert summary["prefix_cache_hit_tokens"] == 2 * 48
    assert summary["prefix_cache_hit_rate"] == pytest.approx(96 / 192)
    assert summary["recomputed_tokens"] == 0
