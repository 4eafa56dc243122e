"""`kneesim calibrate server`: a simulated server, measured as a real one, gives its constants away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import result_documents as documents
import yaml

import sim
from sim.calibration.constants import Constants, constants_of
from sim.calibration.measured_load import MeasuredLoad
from sim.calibration.result_files import read_result_file, read_result_files
from sim.calibration.served import calibrate, observed, served
from sim.calibration.server_answer import ServerCalibration, calibrate_server
from sim.cli.main import app
from sim.faults import InputFault
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import simulate

SCENARIO = {
    "hardware": "h100-80gb-sxm",
    "model": "llama-3.1-8b",
    "workload": {"lengths": {"kind": "lognormal", "prompt_mean": 800, "output_mean": 120, "cv": 0.3}},
    "load": {"concurrency": 1},
}
TRUTH = Constants(2e-3, 40e-6, 25e-3, overlapped=False)
LOADS = ((1, 8), (12, 48), (64, 160))  # users, requests


def server(users: int = 1, requests: int = 8) -> Scenario:
    """The scenario as its user believes it to be."""
    return sim.load(
        {**SCENARIO, "load": {"concurrency": users}, "run": {"requests": requests, "warmup": 0.0}}
    )


def answers(users: int, requests: int, seed: int = 3, noise: float = 0.02) -> documents.Answers:
    """What the true server answers, with noise."""
    true = TRUTH.applied(server(users, requests).replace({"run.seed": seed}))
    return documents.Answers(Result(simulate(true)), seed=users, noise=noise)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three loads by three tools; one lists its requests."""
    folder = tmp_path_factory.mktemp("results")
    one, some, many = (answers(users, requests) for users, requests in LOADS)
    return [
        documents.write(folder / "one.json", documents.vllm(one, detailed=True)),
        documents.write(folder / "some.jsonl", documents.sglang(some)),
        documents.write(folder / "many.json", documents.guidellm(many)),
    ]


@pytest.fixture(scope="module")
def answer(results: Sequence[Path]) -> ServerCalibration:
    return calibrate_server(read_result_files(results), server(), overlapped=False)


def test_three_loads_give_the_host_s_times_away(answer: ServerCalibration) -> None:
    """They are inside their intervals, and what has no share in what was measured is named."""
    by_key = {constant["key"]: constant for constant in answer.constants()}
    for name, key in (("host_step_s", "host_step_s"), ("front_end_s", "front_end_latency_s")):
        low, high = by_key[f"engine.{key}"]["interval"]
        assert low <= TRUTH.as_dict()[name] <= high
    assert by_key["engine.host_sequence_s"]["identified"]
    link = by_key["hardware.efficiency.link"]
    assert (link["identified"], link["loads_for_half_the_interval"]) == (False, None)
    assert "several GPUs" in link["would_show_it"]


def test_a_fourth_load_is_foretold_within_a_few_percent(answer: ServerCalibration) -> None:
    """Twice the users of the largest load measured: 4 %, which the scenario misses by more than 15 %."""
    there = answers(128, 256, seed=8, noise=0.0)
    scenario = server(128, 256)
    for constants, least, most in ((answer.fit.constants(answer.card), 0.0, 0.04), (None, 0.15, 1.0)):
        guess = Result(simulate(constants.applied(scenario) if constants else scenario))
        error = guess.summary()["makespan"]["output_throughput"] / there.rates()["output"] - 1.0
        assert least <= abs(error) <= most


def test_the_files_say_what_was_found(answer: ServerCalibration, tmp_path: Path) -> None:
    """An engine file with intervals, and a card over its profile: a scenario that names them has both."""
    engine, card = tmp_path / "engine.yaml", tmp_path / "card.yaml"
    engine.write_text(yaml.safe_dump(answer.engine_file()))
    card.write_text(yaml.safe_dump(answer.hardware_patch()))
    mine = sim.load({**SCENARIO, "engine": str(engine), "hardware": str(card)})
    found, wanted = constants_of(mine), answer.fit.constants(answer.card)
    for name, value in wanted.as_dict().items():
        assert found.as_dict()[name] == pytest.approx(value, rel=1e-3)
    assert found.overlapped == wanted.overlapped
    origin = mine.engine["provenance"]["host_sequence_s"]
    assert (origin["kind"], origin["points"], len(origin["interval"])) == ("measured", 3, 2)


def test_a_card_s_file_may_lie_over_another(tmp_path: Path) -> None:
    """What it says goes before what is below it; one that leads back to itself is refused."""
    (tmp_path / "one.yaml").write_text("base: h100-80gb-sxm\nefficiency: {compute: 0.9, link: 0.8}\n")
    (tmp_path / "two.yaml").write_text("base: one.yaml\nefficiency: {compute: 0.7}\n")
    top = sim.load({**SCENARIO, "hardware": str(tmp_path / "two.yaml")}, ["hardware.power_w=600"])
    assert top.hardware["efficiency"] == {"compute": 0.7, "link": 0.8}
    assert (top.hardware["name"], top.hardware["power_w"]) == ("h100-80gb-sxm", 600)
    (tmp_path / "loop.yaml").write_text("base: loop.yaml\n")
    with pytest.raises(InputFault, match=r"loop.yaml:1: base must not lead back to this file"):
        sim.load({**SCENARIO, "hardware": str(tmp_path / "loop.yaml")})


def test_what_is_found_to_be_as_it_was_is_in_the_file_too(answer: ServerCalibration) -> None:
    """Then it is measured, not a default."""
    unmoved = replace(answer, fit=replace(answer.fit, u=answer.fit.space.start)).engine_file()
    assert unmoved["host_sequence_s"] == pytest.approx(server().engine["host_sequence_s"])
    assert unmoved["provenance"]["host_sequence_s"]["kind"] == "measured"
    assert "eager_layer_s" not in unmoved


def test_the_command_tells_of_it_and_writes_them(
    results: Sequence[Path], tmp_path: Path, capsys: Any
) -> None:
    """One JSON document; with --out and --card, two files that a scenario can name."""
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(SCENARIO))
    files = ["--out", str(tmp_path / "e.yaml"), "--card", str(tmp_path / "c.yaml")]
    names = [str(path) for path in results[:2]]
    arguments = ["calibrate", "server", *names, "engine.block_size=32", "--scenario", str(scenario), *files]
    app([*arguments, "--added", "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert [load["load"] for load in document["loads"]] == ["1 users", "12 users"]
    assert document["loads"][0]["lengths"] == "of each request"
    sim.load({**SCENARIO, "engine": str(tmp_path / "e.yaml"), "hardware": str(tmp_path / "c.yaml")})


def test_the_text_names_constants_and_what_would_show_the_others(answer: ServerCalibration) -> None:
    """Values, intervals, and measured against predicted before and after."""
    from sim.report.calibration_text import server_text

    text = server_text(answer.as_dict())
    assert "Host times are added to the GPU's, unlike in the scenario" in text
    assert "host time of a sequence and iteration" in text
    assert "not identified by these loads; what would show them" in text
    assert "64 users  output tokens/s" in text


def test_the_text_has_the_values_of_the_files(answer: ServerCalibration) -> None:
    """A constant that is not identified is told as kept only if it is: the others may have moved it."""
    from sim.report.calibration_text import server_text

    document = answer.as_dict()
    lost = next(one for one in document["constants"] if not one["identified"])
    for value, words in ((lost["start"], "kept at"), (2.0 * lost["start"] + 1.0, "moved by the others from")):
        document["constants"] = [{**lost, "value": value}]
        assert f"{lost['key']}, {words} " in server_text(document)


def _load(**changes: Any) -> MeasuredLoad:
    plain = MeasuredLoad(
        "r.json", "a tool", "concurrency", 4.0, 40, 0, 10.0, 800.0, 120.0, {"ttft_mean_s": 0.1}
    )
    return replace(plain, **changes)


def test_lengths_without_a_list_are_the_workload_s_scaled_to_the_file_s_means() -> None:
    """The shape is the scenario's, the mean the file's."""
    one = served(_load(prompt_tokens_mean=400.0, output_tokens_mean=240.0), server())
    assert one.requests.prompt_tokens.mean() == pytest.approx(400.0, rel=0.01)
    assert one.requests.output_tokens.mean() == pytest.approx(240.0, rel=0.01)
    assert one.requests.prompt_tokens.std() > 50.0
    assert len(one.requests) == 40


def test_the_load_is_the_file_s(results: Sequence[Path]) -> None:
    """Users, rates with their times, and bursts; the lengths of a list as they were sent."""
    (detailed,) = read_result_file(results[0])
    one = served(detailed, server())
    assert detailed.sent is not None
    assert one.requests.output_tokens.tolist() == detailed.sent.output_tokens.tolist()
    assert one.scenario.load["concurrency"] == 1
    rated = served(_load(kind="rate", value=3.0, arrivals="constant"), server())
    gaps_s = rated.requests.arrival_s[1:] - rated.requests.arrival_s[:-1]
    assert gaps_s.tolist() == pytest.approx([1 / 3] * 39)
    assert served(_load(kind="burst", value=None), server()).requests.arrival_s.tolist() == [0.0] * 40


def test_so_many_loads_halve_an_interval_and_one_less_does_not(answer: ServerCalibration) -> None:
    """What a constant's document says of how many it would need, where any number would do."""
    fit, loads = answer.fit, len(answer.served)
    key_of = [coordinate.kind.key for coordinate in fit.space.coordinates]
    told = {
        key_of.index(constant["key"]): wanted
        for constant in answer.constants()
        if (wanted := constant["loads_for_half_the_interval"])
    }
    assert told
    for index, wanted in told.items():
        half = fit.sd_u(index) / 2
        assert fit.sd_u(index, wanted / loads) <= half < fit.sd_u(index, (wanted - 1) / loads)


def test_each_latency_is_fitted_once() -> None:
    """Its mean, else its median; ITL only where there is no TPOT; an open loop's throughput is its rate."""
    told = {"ttft_p50_s": 0.1, "ttft_mean_s": 0.2, "e2e_p50_s": 3.0, "e2e_p99_s": 9.0, "itl_mean_s": 0.02}
    closed = observed(_load(metrics={**told, "itl_p50_s": 0.01, "output_throughput": 50.0}))
    assert closed == {"ttft_mean_s": 0.2, "itl_mean_s": 0.02, "e2e_p50_s": 3.0, "output_throughput": 50.0}
    paced = observed(_load(kind="rate", metrics={**told, "tpot_mean_s": 0.03, "output_throughput": 50.0}))
    assert paced == {"ttft_mean_s": 0.2, "tpot_mean_s": 0.03, "e2e_p50_s": 3.0}


def test_what_cannot_be_calibrated_is_said() -> None:
    """Too long requests, shared tokens that cannot be scaled, nothing to fit: all in one go."""
    sharing = server().replace({"workload.prefixes": {"kind": "groups", "groups": 2, "tokens": 50}})
    with pytest.raises(InputFault, match="requests that share tokens cannot be scaled"):
        served(_load(prompt_tokens_mean=400.0), sharing)
    short = server().replace({"engine.max_model_len": 600})
    with pytest.raises(InputFault, match=r"is longer than engine.max_model_len 600"):
        served(_load(), short)
    nothing = _load(metrics={"ttft_p99_s": 0.2})
    with pytest.raises(InputFault) as refused:
        calibrate([nothing, _load(prompt_tokens_mean=1e6)], server())
    assert "has no metric to fit" in refused.value.faults[0]
    assert "max_model_len" in refused.value.faults[1]


def test_no_result_file_is_a_sentence(tmp_path: Path) -> None:
    """Changes alone are no measurement."""
    with pytest.raises(InputFault, match="no result file is given"):
        app(["calibrate", "server", "run.seed=3", "--scenario", "chat-8b-a100"], standalone_mode=False)
