"""Engine files: settings of one version of an engine, under the scenario's own and over the preset's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.cli.catalogue import document_of, lines_of, text_of
from sim.faults import InputFault
from sim.planning.error_bar import FRONT_END, HOST, _engine_error
from sim.report.assumptions import assumptions, estimated
from sim.results import Result
from sim.scenario import Scenario, entry, names
from sim.scenario.engine_keys import engine_settings
from sim.scenario.schema import SCENARIO_KEYS
from sim.simulation import simulate

SETTINGS = engine_settings(SCENARIO_KEYS)
MINE = """\
name: mine-1.0
aliases: [mine]
preset: vllm-v1@0.32
host_step_s: 2ms
host_sequence_s: 1e-5
max_num_seqs: 64
provenance:
  host_step_s: {kind: measured, source: three runs, points: 3, interval: [1.9e-3, 2.1e-3]}
  host_sequence_s: {kind: estimated, source: a guess, relative_sd: 0.5}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE, encoding="utf-8")
    return path


def scenario(engine: Any, *overrides: str) -> Scenario:
    rest = {"hardware": "h100-80gb-sxm", "model": "llama-3.1-8b", "workload": "sharegpt-like"}
    return sim.load({**rest, "engine": engine, "load": {"rate_per_s": 8}}, overrides)


def test_a_setting_is_the_command_lines_then_the_scenarios_then_the_files_then_the_presets(
    mine: Path,
) -> None:
    """And `sources` names who set it."""
    loaded = scenario({"base": str(mine), "max_num_seqs": 32, "block_size": 8}, "engine.block_size=32")
    keys = ("block_size", "max_num_seqs", "host_step_s", "gpu_memory_utilization", "kv_cache_dtype")
    assert {key: (loaded.engine[key], loaded.sources[f"engine.{key}"]) for key in keys} == {
        "block_size": (32, "command line"),
        "max_num_seqs": (32, "scenario"),
        "host_step_s": (0.002, "engine mine-1.0"),
        "gpu_memory_utilization": (0.92, "preset vllm-v1@0.32"),
        "kv_cache_dtype": ("auto", "default"),
    }
    assert loaded.sources["engine"] == "engine mine-1.0"


def test_null_takes_a_setting_of_the_file_away(mine: Path) -> None:
    """The preset's holds again."""
    loaded = scenario({"base": str(mine), "max_num_seqs": None})
    assert loaded.sources["engine.max_num_seqs"] == "preset vllm-v1@0.32"


@pytest.mark.parametrize("way", ["name", "alias", "path", "base", "override"])
def test_an_engine_is_named_like_hardware(way: str, mine: Path) -> None:
    """By name or alias of the catalogue, by path, under `base`, or by an override over a plain name."""
    name = "vllm-0.12"
    alias = entry("engines", name)["aliases"][0]
    named = {"name": name, "alias": alias, "path": str(mine), "base": {"base": name}, "override": name}[way]
    overrides = ["engine.block_size=8"] if way == "override" else []
    loaded = scenario(named, *overrides)
    assert loaded.engine["name"] == ("mine-1.0" if way == "path" else name)
    assert loaded.engine["block_size"] == (8 if way == "override" else 16)


def test_a_resolved_scenario_needs_no_file(mine: Path) -> None:
    """It holds the settings, the name and the origins, and loads to the same."""
    loaded = scenario(str(mine))
    resolved = loaded.resolved()
    mine.unlink()
    assert sim.load(resolved).sha256 == loaded.sha256
    assert sim.load(resolved).engine["provenance"] == loaded.engine["provenance"]


def test_the_file_is_read_once_unless_another_is_named(mine: Path) -> None:
    """A changed setting goes over the file as it was; a changed name reads the other file."""
    loaded = scenario(str(mine))
    mine.unlink()
    changed = loaded.replace({"engine.host_sequence_s": 0.0, "load.rate_per_s": 9})
    assert (changed.engine["host_step_s"], changed.engine["host_sequence_s"]) == (0.002, 0.0)
    assert changed.replace({"engine": names("engines")[0]}).engine["name"] == names("engines")[0]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("host_step_s: 2ms", "host_steps: 2ms", "mine.yaml:4: host_steps is unknown; did you"),
        ("[1.9e-3, 2.1e-3]", "[2.1e-3, 3e-3]", "provenance.host_step_s.interval must be two numbers around"),
        ("[1.9e-3, 2.1e-3]", "[1.9e-3]", "provenance.host_step_s.interval must be two numbers around 0.002"),
        ("host_sequence_s: 1e-5\n", "", "provenance.host_sequence_s is of no setting of this file"),
        ("kind: measured", "kind: datasheet", "must be measured, documented or estimated (got datasheet)"),
        ("points: 3", "relative_sd: 3", "excludes"),
        ("preset: vllm-v1@0.32", "preset: vlm", "engine mine-1.0: engine.preset vlm is unknown"),
        ("max_num_seqs: 64", "batch_wait_s: 1", "engine mine-1.0: engine.batch_wait_s is no setting of"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(
    mine: Path, old: str, new: str, sentence: str
) -> None:
    """What only shows against the preset is told by the file's name."""
    mine.write_text(MINE.replace(old, new), encoding="utf-8")
    with pytest.raises(InputFault, match=re.escape(sentence)):
        scenario(str(mine))


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("vllm-0.1222", "engine vllm-0.1222 is unknown; did you mean vllm-0.12?"),
        ("vllm-v1@0.32", "is a preset; write engine: {preset: vllm-v1@0.32}"),
        ({"base": 5}, "engine.base must be a name or a path (got 5)"),
        ("./nowhere.yaml", "engine ./nowhere.yaml is not there"),
    ],
)
def test_an_unusable_name_is_the_only_fault_told(engine: Any, sentence: str) -> None:
    """Nothing is said of settings that the right file would have."""
    with pytest.raises(InputFault, match=re.escape(sentence)) as caught:
        scenario(engine)
    assert len(caught.value.faults) == 1


# -- what an answer rests on -------------------------------------------------------------------------


def test_estimated_numbers_are_named_in_every_answer(mine: Path) -> None:
    """Until the scenario sets them itself, which is the user's word."""
    loaded = scenario(str(mine), "load.rate_per_s=1", "run.requests=20")
    assert "host sequence s" in estimated(loaded)
    assert (
        "mine-1.0 (measured: host step s; estimated: host sequence s): vllm-v1@0.32"
        in assumptions(loaded, 1)["engine"]
    )
    warnings = Result(simulate(loaded)).summary()["warnings"]
    assert "estimated, not measured, in engine mine-1.0: host_sequence_s" in warnings
    assert "host sequence s" not in estimated(loaded.replace({"engine.host_sequence_s": 1e-6}))


def test_the_knees_error_bar_takes_the_files_intervals(mine: Path) -> None:
    """The worst known of the host's numbers stands for them all; a 90 % interval is 3.29 deviations wide."""
    loaded = scenario(str(mine))
    assert _engine_error(loaded, "host", HOST, "")[0] == 0.5
    measured = loaded.replace({"engine.host_sequence_s": 1e-6})
    assert _engine_error(measured, "host", HOST, "")[0] == pytest.approx(2e-4 / 3.29 / 2e-3, rel=1e-3)
    assert _engine_error(loaded, "front_end", FRONT_END, "published")[0] == FRONT_END


# -- the catalogue -----------------------------------------------------------------------------------


def test_engines_are_listed_with_presets_and_shown() -> None:
    """A file says what it is, on which preset and on what its numbers rest; `show` prints it."""
    lines = [" ".join(line.split()) for line in lines_of("engines")]
    assert any(line.startswith("vllm-0.12 ") and "preset vllm-v1@0.32" in line for line in lines)
    assert any(line.startswith("static preset: ") for line in lines)
    assert text_of("engine", "vllm-0.12").startswith("#")
    assert document_of("engine", "vllm-0.12")["host_step_s"] > 0
    with pytest.raises(InputFault, match=r"engine vlm-0.12 is unknown; did you mean vllm-0.12\?"):
        text_of("engine", "vlm-0.12")


@pytest.mark.parametrize("name", names("engines"))
def test_a_shipped_engine_says_where_each_number_comes_from(name: str) -> None:
    """Every setting has an origin; a fitted or guessed time of the host says how far it may be off."""
    values = entry("engines", name)
    origins = values["provenance"]
    assert values.keys() & set(SETTINGS) == origins.keys()
    timed = [key for key in origins if key.endswith("_s") and origins[key]["kind"] != "documented"]
    assert [key for key in timed if not {"interval", "relative_sd"} & origins[key].keys()] == []
    assert scenario(name).engine["name"] == name
