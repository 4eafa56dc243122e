"""Knees without a steady state: of a trace, by its windows, on one server whose every wait is Lindley's."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from analytic import FakeScenario
from queue_windows import BOUND_S, SLO, WINDOW_S, Queue, as_requests, asked, bursty, replayed
from support import base

from sim.clock import on_grid
from sim.faults import InputFault
from sim.planning.crossing import crossing
from sim.planning.knee import Knee, find_knee
from sim.planning.limits import as_judged, broken_limits, decisive, limits_of, turned_away_share
from sim.planning.other_samples import Blocks, blocks_of, knees_of_blocks, of_many, of_one
from sim.planning.reasons import first_to_give_way
from sim.planning.resources import SPEEDS
from sim.planning.search import Bracket, Point, Summarised
from sim.report.text import headline, interval_words, knee_text
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import simulate
from sim.workload import Requests
from sim.workload.blocks import circle_s, in_blocks, sent_faster
from sim.workload.streams import stream


def brute_force(arrival_s: np.ndarray, allowed: float = 0.0) -> float:
    """The last of a fine grid of multipliers up to which no more than *allowed* of the windows fail."""
    for scale in np.geomspace(0.8, 3.0, 900):
        windows = replayed(arrival_s)(replace(asked(), load={"time_scale": scale})).summary()["windows"]
        if windows["share_in_violation"] > allowed:
            return float(scale)
    raise AssertionError("no multiplier fails")


@pytest.mark.parametrize("allowed", [0.0, 0.1])
def test_a_traces_multiplier_is_that_of_brute_force(allowed: float) -> None:
    """Within the two percent asked for: the largest multiplier at which few enough windows miss the limit."""
    arrival_s = bursty(1)
    knee = find_knee(asked(windows_in_violation=allowed), simulate=replayed(arrival_s))
    exact = brute_force(arrival_s, allowed)
    assert exact / 1.025 <= knee.time_scale <= exact * 1.005
    assert knee.windows["share_in_violation"] <= allowed == knee.windows["may_miss"]


def test_more_windows_may_fail_at_a_higher_multiplier() -> None:
    """Sparing the worst tenth of the windows lets the trace be replayed faster."""
    strict, lenient = (
        find_knee(asked(windows_in_violation=allowed), simulate=replayed(bursty(2))) for allowed in (0.0, 0.1)
    )
    assert lenient.time_scale > 1.02 * strict.time_scale


def test_it_holds_at_every_lower_multiplier_tried() -> None:
    """A dip just below the multiple that bisection finds is looked for: the answer lies below it."""
    inner = replayed(bursty(1))
    plain = find_knee(asked(), simulate=inner).time_scale

    def odd(scenario: Any) -> Queue:
        fails = abs(scenario.load["time_scale"] / plain - 0.96) < 0.004
        return replayed(np.repeat(bursty(1), 3))(scenario) if fails else inner(scenario)

    knee = find_knee(asked(), simulate=odd)
    assert 0.9 * plain < knee.time_scale < 0.96 * plain
    assert all(point.passes for point in knee.points if point.load <= knee.time_scale)


def test_constant_gaps_pass_until_the_server_is_full() -> None:
    """D/D/1: nobody waits below capacity, so the queue gives way first, at four requests per second."""
    knee = find_knee(asked(), simulate=replayed(np.arange(0.0, 7200.0, 0.5)))
    assert knee.rate_per_s == pytest.approx(4.0, rel=0.021)


def test_the_answer_speaks_of_multiples() -> None:
    """JSON has time_scale wherever it has rate_per_s, mean and peak rates; the text says how much faster."""
    knee = find_knee(asked(), simulate=replayed(bursty(1)))
    answer = json.loads(json.dumps(knee.as_dict(), allow_nan=False))
    rates = answer["knee"]["rate_per_s"] / answer["knee"]["time_scale"]
    assert rates == pytest.approx(len(bursty(1)) / 7200.0, rel=0.06)
    assert answer["knee"]["peak_rate_per_s"] > 1.2 * answer["knee"]["rate_per_s"]
    assert answer["capacity_time_scale"] * rates == pytest.approx(answer["capacity_rate_per_s"])
    assert {"time_scale", "rate_per_s"} <= answer["points"][0].keys()
    assert answer["knee"]["limits"]["queue_p99_s"]["at_knee"] == answer["knee"]["windows"]["worst"]["value"]
    assert headline(knee).startswith(f"Serves this trace {knee.time_scale:.3g} times as fast, ")
    assert "in every window of 300 s; queueing p99 gives way first" in headline(knee)
    assert "windows missed" in knee_text(knee)


def test_two_searches_of_a_trace_are_one_answer() -> None:
    """Nothing depends on chance or on what was searched before: equal bytes."""
    first, second = (find_knee(asked(), simulate=replayed(bursty(4))).as_dict() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def test_where_a_search_begins_does_not_matter() -> None:
    """A given time_scale is where it begins: the multiple found is the same, within the precision."""
    found = [
        find_knee(replace(asked(), load={"mode": "trace", "time_scale": scale}), simulate=replayed(bursty(4)))
        for scale in (0.3, 1.0, 5.0)
    ]
    scales = [knee.time_scale for knee in found]
    assert max(scales) <= 1.03 * min(scales)


def test_a_stretched_trace_is_the_same_as_a_rate() -> None:
    """Sought as a multiple of its own times or as a rate, a trace has one knee."""
    arrival_s = bursty(3)
    own_per_s = (len(arrival_s) - 1) / float(arrival_s[-1])

    def at_a_rate(scenario: Any) -> Queue:
        scale = scenario.load["rate_per_s"] / own_per_s
        return Queue(arrival_s / scale, float(arrival_s[len(arrival_s) // 10]) / scale)

    scaled = find_knee(asked(), simulate=replayed(arrival_s), precision=0.005)
    rated = find_knee(replace(asked(), load={"rate_per_s": 1.0}), simulate=at_a_rate, precision=0.005)
    assert rated.rate_per_s == pytest.approx(scaled.time_scale * own_per_s, rel=0.012)


def test_a_windows_value_is_the_worst_that_may_not_be_missed() -> None:
    """With a fifth of five windows to spare the second largest counts; a pooled one counts as its windows."""
    rows = [{"values": {"queue_p99_s": x}} for x in (1.0, 5.0, 3.0, 2.0, 4.0)]
    windows = {"count": 5, "by_window": rows}
    assert [decisive(windows, "queue_p99_s", share) for share in (0.0, 0.19, 0.2, 0.4)] == [
        5.0,
        5.0,
        4.0,
        3.0,
    ]
    rows[1]["windows"] = 2
    assert decisive({"count": 6, "by_window": rows}, "queue_p99_s", 0.2) == 5.0


def test_limits_missed_in_turns_are_missed_together() -> None:
    """Each limit fails in one window of four: both may, if one alone could, but not together."""
    limits = limits_of({"ttft_p99_s": 1.0, "tpot_p99_s": 1.0}, 0.25)
    low, high = {"ttft_p99_s": 0.5, "tpot_p99_s": 0.5}, {"ttft_p99_s": 2.0, "tpot_p99_s": 0.5}
    other = {"ttft_p99_s": 0.5, "tpot_p99_s": 2.0}
    rows = [{"values": x, "missed": [k for k in x if x[k] > 1]} for x in (low, high, other, low)]
    windows = {"count": 4, "share_in_violation": 0.5, "by_window": rows}
    assert broken_limits(limits, {"windows": windows}) == limits
    windows = {"count": 4, "share_in_violation": 0.25, "by_window": [rows[1], rows[0], rows[0], rows[0]]}
    assert broken_limits(limits, {"windows": windows}) == ()


def test_a_limit_that_did_not_rise_gives_way_last() -> None:
    """Missed together in too many windows, of two limits the one that rose is named."""
    limits = limits_of({"ttft_p99_s": 1.0, "tpot_p99_s": 1.0}, 0.5)

    def point(load: float, rows: list[tuple[float, float]]) -> Point:
        by_window = [
            {"values": {"ttft_p99_s": a, "tpot_p99_s": b}, "missed": ["both"] * (max(a, b) > 1)}
            for a, b in rows
        ]
        return Point(load, load, {"windows": {"count": 4, "by_window": by_window}}, limits)

    good = point(1.0, [(2.0, 0.5), (2.0, 0.5), (0.5, 0.5), (0.5, 0.5)])
    bad = point(1.1, [(2.0, 0.8), (2.0, 0.5), (0.5, 2.0), (0.5, 0.9)])
    assert first_to_give_way(Bracket(good, bad)) == limits[1]


def test_who_is_turned_away_counts_by_window() -> None:
    """Of a run that turns away 0.5 %, all in one window, the share there decides."""
    rows = [{"values": {"turned_away": 0.05}}, {"values": {}}]
    summary = {"requests": {"offered": 1000, "rejected": 5}, "windows": {"count": 2, "by_window": rows}}
    assert turned_away_share(as_judged(limits_of(SLO, 0.0), summary)) == 0.05
    assert turned_away_share(as_judged(limits_of(SLO, 0.5), summary)) == 0.0
    assert turned_away_share(as_judged(limits_of(SLO), summary)) == 0.005


@pytest.mark.parametrize("root", [0.4, 0.97, 1.0, 1.3, 3.0])
def test_a_crossing_is_found_from_afar(root: float) -> None:
    """Within the tolerance, whatever the curve: here flat below the root and steep above."""
    loads: list[float] = []

    def pressure(load: float) -> float:
        loads.append(load)
        return 0.1 * np.log(load / root) if load < root else 20 * np.log(load / root)

    assert crossing(pressure, 1.0, 0.01) == pytest.approx(root, rel=0.01)
    assert len(loads) <= 13


@pytest.mark.parametrize("root", [0.43, 0.97, 1.06, 3.1])
def test_a_straight_curve_is_crossed_exactly(root: float) -> None:
    """Straight in the load's logarithm, its root is interpolated without error, from loads far apart too."""
    assert crossing(lambda load: 3 * np.log(load / root), 1.0, 10.0) == pytest.approx(root, rel=1e-12)


def test_the_spread_of_other_samples_is_students_in_logarithms() -> None:
    """ln knees of 0, 1 and 2: s = 1 and, at 95 %, t(2) = 4.302653; a mean's is s / sqrt(3) of that."""
    others = [1.0, np.e, np.e**2]
    assert of_one(5.0, others, 0.95) == pytest.approx((5 * np.exp(-4.302653), 5 * np.exp(4.302653)), rel=1e-5)
    half = 4.302653 / np.sqrt(3)
    found = of_many(others, 0.95)
    assert found == pytest.approx((np.e, np.exp(1 - half), np.exp(1 + half)), rel=1e-5)


@pytest.mark.parametrize(("windows", "blocks"), [(8, 4), (27, 9), (64, 16), (125, 25)])
def test_a_sample_has_fewer_blocks_than_its_trace(windows: int, blocks: int) -> None:
    """n^(2/3) of n: of even traffic, whose windows tell nothing of each other, a block is one window."""
    arrival_s = on_grid(np.arange(windows * 100) * (WINDOW_S / 100))
    found = blocks_of(as_requests(arrival_s), WINDOW_S, 0.0)
    assert (found.block_s, found.of, found.count) == (WINDOW_S, windows, blocks)


def test_blocks_keep_requests_together() -> None:
    """Times within a block and lengths stay as they were, and a block beyond the end goes on at the start."""
    arrival_s = on_grid(np.arange(10) * 10.0)
    trace = Requests(arrival_s, np.arange(1, 11), np.arange(11, 21))
    assert circle_s(trace) == 100.0
    drawn = in_blocks(trace, 20.0, [35.0, 85.0, 35.0], 30.0)
    assert drawn.prompt_tokens.tolist() == [1, 2, 5, 6, 7, 10, 1, 2, 5, 6, 7]
    assert drawn.output_tokens.tolist() == [x + 10 for x in drawn.prompt_tokens.tolist()]
    assert drawn.arrival_s.tolist() == [0, 10, 25, 35, 45, 55, 65, 75, 85, 95, 105]
    assert sent_faster(drawn, 2.0).arrival_s.tolist() == [x / 2 for x in drawn.arrival_s.tolist()]


def test_a_block_has_an_eighth_of_its_trace_at_most() -> None:
    """However long what arrives is correlated for: here half of the trace is busy, the other half quiet."""
    gaps_s = np.repeat([0.5, 5.0], [32 * 600, 32 * 60]) * WINDOW_S / 300
    found = blocks_of(as_requests(on_grid(np.cumsum(gaps_s))), WINDOW_S, 0.0)
    assert found.correlation_s > 64 * WINDOW_S / 8
    assert (found.block_s, found.of, found.count) == (8 * WINDOW_S, 8, 4)


def test_a_sample_that_is_sent_faster_warms_up_as_many_requests() -> None:
    """The warm-up, in seconds, shrinks as the gaps do: at every load it ends with the same request."""
    sent: list[int] = []

    def replay(scenario: Any, sample: Requests) -> Summarised:
        warm_up_s = float(scenario.run["warmup"].removesuffix("s"))
        sent.append(int(np.searchsorted(sample.arrival_s, warm_up_s)))
        return Queue(sample.arrival_s, warm_up_s)

    requests = as_requests(on_grid(np.arange(0.5, 4 * WINDOW_S)))
    blocks = Blocks(100.0, WINDOW_S, 2, 4, 0.0)
    knees_of_blocks(asked(1), "load.time_scale", 1.0, limits_of(SLO, 0.0), requests, blocks, replay)
    assert len(sent) > 16
    assert set(sent) == {100}


def interval(arrival_s: np.ndarray, knee: Knee, seed: int) -> tuple[float, float]:
    """The sampling interval of *knee*, from other samples of the trace."""
    begin_s = float(knee.at.summary["window"]["start_s"])
    requests = as_requests(arrival_s / knee.time_scale)

    def replay(scenario: Any, sample: Requests) -> Summarised:
        return Queue(sample.arrival_s, float(scenario.run["warmup"].removesuffix("s")))

    blocks = blocks_of(requests, WINDOW_S, begin_s)
    knees = knees_of_blocks(
        asked(seed), "load.time_scale", knee.time_scale, knee.asked, requests, blocks, replay
    )
    return of_one(knee.time_scale, knees, 0.95)


def covered(cases: int, first: int, length_s: float) -> float:
    """The share of traces, cut from a long process, whose interval holds what half of such traces bear."""
    traces = [bursty(first + i, length_s) for i in range(2 * cases)]
    knees = [find_knee(asked(), simulate=replayed(trace)) for trace in traces]
    typical = float(np.median([knee.time_scale for knee in knees]))
    ends = [interval(traces[i], knees[i], first + i) for i in range(cases)]
    return sum(low <= typical <= high for low, high in ends) / cases


def test_the_interval_of_a_trace_holds_the_typical_multiplier() -> None:
    """95 % intervals of traces of an hour: of 12 at least 9 hold it (3 sigma)."""
    assert covered(12, 100, 3600.0) >= 9 / 12


@pytest.mark.slow
@pytest.mark.parametrize("length_s", [3600.0, 7200.0])
def test_coverage_of_a_hundred_traces(length_s: float) -> None:
    """The same with a hundred: 88 to 100 % hold it."""
    share = covered(100, 10_000, length_s)
    print(f"traces of {length_s:g} s: {share:.2f}")
    assert share >= 0.88


DAY_S = 7200.0


def a_day(scenario: Any) -> Queue:
    """Poisson arrivals whose rate goes from half its mean to one and a half times it within a day."""
    mean_per_s, draw = scenario.load["rate_per_s"], stream(scenario.run["seed"], "arrivals")
    at_s = np.cumsum(draw.standard_exponential(int(2 * DAY_S * mean_per_s)) / (1.5 * mean_per_s))
    rate = 1.0 - 0.5 * np.cos(2 * np.pi * at_s / DAY_S)
    return Queue(at_s[(draw.random(len(at_s)) < rate / 1.5) & (at_s < DAY_S)], 0.0)


def daily(seed: int = 1, **run: Any) -> FakeScenario:
    curve = {"arrivals": {"kind": "poisson", "series": {"times_s": [0.0], "rates": [1.0]}}}
    return replace(asked(seed, **run), load={"rate_per_s": 1.0}, workload=curve)


def strain(day: FakeScenario, rate_per_s: float) -> float:
    """ln of the worst window's value over the limit."""
    worst = a_day(replace(day, load={"rate_per_s": rate_per_s})).summary()["windows"]["worst"]
    return float(np.log(max(worst["value"], 1e-6) / BOUND_S))


def test_the_knee_of_a_daily_curve_is_that_of_a_typical_day() -> None:
    """The mean rate at which the worst five minutes of a typical day just hold, within the precision."""
    knee = find_knee(daily(seed=5), simulate=a_day)  # whose own day is a bad one
    days = [daily(seed) for seed in range(500, 540)]
    knees = [crossing(lambda rate, day=day: strain(day, rate), 2.5, 0.02) for day in days]
    typical = float(np.exp(np.mean(np.log(knees))))
    low, high = knee.interval.sampling
    assert (high - low) / 2 <= 0.02 * knee.rate_per_s
    assert knee.rate_per_s == pytest.approx(typical, rel=0.03)
    assert knee.peak_rate_per_s == pytest.approx(1.5 * knee.rate_per_s, rel=0.1)
    assert knee.at.passes
    assert all(point.passes for point in knee.points if point.load < knee.rate_per_s)
    assert "on average and" in headline(knee)


@cache
def simulated() -> Knee:
    """A real engine's knee: eight minutes of the bursty process as a trace, windows of half a minute."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        lines = [f"{at_s:.6f},{300 + 7 * i % 900},{1 + i % 40}" for i, at_s in enumerate(bursty(5, 500.0))]
        path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]), encoding="utf-8")
        scenario = base().replace(
            {
                "hardware": "l4-24gb-pcie",
                "engine.max_model_len": 4096,
                "engine.max_num_seqs": 10,
                "workload": str(path),
                "load": {"mode": "trace"},
                "slo": {"ttft_p90_s": 4.0},
                "run": {"window_s": 30.0},
            }
        )
        return find_knee(scenario)


def test_a_simulated_trace_has_an_interval_and_what_binds() -> None:
    """Sampling from traces drawn again, the model's parts on top, and elasticities, all in multiples."""
    knee = simulated()
    answer = json.loads(json.dumps(knee.as_dict(), allow_nan=False))["knee"]
    (low, high), (least, most) = answer["interval"]["sampling"], answer["interval"]["total"]
    assert least < low < answer["time_scale"] < high < most
    drawn = answer["interval"]["parts"]["sampling"]
    assert drawn["block_s"] % 30.0 == 0
    assert drawn["blocks"] == round(drawn["blocks_of_trace"] ** (2 / 3))
    assert drawn["relative"] == pytest.approx((high - low) / 2 / answer["time_scale"])
    assert answer["binding"]["elasticities"]["max_num_seqs"] > 0
    assert interval_words(knee) in headline(knee)
    speeds = sum(answer["binding"]["elasticities"][name] for name in SPEEDS)
    assert speeds > 0.8


def trace_of(folder: Path, rows: int) -> Scenario:
    """A trace with a request each second."""
    path = folder / "trace.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},100,10\n" for i in range(rows)),
        encoding="utf-8",
    )
    limits = {"slo": {"ttft_p90_s": 1.0}, "run": {"warmup": "50s"}}
    return base().replace({"workload": str(path), "load": {"mode": "trace"}, **limits})


def test_a_trace_within_the_warm_up_is_refused(tmp_path: Path) -> None:
    """The sentence names the file, how long the trace lasts at this multiple, and the warm-up."""
    short = trace_of(tmp_path, 81).replace({"load.time_scale": 2.0})
    sentence = r"trace\.csv: the last request comes at 40 s, within run\.warmup of 50 s"
    for ask in (simulate, find_knee):
        with pytest.raises(InputFault, match=sentence):
            ask(short)


def test_a_warm_up_in_seconds_is_the_same_requests_at_every_multiple(tmp_path: Path) -> None:
    """Of 81 requests a second apart the first fifty are left out, however fast they are sent."""
    knee = find_knee(trace_of(tmp_path, 81))
    assert {point.summary["window"]["requests"] for point in knee.points} == {31}


def test_a_short_trace_says_that_it_is_judged_as_a_whole(tmp_path: Path) -> None:
    """Without two windows the answer has no windows, no interval, and sentences that say why."""
    short = trace_of(tmp_path, 400)
    (told,) = [x for x in Result(simulate(short)).summary()["warnings"] if "as a whole" in x]
    assert "two windows of run.window_s (300 s)" in told
    knee = find_knee(short)
    assert knee.windows is None
    assert knee.interval is None
    assert any("judged as a whole" in warning for warning in knee.warnings)
