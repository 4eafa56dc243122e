"""Profiles from traces: parameters that were put in come out, and what is drawn is like the trace."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support import Called

from sim.faults import InputFault
from sim.workload import generate, read_trace
from sim.workload.dispersion import dispersion
from sim.workload.fitting import fit_trace
from sim.workload.fitting.arrivals import fit_arrivals, spread_over_grid
from sim.workload.fitting.cascade import Cascade
from sim.workload.fitting.drift import fit_drift
from sim.workload.fitting.lengths import LEAST_IN_CELL, fit_lengths, fit_quantile_table, table_distance
from sim.workload.fitting.sharing import fit_sharing, uses_of
from sim.workload.portrait import Portrait, distance

SHARED = Path(__file__).parents[1].parent / "shared" / "data" / "traces"
FIXED = {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 10}
SURE = 3.291


def times(
    arrivals: dict[str, Any], requests: int = 8000, rate_per_s: float = 4.0, seed: int = 1
) -> np.ndarray:
    """Arrivals of a process, from 0 on."""
    sent = generate({"arrivals": arrivals, "lengths": FIXED}, {"rate_per_s": rate_per_s},
                    {"requests": requests, "seed": seed}).arrival_s  # fmt: skip
    return sent - sent[0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_poisson_arrivals_are_found_to_be(seed: int) -> None:
    """A Poisson process comes out as one, whatever the seed."""
    assert fit_arrivals(times({"kind": "poisson"}, seed=seed)).keys == {"kind": "poisson"}


def test_even_arrivals_are_found_to_be() -> None:
    """So do equal gaps."""
    assert fit_arrivals(times({"kind": "constant"}, 200)).keys == {"kind": "constant"}


@pytest.mark.parametrize("shape", [0.25, 0.6, 3.0])
def test_gamma_arrivals_keep_their_burstiness(shape: float) -> None:
    """Within the estimator's own error: its variance is shape / (n (shape psi'(shape) - 1)), at 99.9 %."""
    from scipy.special import polygamma

    keys = fit_arrivals(times({"kind": "gamma", "burstiness": shape})).keys
    error = math.sqrt(shape / (8000 * (shape * float(polygamma(1, shape)) - 1)))
    assert keys["kind"] == "gamma"
    assert keys["burstiness"] == pytest.approx(shape, abs=SURE * error + 1e-3 * shape)


def test_on_and_off_keep_their_stays() -> None:
    """Within what as many stays tell of their means, at 99.9 % (twice over, since stays are not seen)."""
    sent = times({"kind": "on_off", "on_s": 8, "off_s": 22}, 12_000)
    keys = fit_arrivals(sent).keys
    stays = sent[-1] / 30
    assert keys["kind"] == "on_off"
    for name, mean_s in (("on_s", 8), ("off_s", 22)):
        assert keys[name] == pytest.approx(mean_s, rel=2 * SURE / math.sqrt(stays))


def test_a_changing_rate_keeps_its_levels_and_stays() -> None:
    """Of two states that differ fivefold: shares of the time and rates as they were, by as many stays."""
    keys = fit_arrivals(times({"kind": "mmpp", "rates": [1, 5], "sojourn_s": [30, 20]}, 20_000)).keys
    stays = 20_000 / 4 / 50
    assert keys["kind"] == "mmpp"
    assert len(keys["rates"]) == 2
    assert max(keys["rates"]) / min(keys["rates"]) == pytest.approx(5, rel=2 * SURE / math.sqrt(stays))
    for found, true in zip(sorted(keys["sojourn_s"]), (20, 30), strict=True):
        assert found == pytest.approx(true, rel=2 * SURE / math.sqrt(stays))


def test_a_cascade_has_the_dispersion_and_the_silence_that_it_says() -> None:
    """What is computed is what is drawn: means over seeds, within their own errors at 99.9 %."""
    cascade = Cascade(np.array([0.3, 0.6]), np.array([0.1, 0.4]), np.array([2.0, 20.0]))
    drawn = [dispersion(sent, sent[-1]) for sent in (times(cascade.arrivals(), seed=s) for s in range(1, 25))]
    span_s = 8000 / 4
    index = cascade.index(4.0, drawn[0], span_s)
    quiet = cascade.quiet(4.0, drawn[0].windows_s)
    for column, expected in (("index", index), ("quiet", quiet)):
        shown = np.array([getattr(one, column)[:7] for one in drawn])
        error = shown.std(axis=0, ddof=1) / math.sqrt(len(drawn))
        assert (
            np.abs(shown.mean(axis=0) - expected[:7]) < 1.3 * SURE * error + 0.01 * expected[:7] + 1e-3
        ).all()


def test_the_recorded_curve_is_kept_on_demand() -> None:
    """With drift, a rate that doubles half-way is a curve that doubles; without, states."""
    ramp = {"times_s": [0, 1000], "rates": [1, 2], "interpolation": "step"}
    sent = times({"kind": "poisson", "series": {**ramp, "times_s": [0, 1333.0]}}, 8000)
    rates = fit_drift(sent).keys["arrivals"]["series"]["rates"]
    assert rates[-2] / rates[0] == pytest.approx(2, rel=0.25)
    assert "series" not in fit_arrivals(sent).keys


def test_a_mix_that_moves_is_kept_by_kinds() -> None:
    """Long prompts come in the second half alone: with drift they do so when drawn, and are as long."""
    rng = np.random.default_rng(3)
    sent = np.sort(rng.random(6000)) * 1200
    late = (sent > 600) & (rng.random(6000) < 0.3)
    prompts = np.where(late, rng.integers(3900, 4100, 6000), rng.integers(90, 110, 6000))
    keys = fit_drift(sent - sent[0], prompts, rng.integers(50, 60, 6000)).keys
    drawn = generate(keys, {"rate_per_s": 5.0}, {"requests": 6000, "seed": 1})
    half = drawn.arrival_s < 600
    long = drawn.prompt_tokens > 2000
    share = long[~half].mean()
    assert long[half].mean() < 0.01
    assert abs(share - late[sent > 600].mean()) < 3 * np.sqrt(2 * share * (1 - share) / 3000)
    assert np.corrcoef(drawn.prompt_tokens, np.arange(6000))[0, 1] == pytest.approx(
        np.corrcoef(prompts, np.arange(6000))[0, 1], abs=0.05
    )


def test_shared_prompts_do_not_drift(kneesim: Called, tmp_path: Path) -> None:
    """Classes share nothing, so a trace with hash_ids is refused with --drift: place and way out."""
    rows = [
        {"timestamp": 1000 * i, "input_length": 600, "output_length": 5, "hash_ids": [0, i + 1]}
        for i in range(80)
    ]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    status, _, err = kneesim(
        "workload", "fit", str(tmp_path / "chat.jsonl"), "--drift", "--out", str(tmp_path / "x.yaml")
    )
    assert status == 2
    assert "chat.jsonl: --drift does not go with prompts that share tokens (hash_ids)" in err
    assert not (tmp_path / "x.yaml").exists()


def test_times_on_a_grid_are_spread_over_it() -> None:
    """A grid of 3 s is found, and what was Poisson before rounding is so again; fine times stay."""
    fine = times({"kind": "poisson"})
    spread, step_s = spread_over_grid(np.floor(fine / 3) * 3)
    assert step_s == 3
    assert fit_arrivals(spread).keys == {"kind": "poisson"}
    assert spread_over_grid(fine)[1] == 0


def test_lengths_that_hang_together_by_rank_do_so_again() -> None:
    """A copula is told by its rank correlation; independent lengths have none."""
    lengths = {"kind": "lognormal", "prompt_mean": 800, "output_mean": 200, "cv": 1.0}
    for correlation in (0.0, -0.4):
        drawn = generate(
            {"lengths": {**lengths, "correlation": correlation}}, {"rate_per_s": 1}, {"requests": 6000}
        )
        keys = fit_lengths(drawn.prompt_tokens, drawn.output_tokens).keys
        assert keys["kind"] == "table"
        assert keys.get("correlation", 0) == pytest.approx(correlation, abs=SURE / math.sqrt(6000))


def test_lengths_that_a_copula_cannot_tell_are_told_by_cells() -> None:
    """Linear and rank correlation of opposite signs both come back; no cell is of few requests."""
    rng = np.random.default_rng(1)
    prompt = rng.integers(100, 2000, 6000)
    output = np.where(prompt > 1800, 20, 100 + prompt // 20 + rng.integers(0, 60, 6000))
    keys = fit_lengths(prompt, output).keys
    assert keys["kind"] == "joint"
    drawn = Portrait.of(generate({"lengths": keys}, {"rate_per_s": 1}, {"requests": 6000}))
    own = Portrait(None, prompt, output)
    for name, value in own.correlation().items():
        assert drawn.correlation()[name] == pytest.approx(value, abs=0.05)
    counts, *_ = np.histogram2d(prompt, output, bins=[keys["prompt_edges"], keys["output_edges"]])
    few = (counts > 0) & (counts < LEAST_IN_CELL)
    assert few.any()
    assert not np.isclose(np.array(keys["cells"])[few] * 6000, counts[few], atol=1e-3).all()


def test_few_requests_are_not_told_by_cells() -> None:
    """Sixty requests fill no table of both sides: each side stays as near as a table of its own is."""
    prompt = np.array([300, 600, 640, 1000, *(500 + 5 * row // 2 for row in range(56))])
    output = np.array([200, 300, 400, 1000, *(275 + 5 * row // 2 for row in range(56))])
    keys = fit_lengths(prompt, output).keys
    drawn = generate({"lengths": keys}, {"rate_per_s": 1}, {"requests": 6000})
    sides = (("prompt", prompt, drawn.prompt_tokens), ("output", output, drawn.output_tokens))
    for side, recorded, tokens in sides:
        own = table_distance(*fit_quantile_table(recorded, len(recorded) // LEAST_IN_CELL), recorded)
        assert distance(tokens, recorded) < own + SURE / math.sqrt(4 * 6000), side


def rows_of() -> list[dict[str, Any]]:
    """A small trace in JSON lines: sixty turns of twenty users, of blocks of 16 tokens."""
    rows = []
    for turn in range(60):
        user, said = turn % 20, turn // 20 + 1
        ids = [1000 * user + block for block in range(2 * said)]
        lengths = {"input_length": 32 * said, "output_length": 5 + user}
        rows.append({"timestamp": 1000 * turn + 7 * user, **lengths, "hash_ids": ids})
    return rows


def test_what_was_seen_before_and_when(tmp_path: Path) -> None:
    """Second turns have 32 of 64 tokens from 20 s before, third ones 64 of 96."""
    path = tmp_path / "turns.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows_of()), encoding="utf-8")
    trace = read_trace(path)
    assert trace.chains is not None
    assert trace.arrival_ns is not None
    uses = uses_of(trace.chains, trace.prompt_tokens, trace.arrival_ns / 1e9, 16)
    assert np.unique(uses.tokens[20:40]).tolist() == [32]
    assert np.unique(uses.tokens[40:]).tolist() == [64]
    assert uses.age_s[20:] == pytest.approx(20)
    keys = fit_sharing(trace.chains, trace.prompt_tokens, trace.arrival_ns / 1e9, 16).keys
    assert keys["age"]["seconds"] == pytest.approx([20] * 11)


def csv(rows: int, gap_s: float = 1.0, times: bool = True) -> str:
    rng = np.random.default_rng(1)
    lines = ["arrival_s,prompt_tokens,output_tokens" if times else "prompt_tokens,output_tokens"]
    for row in range(rows):
        lengths = f"{rng.integers(10, 900)},{rng.integers(1, 90)}"
        lines.append(f"{row * gap_s:.3f},{lengths}" if times else lengths)
    return "\n".join(lines)


def test_from_a_trace_to_a_workload_that_runs(kneesim: Called, tmp_path: Path) -> None:
    """The file is a workload that can be shown; a page without links and a picture lie beside it."""
    (tmp_path / "mine.csv").write_text(csv(80), encoding="utf-8")
    out = tmp_path / "mine.yaml"
    status, said, _ = kneesim("workload", "fit", str(tmp_path / "mine.csv"), "--out", str(out))
    assert (status, "constant" in said) == (0, True)
    profile = yaml.safe_load(out.read_text(encoding="utf-8"))
    assert profile["arrivals"] == {"kind": "constant"}
    assert {"arrivals", "lengths.prompt", "lengths.output"} <= set(profile["provenance"])
    page = (tmp_path / "mine.html").read_text(encoding="utf-8")
    assert "Burstiness by window" in page
    assert "http" not in page.replace("http-equiv", "")
    assert (tmp_path / "mine.png").stat().st_size > 10_000
    status, shown, _ = kneesim("workload", "show", str(out), "--json")
    assert status == 0
    assert json.loads(shown)["lengths"]["prompt_tokens"]["p50"] > 10


def test_a_trace_is_shown_at_its_own_times(kneesim: Called, tmp_path: Path) -> None:
    """Two requests a second are two a second; pictures go where they are asked for."""
    (tmp_path / "mine.csv").write_text(csv(60, 0.5), encoding="utf-8")
    arguments = (
        "workload",
        "show",
        str(tmp_path / "mine.csv"),
        "--json",
        "--out",
        str(tmp_path / "pictures"),
    )
    status, shown, _ = kneesim(*arguments)
    assert status == 0
    assert json.loads(shown)["span_s"] == 29.5
    assert {file.name for file in (tmp_path / "pictures").iterdir()} == {"workload.html", "workload.png"}


def test_a_mix_of_classes_is_shown(kneesim: Called) -> None:
    """Each class has its own lengths; users who wait for their answers are no burst at the start. A change
    on the command line is one of the workload's keys."""
    status, shown, _ = kneesim("workload", "show", "interactive-plus-batch", "--requests", "200", "--json")
    told = json.loads(shown)
    assert (status, [*told["classes"]], told["requests"]) == (0, ["chat", "batch"], 400)
    assert (told["sent_upon_answers"], told["rate_per_s"]) == (200, pytest.approx(200 / told["span_s"]))
    assert max(told["arrivals"]["index_of_dispersion"]) < 20
    capped = ("workload", "show", "azure-2023-conv", "lengths.max_output_tokens=100", "--json")
    status, shown, _ = kneesim(*capped)
    assert (status, json.loads(shown)["lengths"]["output_tokens"]["max"]) == (0, 100)


def test_a_log_of_times_alone_has_the_lengths_of_another_workload(kneesim: Called, tmp_path: Path) -> None:
    """Arrivals are the log's, lengths those that are named; without a name the lack is told."""
    line = '10.0.0.1 - - [10/Oct/2023:13:%02d:%02d +0000] "POST /v1/chat HTTP/1.1" 200 2326'
    log = tmp_path / "access.log"
    log.write_text("\n".join(line % divmod(at, 60) for at in range(90)), encoding="utf-8")
    out = tmp_path / "mine.yaml"
    status, _, said = kneesim("workload", "fit", str(log), "--out", str(out))
    assert (status, "no column for the prompt tokens" in said) == (2, True)
    status, said, _ = kneesim("workload", "fit", str(log), "--out", str(out), "--lengths", "fixed-1024-1024")
    profile = yaml.safe_load(out.read_text(encoding="utf-8"))
    assert status == 0
    assert "times alone" in said
    assert profile["arrivals"] == {"kind": "constant"}
    assert profile["lengths"]["prompt_tokens"] == 1024
    assert profile["provenance"]["lengths"]["kind"] == "estimated"


PATTERN = r"trace.pattern=(?P<arrival>\d+) (?P<prompt_bytes>\d+) (?P<output_bytes>\d+)"


def test_what_a_log_does_not_tell_is_said_on_the_command_line(kneesim: Called, tmp_path: Path) -> None:
    """Pattern, unit and bytes a token make a profile and a portrait of a log put by; so does a file that has
    them; what is wrong of them is told."""
    log, out = tmp_path / "gate.log.1", tmp_path / "mine.yaml"
    log.write_text("".join(f"{at * 1000} 400 {40 + 4 * (at % 9)}\n" for at in range(90)), encoding="utf-8")
    told = (PATTERN, "trace.time_unit=ms", "trace.bytes_per_token=4")
    status, shown, _ = kneesim("workload", "show", str(log), *told, "--json")
    assert (status, json.loads(shown)["span_s"]) == (0, 89.0)
    assert kneesim("workload", "fit", str(log), *told, "--out", str(out))[0] == 0
    profile = yaml.safe_load(out.read_text(encoding="utf-8"))
    assert profile["lengths"]["prompt"]["tokens"] == [99.5, 100.5]
    trace = {"kind": "trace", "path": log.name}
    reading = {"pattern": PATTERN.partition("=")[2], "time_unit": "ms", "bytes_per_token": 4}
    written = {"arrivals": trace, "lengths": trace, "trace": reading}
    (tmp_path / "log.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    again = tmp_path / "again.yaml"
    assert kneesim("workload", "fit", str(tmp_path / "log.yaml"), "--out", str(again))[0] == 0
    assert yaml.safe_load(again.read_text(encoding="utf-8"))["lengths"] == profile["lengths"]
    status, _, said = kneesim("workload", "fit", str(log), "trace.patern=x", "--out", str(out))
    assert (status, "did you mean pattern?" in said) == (2, True)
    status, _, said = kneesim("workload", "fit", str(out), "--out", str(again))
    assert (status, "is made of a trace; its arrivals are constant" in said) == (2, True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (csv(20), "a fit needs at least 50 requests (got 20)"),
        (csv(1), "a fit needs at least 50 requests (got 1)"),
        (csv(60, 0.0), "all requests arrive at one time"),
        (csv(60, times=False), "no column for the arrival times"),
    ],
    ids=["short", "one row", "one time", "no times"],
)
def test_what_cannot_be_fitted_is_told(kneesim: Called, tmp_path: Path, content: str, words: str) -> None:
    """In a sentence, with exit status 2, and nothing is written."""
    (tmp_path / "mine.csv").write_text(content, encoding="utf-8")
    status, _, said = kneesim(
        "workload", "fit", str(tmp_path / "mine.csv"), "--out", str(tmp_path / "x.yaml")
    )
    assert status == 2
    assert words in said
    assert not (tmp_path / "x.yaml").exists()


def test_lengths_that_never_change_can_be_fitted(tmp_path: Path) -> None:
    """A trace of one length has a profile of one length, and no correlation to speak of."""
    rows = "\n".join(f"{row * 1.0},100,7" for row in range(60))
    (tmp_path / "one.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    fitted = fit_trace(read_trace(tmp_path / "one.csv"), "one")
    assert all((run.prompt_tokens == 100).all() and (run.output_tokens == 7).all() for run in fitted.drawn)
    assert fitted.recorded.correlation() == {"linear": None, "rank": None}


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    """A half is below everything else: a distance of a half; none to itself."""
    one = np.array([1, 2, 3, 4])
    assert distance(one, np.array([1, 2, 9, 9])) == 0.5
    assert distance(one, one) == 0


TRACES = {
    "code": "azure2023/AzureLLMInferenceTrace_code.csv",
    "conv": "azure2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake": "mooncake/conversation_trace.jsonl.gz",
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded traces are not here")
@pytest.mark.parametrize("name", TRACES)
def test_profiles_are_like_public_traces(name: str) -> None:
    """Lengths within 0.05, dispersion in 1, 10 and 60 s within 25 %, correlations within 0.05, and what a
    cache finds within 3 points: means over five seeds of runs as long as the trace."""
    fitted = fit_trace(read_trace(SHARED / TRACES[name]), name)
    for quantity, both in fitted.differences.items():
        recorded, drawn = both["recorded"], both["drawn"]
        assert recorded is not None
        assert drawn is not None
        if "correlation" in quantity or "distance" in quantity:
            assert abs(drawn - recorded) < 0.05
        elif quantity in ("dispersion in 1 s", "dispersion in 10 s", "dispersion in 60 s"):
            assert drawn == pytest.approx(recorded, rel=0.25)
        elif "hit ratio" in quantity:
            assert drawn == pytest.approx(recorded, abs=0.03)


def test_too_few_requests_have_no_profile() -> None:
    """The least number is in the sentence."""
    from sim.workload.fitting.arrivals import require_arrivals

    with pytest.raises(InputFault, match="at least 50"):
        require_arrivals(np.arange(49.0), "x.csv")
