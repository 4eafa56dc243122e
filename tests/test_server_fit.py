"""Constants of servers, fitted to a server whose times are a formula: what was put in is found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sim.calibration.constants import KINDS, Constants
from sim.calibration.left_out import foretold, leave_out
from sim.calibration.observation import Observation, thinned
from sim.calibration.server import fit_constants
from sim.calibration.server_fit import Fit
from sim.calibration.spread import Spread, Units, precision

START = Constants(126e-6, 4.4e-6, 10e-3, 50e-6, 1.0, 1.0, 1.0, overlapped=False)
NOISE = (0.03, 0.12)  # of pace and of first token, in the logarithm


@dataclass(frozen=True)
class Load:
    """A load of a server whose GPU times are a line."""

    users: int
    prompt: int = 500
    layers: int = 32
    weights_bytes: float = 16e9


def predict(load: Load, constants: Constants) -> Mapping[str, float]:
    """TTFT and TPOT in ms, output tokens a second."""
    values = constants.as_dict()
    bandwidth, compute = values["memory_bandwidth"], values["compute"]
    gpu_s = load.weights_bytes / 3e12 / bandwidth + load.users * (20e-6 / compute + 15e-6 / bandwidth)
    host_s = values["host_step_s"] + load.users * values["host_sequence_s"]
    tpot_s = max(gpu_s, host_s) if constants.overlapped else gpu_s + host_s
    prefill_s = max(load.layers * values["eager_layer_s"], load.prompt * 30e-6 / compute)
    ttft_s = values["front_end_s"] + prefill_s + tpot_s / 2
    return {"tpot_mean_ms": 1e3 * tpot_s, "ttft_mean_ms": 1e3 * ttft_s, "out_tok_s": load.users / tpot_s}


def measured(
    truth: Constants,
    loads: Sequence[Load],
    rng: np.random.Generator,
    setup: str = "a",
    card: str = "card",
    effect: Sequence[float] = (0.0, 0.0),
) -> list[Observation]:
    """*loads* on a server of *truth*, with noise of each point and an *effect* of the set-up."""
    shared = np.array(effect) * rng.standard_normal(2)
    points = []
    for load in loads:
        slower = np.exp(shared + np.array(NOISE) * rng.standard_normal(2))
        metrics = predict(load, truth)
        seen = {
            "tpot_mean_ms": metrics["tpot_mean_ms"] * slower[0],
            "out_tok_s": metrics["out_tok_s"] / slower[0],
            "ttft_mean_ms": metrics["ttft_mean_ms"] * slower[1],
        }
        points.append(Observation(load, setup, card, seen))
    return points


def drawn(rng: np.random.Generator) -> Constants:
    """Constants as they are believed to be."""
    values = {}
    for kind in KINDS:
        u = kind.u_of(START.as_dict()[kind.name]) + kind.prior_sd * rng.standard_normal()
        values[kind.name] = kind.value_of(u if kind.of_card else max(u, 0.0))
    return replace(START, **values)


def value(fit: Fit, name: str, card: str = "card") -> float:
    return fit.constants(card).as_dict()[name]


def interval(fit: Fit, name: str, card: str = "card") -> tuple[float, float]:
    return fit.interval(fit.space.index(name, card))


THREE = [Load(1), Load(16), Load(128)]
BUSY = replace(START, host_step_s=4e-3, host_sequence_s=120e-6)
HIDDEN = replace(START, host_step_s=1e-3, host_sequence_s=120e-6, memory_bandwidth=0.95, overlapped=True)


def test_intervals_hold_what_was_put_in_as_often_as_they_say() -> None:
    """Over constants drawn as believed, and noise: 90 % intervals, within what as many draws allow."""
    held = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        truth = drawn(rng)
        fit = fit_constants(measured(truth, THREE, rng), predict, START, overlapped=False)
        for kind in KINDS:
            low, high = interval(fit, kind.name)
            held.append(low <= truth.as_dict()[kind.name] <= high)
    # Constants of one fit are told together: as if every second were independent.
    spread = 3 * np.sqrt(0.9 * 0.1 / (len(held) / 2))
    assert 0.9 - spread <= np.mean(held) <= 1.0


@pytest.mark.parametrize("truth", [BUSY, HIDDEN], ids=["summed", "overlapped"])
def test_summed_and_overlapped_are_told_apart(truth: Constants) -> None:
    """Where host times are long enough to show, whichever way the fit began."""
    loads = [Load(users) for users in (1, 4, 16, 64, 128, 256)]
    points = measured(truth, loads, np.random.default_rng(1))
    for way in (False, True):
        fit = fit_constants(points, predict, replace(START, overlapped=way))
        assert fit.overlapped == truth.overlapped
        assert fit.told_apart > 2.0
        low, high = interval(fit, "host_sequence_s")
        assert low <= truth.as_dict()["host_sequence_s"] <= high


def test_a_host_that_never_shows_is_hidden_not_without_time() -> None:
    """Added host times would have to be nothing, by chance; overlapped ones need only be short."""
    idle = replace(START, host_step_s=0.0, host_sequence_s=0.0)
    loads = [Load(users) for users in (1, 4, 16, 64, 128, 256)]
    for way in (False, True):
        points = measured(idle, loads, np.random.default_rng(2))
        fit = fit_constants(points, predict, replace(START, overlapped=way))
        assert fit.overlapped
        assert not fit.identified[fit.space.index("host_step_s", "card")]
        assert interval(fit, "host_step_s")[1] > 1e-3
        assert min(interval(fit, name)[0] for name in ("host_step_s", "host_sequence_s")) == 0.0


def test_what_the_loads_do_not_show_stays_where_it_began() -> None:
    """There is no link with one GPU; its interval is what was believed."""
    fit = fit_constants(measured(BUSY, THREE, np.random.default_rng(3)), predict, START)
    at = fit.space.index("link", "card")
    assert not fit.identified[at]
    assert value(fit, "link") == 1.0
    assert fit.interval(at) == pytest.approx(fit.believed(at))
    assert fit.identified[fit.space.index("host_sequence_s", "card")]


def test_a_row_that_is_off_for_its_own_reasons_moves_little() -> None:
    """One of twelve loads ten times too slow leaves the constants inside the others' intervals."""
    loads = [Load(users) for users in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)]
    points = measured(BUSY, loads, np.random.default_rng(4))
    sane = fit_constants(points, predict, START, overlapped=False)
    slow = {"tpot_mean_ms": 10.0, "ttft_mean_ms": 10.0, "out_tok_s": 0.1}
    off = replace(points[5], metrics={name: v * slow[name] for name, v in points[5].metrics.items()})
    fit = fit_constants([*points[:5], off, *points[6:]], predict, START, overlapped=False)
    for name in ("host_step_s", "host_sequence_s", "front_end_s"):
        low, high = interval(sane, name)
        assert low <= value(fit, name) <= high


def test_points_of_one_set_up_count_for_less_than_set_ups_of_their_own() -> None:
    """What a set-up is off by, all of its points are: the mean of k set-ups of m points has the variance
    (setup^2 + point^2 / m) / k."""
    for setups, points in ((8, 1), (2, 4), (1, 8)):
        setup = np.repeat(np.arange(setups), points)
        units = Units(np.zeros(8, dtype=int), setup, np.arange(8))
        spread = Spread(
            np.array([0.03, 0.1]), np.array([0.05, 0.1]), np.ones(8), {(i, 0): 1.0 for i in range(8)}
        )
        variance = (0.05**2 + 0.03**2 / points) / setups
        assert precision(units, spread).sum() == pytest.approx(1 / variance)


def test_host_times_are_of_the_version_and_efficiencies_of_each_card() -> None:
    """Two cards under one engine: one host time, two bandwidths; a card not measured is slow too."""
    rng = np.random.default_rng(6)
    points = []
    for card, share in (("slow", 0.80), ("fast", 0.92)):
        for size in (30e9, 80e9, 140e9):
            loads = [Load(users, 500, 32, size) for users in (1, 4, 16, 64, 128)]
            points += measured(replace(BUSY, memory_bandwidth=share), loads, rng, f"{size}", card)
    fit = fit_constants(points, predict, START, overlapped=False)
    slow, fast, other = (value(fit, "memory_bandwidth", card) for card in ("slow", "fast", "unseen"))
    assert slow < fast
    assert slow == pytest.approx(0.80, abs=0.06)
    assert other < 0.96
    assert value(fit, "host_step_s", "slow") == value(fit, "host_step_s", "unseen")


def test_more_loads_narrow_an_interval_as_foretold() -> None:
    """`sd_u` of four times the loads is about that of a fit to so many, whose noise is estimated anew.

    Of the front end, which nothing else stands in for.
    """
    rng = np.random.default_rng(7)
    points = measured(BUSY, THREE, rng)
    more = points + [p for _ in range(3) for p in measured(BUSY, THREE, rng)]
    few, many = (fit_constants(p, predict, START, overlapped=False) for p in (points, more))
    at = few.space.index("front_end_s", "card")
    assert many.sd_u(at) == pytest.approx(few.sd_u(at, 4.0), rel=0.3)
    assert many.sd_u(at) < 0.7 * few.sd_u(at)


def _setups(seed: int, count: int = 8) -> list[Observation]:
    """Set-ups of models and prompts of their own, each off by an effect of its own."""
    rng = np.random.default_rng(seed)
    points = []
    for number in range(count):
        size, prompt = float(rng.uniform(14e9, 140e9)), int(rng.integers(100, 4000))
        loads = [Load(users, prompt, 32, size) for users in (1, 8, 32, 128)]
        points += measured(BUSY, loads, rng, f"{number}", effect=(0.04, 0.15))
    return points


def test_a_set_up_left_out_is_predicted_as_by_a_fit_without_it() -> None:
    """To first order, without a simulation: residuals agree to 0.003, where those of the whole fit do not."""
    points = _setups(10)
    whole = fit_constants(points, predict, START, overlapped=False)
    without = fit_constants([p for p in points if p.setup != "2"], predict, START, overlapped=False)
    left = leave_out(whole)
    for number, point in enumerate(points):
        if point.setup == "2":
            foreseen = predict(point.case, without.constants("card"))["tpot_mean_ms"]
            row = np.flatnonzero((whole.units.point == number) & (whole.units.which == 0))[0]
            wanted = np.log(point.metrics["tpot_mean_ms"] / foreseen)
            assert left.residual[row] == pytest.approx(wanted, abs=0.003)
            assert abs(whole.residual[row] - wanted) > 0.006


def test_intervals_of_set_ups_left_out_hold_what_was_measured() -> None:
    """90 % intervals of 256 points of 64 set-ups: no fewer than 85 %."""
    left = [leave_out(fit_constants(_setups(seed), predict, START, overlapped=False)) for seed in range(8)]
    assert np.concatenate([one.covered for one in left]).mean() >= 0.85
    assert np.concatenate([one.covered for one in left]).mean() < 0.99


def test_a_load_not_measured_is_foretold_with_an_interval() -> None:
    """It holds what the server would do, and is wider where the kernels are off too."""
    points = _setups(11)
    fit = fit_constants(points, predict, START, overlapped=False)
    new = Observation(Load(200, 700, 32, 50e9), "new", "card", {})
    truth = predict(new.case, BUSY)
    for kernel_sd in (0.0, 0.1):
        for name, (low, value, high) in foretold(fit, new, predict, kernel_sd).items():
            assert low < truth[name] < high
            assert low < value < high
    assert foretold(fit, new, predict, 0.1)["out_tok_s"][2] > foretold(fit, new, predict)["out_tok_s"][2]
    assert foretold(fit, new, lambda case, constants: "does not fit") == {}


def test_constants_that_are_held_stay_and_are_not_counted() -> None:
    """A card's efficiencies known from elsewhere: the host's times make up for them."""
    truth = replace(BUSY, memory_bandwidth=0.9, compute=0.9)
    points = measured(truth, THREE, np.random.default_rng(12))
    names = ("compute", "memory_bandwidth", "link")
    free, fit = (fit_constants(points, predict, START, overlapped=False, held=held) for held in ((), names))
    assert [value(fit, name) for name in names] == pytest.approx([1.0] * 3, abs=1e-4)
    assert not any(fit.identified[fit.space.index(name, "card")] for name in names)
    assert value(fit, "host_step_s") > value(free, "host_step_s")


def test_thinning_keeps_the_ends_of_every_set_up() -> None:
    """Of each set-up the lightest and the heaviest load, before what lies between."""
    rng = np.random.default_rng(8)
    loads = [Load(users) for users in (1, 2, 4, 8, 16, 32, 64)]
    points = [p for name in "abc" for p in measured(BUSY, loads, rng, name)]
    kept = thinned(points, 9)
    users = {name: sorted(p.case.users for p in kept if p.setup == name) for name in "abc"}
    assert users == {name: [1, 8, 64] for name in "abc"}
    assert thinned(points, 21) == points


def test_points_that_cannot_be_predicted_are_left_out() -> None:
    """With a reason instead of metrics; where none is left, that is said."""
    points = measured(BUSY, THREE, np.random.default_rng(9))

    def partial(load: Load, constants: Constants) -> Mapping[str, float] | str:
        return predict(load, constants) if load.users > 1 else "does not fit"

    assert fit_constants(points, partial, START, overlapped=False).points == 2
    with pytest.raises(ValueError, match="no point can be predicted"):
        fit_constants(points[:1], partial, START)
