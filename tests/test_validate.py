"""kneesim validate: what we predict is exact, a scaled table is off by its scale, nothing is hidden."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from validation_tables import CLOSED, as_predicted, write_table

from sim.cli.main import app
from sim.validation.accuracy_text import accuracy_text
from sim.validation.points import read_points
from sim.validation.predict import cases_of
from sim.validation.score import METRICS, measured_of, summary_of
from sim.validation.series import _load_at, series_rows
from sim.validation.setups import Setup, below_capacity, setup_of
from sim.validation.unfit import told_unfit, unfit_of
from sim.validation.validate import validate

LOADS = [{**CLOSED, "load_value": users, "n_requests": 6 * users} for users in (1, 4, 16, 64)]
RATE = {**CLOSED, "load_kind": "rate", "load_value": 2, "n_requests": 40, "req_per_s": 2, "setup": "rate"}


def test_a_table_of_our_own_predictions_has_no_error(tmp_path: Path) -> None:
    """Every metric of every row is hit exactly; so are capacity and knee of the series."""
    validation = validate(as_predicted(tmp_path / "own.csv", [*LOADS, RATE]))
    assert not validation.skipped
    summary = summary_of(validation.counted)
    assert set(summary) == set(METRICS)
    assert all(abs(row.error_pct) < 1e-9 for row in validation.rows)
    assert summary["out_tok_s"]["n"] == 4  # not of the open loop below capacity, where it echoes the rate
    assert (summary["ttft_ms"]["n"], summary["ttft_saturated_ms"]["n"]) == (2, 3)


def test_a_scaled_table_shows_exactly_its_scale(tmp_path: Path) -> None:
    """Measured values 25 % above ours are a bias of -20 % in each metric of a row, with no spread."""
    validation = validate(as_predicted(tmp_path / "scaled.csv", LOADS, scale=1.25))
    for metric in ("out_tok_s", "ttft_saturated_ms", "tpot_ms", "e2e_ms", "capacity"):
        errors = summary_of(validation.counted)[metric]
        assert errors["bias_pct"] == pytest.approx(-20.0, abs=1e-9)
        assert errors["median_abs_pct"] == pytest.approx(20.0, abs=1e-9)
        assert errors["p90_abs_pct"] == pytest.approx(20.0, abs=1e-9)


def test_the_knee_is_where_the_curve_meets_the_limit() -> None:
    """Of y = x^2 at the limit 25 the load is 5; beyond the last load its slope leads on, twice at most."""
    loads = np.array([1.0, 2.0, 8.0, 16.0])
    assert _load_at(loads, loads**2, 25.0) == pytest.approx(5.0)
    assert _load_at(loads, loads**2, 400.0) == pytest.approx(20.0)
    assert _load_at(loads, loads**2, 1e6) == pytest.approx(32.0)


@pytest.mark.parametrize(
    ("changes", "metrics"),
    [
        ([{}, {}, {}, {}], {"capacity": True, "knee": True}),
        ([{}, {}, {}], {}),
        ([{"out_tok_s": ""}, {}, {}, {}], {"knee": True}),
        ([{"unfit": "tpot: a guess"}, {}, {}, {}], {"capacity": False, "knee": False}),
        ([{"unfit": "out_tok_s: a guess"}, {}, {}, {}], {"capacity": False, "knee": True}),
        ([{"grade": "B"}, {}, {}, {}], {"capacity": False, "knee": False}),
        ([{"load_kind": "offline"}] * 4, {}),
    ],
)
def test_a_series_says_no_more_than_all_its_loads(
    tmp_path: Path, changes: list[dict[str, str]], metrics: dict[str, bool]
) -> None:
    """Four loads at least; no capacity where one is unknown; nothing counts that rests on a row that does
    not; and an offline batch's label is no load."""
    rows = [
        {**row, "out_tok_s": 100 * n, "tpot_mean_ms": 10 * n, **change}
        for n, row, change in zip((1, 2, 3, 4), LOADS, changes, strict=False)
    ]
    cases, _ = cases_of(read_points(write_table(tmp_path / "points.csv", rows)).rows)
    predictions = {case.point.id: {"out_tok_s": 1.0, "tpot_mean_ms": 10.0} for case in cases}
    assert {row.metric: row.counts for row in series_rows(cases, predictions, [])} == metrics


def test_rows_that_cannot_be_said_are_listed_with_the_reason(tmp_path: Path) -> None:
    """An unknown card, model, engine, weight type or length costs its own row and no other."""
    rows = [
        {**CLOSED, "tpot_mean_ms": 10},
        {**CLOSED, "gpu": "Voodoo 2", "tpot_mean_ms": 10},
        {**CLOSED, "model": "gpt-oss-20b", "tpot_mean_ms": 10},
        {**CLOSED, "engine": "llama.cpp", "tpot_mean_ms": 10},
        {**CLOSED, "weight_dtype": "mxfp4", "tpot_mean_ms": 10},
        {**CLOSED, "isl_mean": "", "tpot_mean_ms": 10},
        {**CLOSED, "n_gpu": 8, "tp": "", "tpot_mean_ms": 10},
        {**CLOSED, "tpot_mean_ms": ""},
    ]
    validation = validate(write_table(tmp_path / "points.csv", rows))
    assert {row.id for row in validation.rows} == {"r0"}
    assert validation.skipped == {
        "r1": "there is no hardware profile for GPU Voodoo 2",
        "r2": "there is no dense model in the catalogue called gpt-oss-20b",
        "r3": "engine llama.cpp is not simulated",
        "r4": "weights in mxfp4 have no kernels in a profile",
        "r5": "the row does not say how long prompts are",
        "r6": "the row does not say how 8 GPUs are used",
        "r7": "the row has no measured value that is compared",
    }


def test_unfit_rows_are_shown_and_not_counted(tmp_path: Path) -> None:
    """A column `unfit` takes a row, or the metrics that it names, out of the summary, not out of the rows."""
    rows = [
        {**CLOSED, "tpot_mean_ms": 10, "ttft_mean_ms": 100, "osl_mean": "", "osl_dist": "max 64"},
        {**CLOSED, "tpot_mean_ms": 10, "ttft_mean_ms": 100, "unfit": "ttft: the clock stood still"},
        {**CLOSED, "tpot_mean_ms": 10, "unfit": "the fan was off"},
        {**CLOSED, "tpot_mean_ms": 10, "grade": "B"},
    ]
    rows[0]["notes"] = "derived output tokens/request = 64"
    validation = validate(write_table(tmp_path / "points.csv", rows))
    counted = {(row.id, row.metric) for row in validation.counted}
    assert counted == {("r0", "tpot_ms"), ("r0", "ttft_saturated_ms"), ("r1", "tpot_ms")}
    told = {row.unfit for row in validation.rows}
    assert told == {"", "the clock stood still", "the fan was off"}
    assert "the fan was off" in accuracy_text(validation)


def test_reasons_survive_being_written_into_the_table(tmp_path: Path) -> None:
    """What is known to be unfit of public rows reads back from the column as it was."""
    rows = [{**CLOSED, "id": name} for name in ("mlpv41-h200x8", "den-t1-005", "lmd-static-7b-2048-128-b16")]
    table = write_table(tmp_path / "points.csv", [{**row, "out_tok_s": 1} for row in rows])
    for point in read_points(table).rows:
        other = replace(point, id="another", unfit=told_unfit(point))
        assert unfit_of(point) == unfit_of(other) != {}


def test_throughput_counts_where_the_rate_is_not_kept_up_with(tmp_path: Path) -> None:
    """Offered 100 and served 40 a second: saturated, so throughput is compared and TTFT is of its kind."""
    row = {**RATE, "load_value": 100, "req_per_s": 40, "out_tok_s": 2560, "ttft_mean_ms": 900}
    (point,) = read_points(write_table(tmp_path / "points.csv", [row])).rows
    assert [measured.metric for measured in measured_of(point)] == ["out_tok_s", "ttft_saturated_ms"]
    (kept_up,) = read_points(write_table(tmp_path / "points.csv", [{**row, "req_per_s": 99}])).rows
    assert [measured.metric for measured in measured_of(kept_up)] == ["ttft_ms"]
    (behind,) = read_points(write_table(tmp_path / "points.csv", [{**row, "req_per_s": 90}])).rows
    assert not below_capacity(behind, None)


def test_a_rate_near_what_the_server_does_offline_saturates_it(tmp_path: Path) -> None:
    """Where a row does not say what was served: 80 a second of 100 are below capacity, 90 are not."""
    rows = [{**RATE, "load_value": rate, "req_per_s": "", "ttft_mean_ms": 900} for rate in (80, 90)]
    below, near = read_points(write_table(tmp_path / "points.csv", rows)).rows
    assert below_capacity(below, 100.0)
    assert not below_capacity(near, 100.0)
    assert below_capacity(near, None)


def test_an_e2e_follows_from_a_closed_loop_s_ttft_and_tpot(tmp_path: Path) -> None:
    """Of 64 tokens each, the first after 100 ms and 63 more at 10 ms: 730 ms; where one is told, that one."""
    rows = [
        {**CLOSED, "ttft_mean_ms": 100, "tpot_mean_ms": 10, **change}
        for change in ({}, {"e2e_mean_ms": 800}, {"osl_dist": "lognormal"}, {"unfit": "tpot: a guess"})
    ]
    points = read_points(write_table(tmp_path / "points.csv", rows)).rows
    told = [[one for one in measured_of(point) if one.metric == "e2e_ms"] for point in points]
    assert [[(one.value, one.unfit) for one in found] for found in told] == [
        [(730.0, "")],
        [(800.0, "")],
        [],
        [(730.0, "a guess")],
    ]


def test_one_user_and_one_request_leave_the_server_time(tmp_path: Path) -> None:
    """Two do not; and a row of a plateau is what the server does at most, whatever rate it names."""
    users = [{**CLOSED, "load_value": count} for count in (1, 2)]
    batches = [{**CLOSED, "load_kind": "offline", "n_requests": count} for count in (1, 48)]
    plateau = {**RATE, "notes": "the plateau of rising rates"}
    rows = [{**row, "tpot_mean_ms": 10} for row in (*users, *batches, RATE, plateau)]
    points = read_points(write_table(tmp_path / "points.csv", rows)).rows
    assert [below_capacity(point, None) for point in points] == [True, False, True, False, True, False]
    assert [setup.scenario.load for point in points[-2:] if isinstance(setup := setup_of(point), Setup)] == [
        {"rate_per_s": 2},
        {"mode": "burst"},
    ]


def test_the_command_prints_the_contracts_document_and_writes_its_files(tmp_path: Path) -> None:
    """`--json` is one document with the contract's keys; `--out` has rows, scatter plot and curves."""
    table = as_predicted(tmp_path / "own.csv", LOADS)
    answer = CliRunner().invoke(app, ["validate", str(table), "--json", "--out", str(tmp_path / "out")])
    document = json.loads(answer.stdout)
    assert set(document) >= {"rows", "summary", "skipped", "parameters"}
    assert set(document["rows"][0]) >= {"id", "setup", "metric", "measured", "predicted", "error_pct"}
    assert set(document["summary"]["tpot_ms"]) == {"median_abs_pct", "p90_abs_pct", "bias_pct", "n", "setups"}
    assert document["parameters"]["count"] >= 1
    assert document["parameters"]["per_row"] == 0
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["rows.csv", "scatter.png", "series-1.png", "validate.json"]
