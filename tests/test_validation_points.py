"""Reading measured points: blanks are unknown, a row at fault is named with the reason, a file is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from validation_tables import CLOSED, write_table

from sim.faults import InputFault
from sim.validation.flags import read_flags
from sim.validation.lengths import capped_mean, lengths_of, mean_output_tokens
from sim.validation.points import Point, read_points
from sim.validation.predict import Predictor, cases_of
from sim.validation.setups import setup_of
from sim.workload.lengths import draw_lengths


def only(tmp_path: Path, **changes: object) -> Point:
    """The one point of a table: eight users, with *changes*."""
    (point,) = read_points(write_table(tmp_path / "points.csv", [{**CLOSED, "out_tok_s": 9, **changes}])).rows
    return point


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"out_tok_s": "nan"}, "out_tok_s must be more than 0 (got nan)"),
        ({"tpot_mean_ms": "12ms"}, "tpot_mean_ms must be a number (got 12ms)"),
        ({"tp": 1.5}, "tp must be whole (got 1.5)"),
        ({"load_value": ""}, "load_value must be more than 0 for concurrency"),
        ({"load_kind": "ramp"}, "load_kind must be one of concurrency, rate, offline (got ramp)"),
        ({"gpu": ""}, "gpu is blank"),
        ({"ttft_mean_ms": 0.1, "tpot_mean_ms": 0.01, "e2e_mean_ms": 800}, "is not in milliseconds"),
    ],
)
def test_a_row_at_fault_is_named_and_costs_no_other(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    """NaN, words, halves, missing loads and units that contradict each other."""
    rows = [{**CLOSED, "out_tok_s": 9}, {**CLOSED, "out_tok_s": 9, **changes}]
    points = read_points(write_table(tmp_path / "points.csv", rows))
    assert [point.id for point in points.rows] == ["r0"]
    assert said in points.unreadable["r1"]
    assert points.unreadable["r1"].startswith("line 3: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"id,gpu,modell,engine,load_kind,out_tok_s\n", "column model is missing; did you mean modell?"),
        (b"id,gpu,model,engine,load_kind\n", "there is no measured column"),
        (b"\xff\xfe", "must be a whole CSV file in UTF-8"),
        (b"\x1f\x8b\x08\x00", "must be a whole CSV file in UTF-8"),
        (b'id,gpu,model,engine,load_kind,out_tok_s\nr0,"H100', "the file must be whole CSV"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """Empty, truncated, another encoding, without the columns: a sentence with the file's name."""
    path = tmp_path / "points.csv"
    path.write_bytes(content)
    with pytest.raises(InputFault, match=r"points\.csv") as fault:
        read_points(path)
    assert said in str(fault.value)


def test_rows_with_one_id_are_told_apart(tmp_path: Path) -> None:
    """The second of two equal ids is named with its line."""
    rows = [{**CLOSED, "id": "twin", "out_tok_s": 9}] * 2
    points = read_points(write_table(tmp_path / "points.csv", rows))
    assert len(points.rows) == 1
    assert points.unreadable == {"twin (line 3)": "line 3: id twin is there already"}


def test_a_blank_output_length_comes_from_notes_then_from_kin(tmp_path: Path) -> None:
    """`derived output tokens/request` fills its own row, and the mean of those the rows of the same kind."""
    base = {**CLOSED, "osl_mean": "", "osl_dist": "natural EOS, capped 512", "set": "x", "out_tok_s": 9}
    noted = [{**base, "notes": f"; derived output tokens/request = {n}; grade A"} for n in (340, 360)]
    other = {**base, "set": "y"}
    points = read_points(write_table(tmp_path / "points.csv", [*noted, base, other])).rows
    assert [point.osl_mean for point in points] == [340, 360, 350, None]
    assert all(point.osl_filled for point in points[:3])


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("--max-num-seqs 32 --max-model-len 32000", {"max_num_seqs": 32, "max_model_len": 32000}),
        ("max_num_batched_tokens 2048; prefix caching on; GPU KV cache 412944 tokens",
         {"max_num_batched_tokens": 2048, "enable_prefix_caching": True, "kv_cache_tokens": 412944}),
        ("available KV cache memory 9.70 GiB", {"kv_cache_memory_bytes": int(9.7 * 2**30)}),
        ("gpu_memory_utilization 0.5, --disable-cuda-graph",
         {"gpu_memory_utilization": 0.5, "cuda_graphs": False}),
        ("kv frac 0.99, chunked context", {"kv_free_fraction": 0.99, "enable_chunked_prefill": True}),
        ("engine flags not checked", {}),
    ],
)  # fmt: skip
def test_flags_are_read_as_people_write_them(text: str, settings: dict[str, object]) -> None:
    """Flags, keys and lines of start-up logs name the same settings."""
    assert read_flags(text) == settings


def test_a_cap_is_part_of_the_mean(tmp_path: Path) -> None:
    """Capped answers have the mean that the row gives; so have capped prompts."""
    said = {"isl_mean": 217, "isl_dist": "ShareGPT", "osl_mean": 350, "osl_dist": "natural EOS, capped 512"}
    point = only(tmp_path, **said)
    lengths = lengths_of(point, False)
    assert isinstance(lengths, dict)
    prompts, outputs, _ = draw_lengths({"lengths": lengths}, 200_000, seed=1)
    assert outputs.max() == 512
    assert prompts.max() <= 1024
    assert mean_output_tokens(lengths) == pytest.approx(350, rel=1e-6)
    assert outputs.mean() == pytest.approx(350, abs=5 * outputs.std() / np.sqrt(len(outputs)) + 0.5)
    assert prompts.mean() == pytest.approx(217, abs=5 * prompts.std() / np.sqrt(len(prompts)) + 0.5)


def test_without_a_cap_the_mean_is_the_lognormals() -> None:
    """exp(mu + s^2 / 2), approached from below as the cap rises."""
    whole = np.exp(5 + 0.5)
    assert capped_mean(5.0, 1.0, np.inf) == pytest.approx(whole)
    assert capped_mean(5.0, 1.0, 100.0) < capped_mean(5.0, 1.0, 1e4) < whole


def test_replicas_share_the_load_and_their_throughput_adds_up(tmp_path: Path) -> None:
    """Eight GPUs in pairs are four replicas: each gets a quarter of users and requests, four times as many
    tokens come out."""
    pair = only(tmp_path, tp=2, n_gpu=2, load_value=8, n_requests=40)
    all_four = only(tmp_path, tp=2, n_gpu=8, load_value=32, n_requests=160)
    (one, _), (four, _) = cases_of([pair]), cases_of([all_four])
    assert four[0].setup.replicas == 4
    assert four[0].setup.scenario.load == one[0].setup.scenario.load
    predictor = Predictor()
    a, b = predictor(one[0]), predictor(four[0])
    assert b["out_tok_s"] == pytest.approx(4 * a["out_tok_s"])  # type: ignore[index]
    assert b["tpot_mean_ms"] == pytest.approx(a["tpot_mean_ms"])  # type: ignore[index]


def test_what_a_log_says_of_the_cache_is_what_is_simulated(tmp_path: Path) -> None:
    """`GPU KV cache N tokens` and `available KV cache memory X GiB` give the pool, as the engine counts."""
    tokens = setup_of(only(tmp_path, flags="GPU KV cache 41408 tokens; max_model_len 8192"))
    assert tokens.scenario.engine["num_gpu_blocks_override"] == 41408 // 16  # type: ignore[union-attr]
    memory = setup_of(only(tmp_path, flags="available KV cache memory 9.70 GiB"))
    assert memory.scenario.engine["kv_cache_memory_bytes"] == int(9.7 * 2**30)  # type: ignore[union-attr]


def test_a_version_takes_the_newest_engine_file_that_is_not_newer(tmp_path: Path) -> None:
    """0.11.2 is served by the file of 0.11 and 0.13 by that of 0.12; 0.7.3 schedules as V0 did."""

    def preset(version: str) -> tuple[str, bool]:
        engine = setup_of(only(tmp_path, engine_version=version)).scenario.engine  # type: ignore[union-attr]
        return engine["preset"].partition("@")[0], engine["async_scheduling"]

    assert preset("v0.11.2") == preset("0.13.0") == ("vllm-v1", False)
    assert preset("0.7.3") == ("vllm-v0", False)
    assert preset("0.20.1+x") == ("vllm-v1", True)


def test_a_row_without_a_version_has_that_of_its_sets_time(tmp_path: Path) -> None:
    """A row of 2024 is not served by the newest engine; of a set that nobody knows, it is."""
    for group, name in (("mlpv41", "tensorrt-llm-0.11"), ("other", "tensorrt-llm-1.2")):
        point = replace(only(tmp_path, engine="TensorRT-LLM", engine_version=""), set=group)
        assert setup_of(point).scenario.engine["name"] == name  # type: ignore[union-attr]


def test_a_header_alone_is_no_table(tmp_path: Path) -> None:
    """Nothing is validated by nothing: a file without rows is refused."""
    table = write_table(tmp_path / "points.csv", [{**CLOSED, "tpot_mean_ms": 9}])
    table.write_text(table.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    with pytest.raises(InputFault, match="has a header and no row"):
        read_points(table)
