"""Summaries of samples against numpy, and the trend test against queues whose trend is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.results import statistics
from sim.results.statistics import BIN_ERROR, Growth, Peak, Sample, WeightedSample, describe, growth
from sim.results.steps import _range_max

PERCENTILES = (50, 75, 90, 95, 99, 99.5)
seconds = st.floats(1e-6, 1e3)


# -- samples ---------------------------------------------------------------------------------------


@given(st.lists(seconds, min_size=1, max_size=300))
def test_percentiles_are_numpys(values: list[float]) -> None:
    """Linear between order statistics; mean, maximum and number as they are."""
    found = describe(np.array(values), "empty", PERCENTILES)
    expected = np.percentile(values, PERCENTILES)
    assert [found[f"p{p:g}"] for p in PERCENTILES] == pytest.approx(expected.tolist(), rel=1e-12)
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["max"] == max(values)
    assert found["n"] == len(values)
    assert "reason" not in found


@pytest.mark.parametrize(
    "found", [describe(np.array([]), "nobody came"), WeightedSample().describe("nobody came")]
)
def test_nothing_has_no_statistics_but_a_reason(found: dict[str, object]) -> None:
    """Null, never 0 and never NaN, with the reason beside it."""
    assert found == dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max")) | {
        "n": 0,
        "reason": "nobody came",
    }


weighted = st.lists(st.tuples(seconds, st.integers(1, 50)), min_size=1, max_size=100)


@given(weighted, st.integers(1, 5))
def test_a_weighted_sample_is_the_sample_written_out(pairs: list[tuple[float, int]], parts: int) -> None:
    """Each value so many times, in however many parts it comes; a percentile is a value that occurred."""
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    sample = WeightedSample()
    for part in np.array_split(np.arange(len(values)), parts):
        sample.add(values[part], weights[part])
    found = sample.describe("empty", PERCENTILES)
    every = np.repeat(values, weights)
    ordered, n = np.sort(every), len(every)
    for p in PERCENTILES:
        rank = max(1, -(-round(10 * p) * n // 1000))  # in whole numbers
        assert found[f"p{p:g}"] == ordered[rank - 1]
    assert found["mean"] == pytest.approx(every.mean())
    assert found["max"] == every.max()
    assert found["n"] == n


def test_a_gap_of_weight_nothing_changes_nothing() -> None:
    """Values that occur no time are not in the sample, but for the maximum that the caller sets."""
    sample = WeightedSample()
    sample.add(np.array([1.0, 2.0]), np.array([3, 0]))
    assert sample.describe("empty")["p99"] == 1.0
    assert sample.describe("empty")["n"] == 3


@pytest.mark.parametrize("seed", range(30))
def test_bins_are_off_by_no_more_than_they_say(seed: int) -> None:
    """Beyond the exact size percentiles move by BIN_ERROR at most; mean, maximum and number stay."""
    draw = np.random.default_rng(seed)
    values, weights = draw.uniform(0.01, 0.0102, 150), draw.integers(1, 1000, 150)
    every = np.repeat(values, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "EXACT_VALUES", 20)
        sample = WeightedSample()
        for part in range(7):
            sample.add(values[part::7], weights[part::7])
    assert sum(len(kept) for kept in sample._values) < 100
    found = sample.describe("empty", PERCENTILES)
    for p in PERCENTILES:
        exact = np.percentile(every, p, method="inverted_cdf")
        assert found[f"p{p:g}"] == pytest.approx(exact, rel=1.001 * BIN_ERROR)
    assert found["mean"] == pytest.approx(every.mean(), rel=1e-9)
    assert found["max"] == every.max()
    assert found["n"] == len(every)


def test_bins_keep_a_wide_sample_small() -> None:
    """Six orders of magnitude: percentiles within the bound, and fewer bins than values."""
    values = np.geomspace(1e-4, 1e2, 50_000)
    weights = np.arange(1, 50_001)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "EXACT_VALUES", 20_000)
        sample = WeightedSample()
        for part in range(5):
            sample.add(values[part::5], weights[part::5])
    assert sum(len(kept) for kept in sample._values) < 25_000
    found = sample.describe("empty", PERCENTILES)
    reached = np.cumsum(weights)
    for p in PERCENTILES:
        exact = values[np.searchsorted(reached, p / 100 * reached[-1])]
        assert found[f"p{p:g}"] == pytest.approx(exact, rel=1.001 * BIN_ERROR)
    assert found["mean"] == pytest.approx(values @ weights / weights.sum())


# -- ranges ----------------------------------------------------------------------------------------


@given(st.data(), st.lists(seconds, min_size=1, max_size=70))
def test_the_largest_of_a_range_is_that_of_a_slice(data: st.DataObject, values: list[float]) -> None:
    """For every pair of ends, both included, in any order of asking."""
    index = st.integers(0, len(values) - 1)
    ends = data.draw(st.lists(st.tuples(index, index), max_size=30))
    first = np.array([min(pair) for pair in ends], dtype=np.int64)
    last = np.array([max(pair) for pair in ends], dtype=np.int64)
    found = _range_max(np.array(values), first, last)
    assert found.tolist() == [max(values[a : b + 1]) for a, b in zip(first, last, strict=True)]


# -- growth ----------------------------------------------------------------------------------------


def queue(rho: float, customers: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals and departures of a single queue (M/M/1, one service a second) by Lindley's recursion."""
    draw = np.random.default_rng(seed)
    arrival_s = np.cumsum(draw.exponential(1 / rho, customers))
    end, leave_s = 0.0, np.empty(customers)
    for i, service_s in enumerate(draw.exponential(1.0, customers)):
        end = leave_s[i] = max(end, arrival_s[i]) + service_s
    return arrival_s, leave_s


def trend(rho: float, customers: int, seed: int) -> tuple[float, bool]:
    arrival_s, leave_s = queue(rho, customers, seed)
    return growth(arrival_s, leave_s, (float(arrival_s[customers // 10]), float(arrival_s[-1])))


@pytest.mark.parametrize("rho", [0.5, 0.7, 0.9])
def test_a_stable_queue_is_rarely_called_growing(rho: float) -> None:
    """Of 40 runs one may be, and their slopes are zero on average, within four standard errors."""
    slopes, grows = zip(*(trend(rho, 3000, seed) for seed in range(40)), strict=True)
    assert sum(grows) <= 1
    assert abs(np.mean(slopes)) < 4 * np.std(slopes) / 40**0.5


@pytest.mark.parametrize("rho", [1.1, 1.5])
def test_an_overloaded_queue_is_always_called_growing(rho: float) -> None:
    """It grows by rho - 1 a second, the difference of the rates."""
    slopes, grows = zip(*(trend(rho, 12_000, seed) for seed in range(10)), strict=True)
    assert all(grows)
    assert np.mean(slopes) == pytest.approx(rho - 1, rel=0.15)


def test_growth_is_the_slope_of_the_number_inside() -> None:
    """One arrival a second and nobody leaves: 1 a second, whether the others leave late or never."""
    arrival_s = np.arange(1000.0)
    for leave_s in (np.full(1000, np.inf), np.full(1000, 5000.0)):
        slope, grows = growth(arrival_s, leave_s, (100.0, 999.0))
        assert slope == pytest.approx(1.0, rel=1e-3)
        assert grows


def test_a_queue_that_empties_does_not_grow() -> None:
    """All there at once, one leaves a second: -1 a second, and no growth."""
    slope, grows = growth(np.zeros(1000), np.arange(1000.0), (0.0, 999.0))
    assert slope == pytest.approx(-1.0, rel=1e-3)
    assert not grows


def test_an_instant_has_no_growth() -> None:
    """A burst has a window of no length."""
    assert growth(np.zeros(5), np.arange(5.0), (0.0, 0.0)) == (0.0, False)


# -- samples, peaks and trends that come in parts ----------------------------------------------------


def cut(length: int, rng: np.random.Generator) -> list[slice]:
    """A few places to cut, at random; some parts may be empty."""
    at = [0, *sorted(rng.integers(0, length + 1, 4).tolist()), length]
    return [slice(first, last) for first, last in pairwise(at)]


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_in_parts_is_the_sample(seed: int) -> None:
    """The same description, to the last bit, up to the number of values that are kept."""
    rng = np.random.default_rng(seed)
    values = rng.exponential(size=500)
    sample = Sample(most=500)
    for part in cut(500, rng):
        sample.add(values[part])
    assert sample.describe("") == describe(values, "")
    assert sample.median() == np.median(values)


def test_a_sample_of_many_parts_has_percentiles_within_the_stated_error() -> None:
    """Beyond that number it is binned, zeros included; mean, maximum and number stay exact."""
    rng = np.random.default_rng(1)
    values = np.concatenate([np.zeros(40_000), rng.lognormal(0.0, 2.0, 400_000), [1e9]])
    rng.shuffle(values)
    sample = Sample(most=10_000)
    for part in np.array_split(values, 30):
        sample.add(part)
    found, exact = sample.describe("", PERCENTILES), describe(values, "", PERCENTILES)
    assert found["n"] == exact["n"]
    assert found["max"] == exact["max"]
    assert found["mean"] == pytest.approx(exact["mean"], rel=1e-9)
    for p in PERCENTILES:
        assert found[f"p{p:g}"] == pytest.approx(exact[f"p{p:g}"], rel=2 * BIN_ERROR)
    assert sample.median() == pytest.approx(np.median(values), rel=2 * BIN_ERROR)
    assert len(sample._parts) == 0


def test_a_sample_that_comes_at_once_is_exact_however_large() -> None:
    """A run whose records are in memory is described as it is."""
    values = np.random.default_rng(1).exponential(size=1000)
    sample = Sample(most=10)
    sample.add(values)
    assert sample.describe("") == describe(values, "")


@pytest.mark.parametrize("takes_first", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_peak_in_parts_is_the_most_that_is_held(seed: int, takes_first: bool) -> None:
    """Against every instant looked at, with many ties: who comes when another goes meets it, or not."""
    rng = np.random.default_rng(seed)
    begin_s = np.sort(rng.integers(0, 40, 60)).astype(float)
    end_s, held = begin_s + rng.integers(1, 9, 60), rng.integers(1, 5, 60)
    peak = Peak(takes_first)
    for part in cut(60, rng):
        later_s = begin_s[part.stop :]
        peak.add(begin_s[part], end_s[part], held[part], float(later_s.min(initial=np.inf)))
    until = np.less_equal if takes_first else np.less
    at = [held[(begin_s <= t) & until(t, end_s)].sum() for t in np.arange(60.0)]
    assert peak.most == max(at)


@pytest.mark.parametrize("seed", range(5))
def test_growth_in_parts_is_the_growth(seed: int) -> None:
    """The same slope and verdict, wherever the requests are cut."""
    rng = np.random.default_rng(seed)
    begin_s = np.sort(rng.uniform(0, 100, 300))
    end_s = begin_s + rng.exponential(5.0 + 0.3 * begin_s)
    number = Growth((10.0, 90.0))
    for part in cut(300, rng):
        number.add(begin_s[part], end_s[part])
    slope, grows = growth(begin_s, end_s, (10.0, 90.0))
    assert number.slope() == (pytest.approx(slope), grows)
    assert grows
