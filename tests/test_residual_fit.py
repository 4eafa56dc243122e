"""Residual tables carry what neighbours know, and cross-validation never shows a fit its own shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sim.calibration.folds import errors_of, folds_of, held_out, shapes_of
from sim.calibration.residual_fit import Smoothing, choose_nodes, fit_residuals, spread_nodes
from sim.calibration.smooth import Coefficient, fit_logs

_N = np.array([64.0, 128.0, 256.0, 512.0, 1024.0])
_M = np.array([1.0, 4.0, 16.0, 64.0, 65.0, 256.0])


def _rows() -> dict[str, np.ndarray]:
    m, n, k = np.meshgrid(_M, _N, _N, indexing="ij")
    return {"m": m.ravel(), "n": n.ravel(), "k": k.ravel()}


def _step(at: dict[str, np.ndarray]) -> np.ndarray:
    """A tile step after m = 64 and a slow drift with n and k: what a residual table is for."""
    return 0.3 * (at["m"] > 64) + 0.05 * np.log(at["n"]) - 0.03 * np.log(at["k"])


def test_a_shape_left_out_is_carried_by_its_neighbours() -> None:
    """A pair (n, k) that was not measured is predicted within 3 %, its step after m = 64 included."""
    at = _rows()
    away = (at["n"] == 256) & (at["k"] == 256)
    known = {name: values[~away] for name, values in at.items()}
    table = fit_residuals(known, _step(known), {"m": _M}, {"n": _N, "k": _N})
    missing = {name: values[away] for name, values in at.items()}
    assert np.allclose(table.factor(**missing), np.exp(_step(missing)), rtol=0.03)


def test_far_from_everything_measured_the_table_says_what_holds_on_average() -> None:
    """Nodes a thousand times away get the mean of the logarithms, not an extrapolated slope."""
    at = _rows()
    level = np.where(at["n"] > 256, 0.2, 0.0)
    table = fit_residuals(at, level, {"m": _M}, {"n": np.append(_N, 1e9), "k": np.append(_N, 1e9)})
    assert abs(np.log(table.factor(m=16.0, n=1e9, k=1e9)) - np.median(level)) < 0.01


def test_one_wild_shape_does_not_pull_its_neighbours_when_robust() -> None:
    """A shape measured three times too slow moves the shape beside it less, once neighbours outvote it."""
    at = _rows()
    wild = np.where((at["n"] == 256) & (at["k"] == 256), np.log(3.0), 0.0)
    kept = ~((at["n"] == 256) & (at["k"] == 512))
    known = {name: values[kept] for name, values in at.items()}

    def beside(smoothing: Smoothing) -> float:
        table = fit_residuals(known, wild[kept], {"m": _M}, {"n": _N, "k": _N}, smoothing)
        return float(np.log(table.factor(m=16.0, n=256.0, k=512.0)))

    usual = Smoothing()
    assert beside(replace(usual, robust=True)) < 0.2 * beside(usual)


def test_nodes_are_put_where_the_steps_are() -> None:
    """Of six m four are kept: both ends, and both sides of the step."""
    at = _rows()
    nodes = choose_nodes(at["m"], _step(at), shapes_of([at["n"], at["k"]]), 4)
    assert list(nodes) == [1, 64, 65, 256]


def test_thinning_keeps_the_ends_and_drops_what_stands_closest() -> None:
    """64 and 65 say the same of a shape's width; the ends of the range stay."""
    assert list(spread_nodes(np.array([1.0, 8.0, 64.0, 65.0, 512.0]), 4)) == [1, 8, 64, 512]
    assert list(spread_nodes(np.array([3.0, 1.0, 2.0, 2.0]), 9)) == [1, 2, 3]


def test_no_fit_sees_a_row_of_the_shape_that_it_predicts() -> None:
    """Rows of one shape share a fold, folds are even, and every row is predicted once."""
    at = _rows()
    shapes = shapes_of([at["n"], at["k"]])
    seen: list[int] = []

    def predict(known: np.ndarray, away: np.ndarray) -> np.ndarray:
        assert not set(shapes[known]) & set(shapes[away])
        seen.extend(away)
        return np.ones(len(away))

    assert np.all(held_out(shapes, predict) == 1.0)
    assert sorted(seen) == list(range(len(shapes)))
    assert np.ptp(np.bincount(folds_of(np.arange(25)))) <= 1


def test_errors_are_of_the_ratio() -> None:
    """Twice as long and half as long are 100 % and 50 % off."""
    errors = errors_of(np.array([2.0, 0.5, 1.0]), np.ones(3))
    assert (errors.median_pct, errors.points) == (50.0, 3)
    assert np.isclose(errors.p90_pct, 90.0)


def test_of_a_coefficient_at_its_bound_the_rows_say_nothing_more() -> None:
    """A rate that would be twice what the card has: its variance is 0, and that of the other is not."""
    work = np.geomspace(1.0, 1e3, 24)
    noise = np.exp(np.random.default_rng(1).normal(0, 0.05, len(work)))

    def seconds(values: Mapping[str, float]) -> np.ndarray:
        return values["start_s"] + work / values["rate"]

    measured_s = noise * seconds({"start_s": 5.0, "rate": 2.0})
    coefficients = [Coefficient("start_s", 1.0, 0.1, 100.0), Coefficient("rate", 0.5, 0.1, 1.0)]
    smooth = fit_logs(seconds, measured_s, coefficients, np.arange(len(work)))
    assert np.isclose(smooth.values["rate"], 1.0, rtol=1e-2)
    assert smooth.covariance["rate"] == (0.0, 0.0)
    assert smooth.covariance["start_s"][0] > 0.0
