"""The grid of times: sums are exact for twelve days."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.clock import HORIZON_S, TICK_S, on_grid

WEEK_S = 7 * 86400.0
seconds = st.floats(0.0, HORIZON_S)


def test_a_week_fits() -> None:
    """Twelve days are more than the published week of a service's traffic, with a margin for its end."""
    assert WEEK_S < 0.6 * HORIZON_S
    assert HORIZON_S == 2**20


@given(seconds)
def test_a_time_is_the_nearest_tick(at_s: float) -> None:
    """A whole number of ticks, at most half a tick away."""
    rounded = on_grid(at_s)
    assert Fraction(rounded) % Fraction(TICK_S) == 0
    assert abs(Fraction(rounded) - Fraction(at_s)) <= Fraction(TICK_S) / 2


@given(st.lists(st.floats(0.0, 1000.0), max_size=50), seconds)
def test_sums_have_no_rounding_error(gaps_s: list[float], start_s: float) -> None:
    """Step by step or by a leap: the same number, whatever the order; beyond the horizon, too."""
    start_s, steps_s = on_grid(start_s), on_grid(np.array(gaps_s, dtype=float))
    exact = sum(map(Fraction, steps_s.tolist()), Fraction(start_s))
    stepped = start_s
    for step_s in steps_s.tolist():
        stepped += step_s
    assert Fraction(stepped) == Fraction(start_s + float(steps_s.sum())) == exact
