"""The front end is a queue of its own: against the textbook's recursion, one request at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import TICK_S, on_grid
from sim.simulation.front_end import FrontEnd

gaps_s = st.lists(st.floats(0.0, 0.05), min_size=1, max_size=60)


@settings(deadline=None)
@given(gaps_s, st.floats(0.0, 0.02), st.floats(0.0, 1e-4), st.floats(0.0, 0.1), st.integers(0, 2**32))
def test_requests_wait_for_those_before_them(
    gaps: list[float], service_s: float, token_s: float, latency_s: float, seed: int
) -> None:
    """Lindley's recursion: each is served when it has come and the one before has gone, to the very bit."""
    arrival_s = on_grid(np.cumsum(gaps))
    prompts = np.random.default_rng(seed).integers(1, 5000, len(gaps))
    front_end = FrontEnd(latency_s, service_s, token_s)
    found = front_end.pass_through(arrival_s, prompts)
    end_s, busy_s, expected = 0.0, 0.0, []
    for at_s, prompt in zip(arrival_s.tolist(), prompts.tolist(), strict=True):
        own_s = on_grid(service_s + prompt * token_s)
        end_s = max(end_s, at_s) + own_s
        busy_s += own_s
        expected.append(end_s + on_grid(latency_s))
    assert found.tolist() == expected
    assert front_end.busy_s == busy_s


def test_an_idle_front_end_only_delays() -> None:
    """One request a second, 2 ms + 1000 tokens x 3 us of service, 10 ms of latency: 15 ms each."""
    arrival_s = np.arange(5.0)
    queued_s = FrontEnd(0.010, 0.002, 3e-6).pass_through(arrival_s, np.full(5, 1000))
    assert queued_s - arrival_s == pytest.approx(np.full(5, 0.015), abs=2 * TICK_S)


def test_a_burst_leaves_at_the_rate_of_service() -> None:
    """A hundred at once, 1 ms each: the i-th is served after i ms. Latency delays, but queues nobody."""
    queued_s = FrontEnd(0.5, 0.001, 0.0).pass_through(np.zeros(100), np.ones(100, dtype=np.int64))
    assert queued_s == pytest.approx(0.5 + 0.001 * np.arange(1, 101), abs=100 * TICK_S)


def test_long_prompts_hold_up_short_ones() -> None:
    """A prompt of a million tokens at 1 us each occupies it for a second, first come, first served."""
    queued_s = FrontEnd(0.0, 0.0, 1e-6).pass_through(np.array([0.0, 0.25, 2.0]), np.array([10**6, 1, 1]))
    assert queued_s == pytest.approx([1.0, 1.000001, 2.000001], abs=3 * TICK_S)


def test_nobody_passes_through_an_empty_front_end() -> None:
    """No requests, no times, no work."""
    front_end = FrontEnd(0.01, 0.001, 1e-6)
    assert len(front_end.pass_through(np.empty(0), np.empty(0, dtype=np.int64))) == 0
    assert front_end.busy_s == 0.0
