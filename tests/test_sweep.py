"""Sweeps: what is run, what is kept, and that neither workers nor kills change the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sim
import sim.simulation
from sim.faults import InputFault
from sim.planning import journal
from sim.planning.executors import WorkerLostError, answers
from sim.planning.sweep import SweepInterrupted

SMALL = {
    "name": "small",
    "hardware": "a100-80gb-sxm",
    "model": "llama-3-8b",
    "workload": {
        "arrivals": {"kind": "poisson"},
        "lengths": {"kind": "geometric", "prompt_tokens": 200, "output_tokens": 20},
    },
    "load": {"rate_per_s": 4},
    "slo": {"ttft_p99_s": "500ms"},
    "run": {"requests": 60},
}
OVER = {"load.rate_per_s": [2, 8], "engine.kv_cache_dtype": ["bf16", "fp8"]}
FILES = ("table.csv", "table.parquet", "sweep.json")


@pytest.fixture
def small() -> sim.Scenario:
    return sim.load(SMALL)


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def sentences(scenario: sim.Scenario, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InputFault) as caught:
        sim.sweep(scenario, *arguments, **options)
    return "\n".join(caught.value.faults)


# --- what is run, and the table ------------------------------------------------------------------------


def test_a_point_is_what_simulate_answers(small: sim.Scenario) -> None:
    """A row holds the keys, the seed and the very numbers of that scenario's own run."""
    table = sim.sweep(small, OVER, seeds=2, workers=1).table
    assert list(table.columns[:3]) == ["load.rate_per_s", "engine.kv_cache_dtype", "seed"]
    assert list(table.columns)[-1] == "fault"
    for _, row in table.iterrows():
        own = {key: row[key] for key in OVER} | {"run.seed": row["seed"]}
        summary = sim.simulate(small.replace(own)).summary()
        assert row["ttft_s.p99"] == summary["ttft_s"]["p99"]
        assert row["cost.usd_per_1m_output_tokens"] == summary["cost"]["usd_per_1m_output_tokens"]
        assert row["warnings"] == len(summary["warnings"])
        assert row["stable"] == summary["stable"]


def test_the_last_key_turns_fastest_then_the_seed(small: sim.Scenario) -> None:
    """Rows are in the order of nested loops over the keys as given, seeds innermost, from the own seed on."""
    sweep = sim.sweep(small.replace({"run.seed": 5}), OVER, seeds=2, workers=1)
    expected = [(rate, dtype, seed) for rate in (2, 8) for dtype in ("bf16", "fp8") for seed in (5, 6)]
    assert [(*point.values.values(), point.seed) for point in sweep.points] == expected


def test_values_are_shown_in_base_units(small: sim.Scenario) -> None:
    """What is written with a unit stands in the table as a number; a mapping stands as it was written."""
    patched = {"base": "a100-80gb-sxm", "memory_bytes": "40GB"}
    over = {"slo.ttft_p99_s": ["250ms", 1], "hardware": ["a100-80gb-sxm", patched]}
    table = sim.sweep(small, over, workers=1).table
    assert table["slo.ttft_p99_s"].tolist() == [0.25, 0.25, 1.0, 1.0]
    assert table["hardware"].tolist()[:2] == ["a100-80gb-sxm", json.dumps(patched)]
    assert table["kv_cache.num_gpu_blocks"].nunique() == 2


def test_one_point_is_a_sweep(small: sim.Scenario) -> None:
    """No key at all and one seed: one row, the scenario's own run."""
    table = sim.sweep(small, {}).table
    assert len(table) == 1
    assert table["ttft_s.p99"][0] == sim.simulate(small).summary()["ttft_s"]["p99"]


def test_equal_points_run_once(small: sim.Scenario) -> None:
    """Values that mean the same give equal rows from one run, and a warning says so."""
    told: list[int] = []
    sweep = sim.sweep(
        small, {"load.rate_per_s": [4, 4.0, "4"]}, workers=1, progress=lambda made, *_: told.append(made)
    )
    assert told == [1]
    assert len(sweep.table) == 3
    assert sweep.table["ttft_s.p99"].nunique() == 1
    assert sweep.warnings == ("2 of 3 points are equal to others and ran once with them",)


def test_a_key_comes_before_those_within_it(small: sim.Scenario) -> None:
    """hardware and a number of it can both be swept, in any order of writing."""
    over = {"hardware.memory_bytes": ["60GB", "80GB"], "hardware": ["a100-80gb-sxm", "h100-80gb-sxm"]}
    blocks = sim.sweep(small, over, workers=1).table["kv_cache.num_gpu_blocks"]
    assert blocks[0] < blocks[2]
    assert blocks[1] < blocks[3]


# --- what cannot be run --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ({"engine.max_seqs": [1]}, "engine.max_seqs is unknown; did you mean max_num_seqs?"),
        ({"load.rate_per_s": [2, -1]}, "load.rate_per_s must be a rate per second > 0 (got -1)"),
        ({"load.rate_per_s": []}, "load.rate_per_s must have at least one value"),
        ({"load.rate_per_s": "2,4"}, "load.rate_per_s must have a list of values (got '2,4')"),
        ({"load.rate_per_s": 2}, "load.rate_per_s must have a list of values (got 2)"),
        ({"load.rate_per_s": [float("nan")]}, "load.rate_per_s[0] must be finite"),
        ({"engine..block_size": [1]}, "`engine..block_size` must be a key"),
        ({"load.rate_per_s": [1], " load.rate_per_s": [2]}, "load.rate_per_s is swept twice"),
        ({"load.rate_per_s": [1], "load.mode": ["burst"]}, "load.mode excludes load.rate_per_s"),
        ({"model": ["lama-3-8b"]}, "did you mean llama-3-8b?"),
        ({"run.requests": range(1, 200_000)}, "may have 100,000 points"),
    ],
)
def test_bad_grids_are_refused_before_the_first_run(
    over: dict[str, Any], sentence: str, small: sim.Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown keys, bad values, empty lists: sentences, whatever else the grid holds, and nothing has run."""
    monkeypatch.setattr(sim.simulation, "simulate", lambda *_: pytest.fail("a point was run"))
    assert sentence in sentences(small, {"engine.max_num_seqs": [8, 16], **over}, workers=1)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_seeds_and_workers_are_whole_numbers(bad: Any, small: sim.Scenario) -> None:
    """Anything but a whole number of at least 1 is answered with a sentence."""
    assert "seeds must be a whole number >= 1" in sentences(small, {}, seeds=bad)
    assert "workers must be a whole number >= 1" in sentences(small, {}, workers=bad)


def test_all_faults_of_a_grid_come_together(small: sim.Scenario) -> None:
    """Two keys at fault: both are named in one go, once each."""
    found = sentences(small, {"engine.max_seqs": [1, 2], "load.rate_per_s": [-1, 2]})
    assert found.count("is unknown") == 1
    assert found.count("got -1") == 1


def test_what_does_not_fit_is_a_row(small: sim.Scenario) -> None:
    """A model that does not fit in memory has a sentence in place of numbers; the others have theirs."""
    table = sim.sweep(small, {"model": ["llama-3-70b", "llama-3-8b"]}, workers=1).table
    assert "does not fit" in table["fault"][0]
    assert table["ttft_s.p99"].isna().tolist() == [True, False]
    assert table["requests.completed"][1] == 60
    assert table["fault"].isna().tolist() == [False, True]


def test_values_that_do_not_go_together_are_a_row(small: sim.Scenario) -> None:
    """A combination may be at fault where each of its values is fine in another one."""
    over = {"model": ["llama-2-7b", "llama-3-8b"], "engine.max_model_len": [4096, 8192]}
    sweep = sim.sweep(small, over, seeds=2, workers=1)
    faulty = [point for point in sweep.points if point.fault]
    assert [point.values for point in faulty] == [{"model": "llama-2-7b", "engine.max_model_len": 8192}] * 2
    assert "must be <= the model's max_position_embeddings 4096" in str(faulty[0].fault)
    assert [point.seed for point in faulty] == [1, 2]


def test_a_failing_point_is_named(small: sim.Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours ends the sweep with the point's values and the traceback from where it happened."""
    monkeypatch.setattr(sim.simulation, "simulate", lambda scenario: 1 / 0)
    with pytest.raises(RuntimeError, match=r"load.rate_per_s=2, seed 1 failed(.|\n)*ZeroDivisionError"):
        sim.sweep(small, {"load.rate_per_s": [2, 8]}, workers=1)


def test_a_lost_worker_is_noticed() -> None:
    """A worker that ends abruptly is an error at once, not a wait without end."""
    with pytest.raises(WorkerLostError):
        list(answers(os._exit, [1, 1], 2))


# --- the same bytes for any number of workers ------------------------------------------------------------


def test_workers_do_not_change_the_answer(small: sim.Scenario, tmp_path: Path) -> None:
    """One process or three: the same bytes in every file; they were read again from a journal as well."""
    over = {**OVER, "model": ["llama-3-8b", "llama-3-70b"]}
    for folder, workers in (("one", 1), ("three", 3), ("three", 2)):
        sim.sweep(small, over, seeds=2, workers=workers, out=tmp_path / folder)
        assert contents(tmp_path / folder) == contents(tmp_path / "one")


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Workers do not run the caller's script again, so it may be a plain one."""
    script = (
        "import sim\nprint('once')\n"
        f"small = sim.load({SMALL!r})\n"
        "print(sim.sweep(small, {'load.rate_per_s': [2, 8]}, workers=2).table['ttft_s.p99'].notna().sum())\n"
    )
    (tmp_path / "plain.py").write_text(script, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, tmp_path / "plain.py"], capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.stderr) == ("once\n2\n", "")


def test_files_hold_the_table(small: sim.Scenario, tmp_path: Path) -> None:
    """CSV and Parquet have the table's columns and numbers, the JSON has a summary a point."""
    import pandas as pd

    sweep = sim.sweep(small, OVER, workers=1, out=tmp_path)
    for read in (pd.read_csv(tmp_path / "table.csv"), pd.read_parquet(tmp_path / "table.parquet")):
        assert list(read.columns) == list(sweep.table.columns)
        assert read["e2e_s.mean"].tolist() == sweep.table["e2e_s.mean"].tolist()
    document = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert document == json.loads(json.dumps(sweep.as_dict()))
    assert document["points"][0]["ttft_s"]["p99"] == sweep.table["ttft_s.p99"][0]
    assert set(document["points"][0]["simulator"]) == {"iterations", "events"}


# --- what is kept ----------------------------------------------------------------------------------------


def counted(calls: list[int]) -> Callable[[int, int, str], None]:
    return lambda made, expected, last: calls.append(made)


def test_a_journal_cut_anywhere_is_gone_on_with(small: sim.Scenario, tmp_path: Path) -> None:
    """Wherever a kill cut the journal, the next sweep runs what is missing, and the answer is the same."""
    sim.sweep(small, OVER, workers=1, out=tmp_path)
    whole, path = contents(tmp_path), tmp_path / "journal.jsonl"
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in (0, 10, ends[0], ends[0] + 1, ends[1] - 1, ends[1], ends[3] + 500):
        path.write_bytes(data[:cut])
        calls: list[int] = []
        sim.sweep(small, OVER, workers=1, out=tmp_path, progress=counted(calls))
        kept = max(0, sum(end <= cut for end in ends) - 1)
        assert calls == list(range(kept + 1, 5))
        assert contents(tmp_path) == whole


def test_a_wider_grid_uses_what_is_there(small: sim.Scenario, tmp_path: Path) -> None:
    """Points are known by what they are, not by their place in a grid."""
    sim.sweep(small, {"load.rate_per_s": [2, 8]}, workers=1, out=tmp_path)
    calls: list[int] = []
    wider = sim.sweep(small, {"load.rate_per_s": [1, 2, 8]}, workers=1, out=tmp_path, progress=counted(calls))
    assert calls == [3]
    assert wider.notes == (f"2 of 3 runs were in {tmp_path / 'journal.jsonl'} already",)


def test_another_scenario_is_noticed(small: sim.Scenario, tmp_path: Path) -> None:
    """A folder of another scenario's sweep is left as it is; so is one whose journal is something else."""
    sim.sweep(small, OVER, workers=1, out=tmp_path)
    before = contents(tmp_path)
    other = small.replace({"run.requests": 61})
    assert "belongs to another scenario (small" in sentences(other, OVER, out=tmp_path)
    assert contents(tmp_path) == before
    (tmp_path / "journal.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    assert "is no journal of finished runs" in sentences(small, OVER, out=tmp_path)


def test_another_version_is_noticed(
    small: sim.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Points of two versions of the simulator do not get into one table."""
    with monkeypatch.context() as older:
        older.setattr(journal, "__version__", "0.0.9")
        sim.sweep(small, {}, workers=1, out=tmp_path)
    assert "was written by kneesim 0.0.9" in sentences(small, {}, workers=1, out=tmp_path)


def test_another_trace_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    """What a trace file holds belongs to the scenario, though only its name is written there."""
    trace = tmp_path / "trace.csv"
    scenario = {**SMALL, "workload": str(trace), "run": {}}
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n", encoding="utf-8")
    sim.sweep(sim.load(scenario), {"load.rate_per_s": [1]}, workers=1, out=tmp_path / "out")
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n2,90,5\n", encoding="utf-8")
    told = sentences(sim.load(scenario), {"load.rate_per_s": [1]}, workers=1, out=tmp_path / "out")
    assert "belongs to another scenario" in told


def test_two_sweeps_do_not_share_a_folder(small: sim.Scenario, tmp_path: Path) -> None:
    """While one sweep writes, a second one in the same folder is told so."""
    pytest.importorskip("fcntl")

    def second(*_: object) -> None:
        assert "another process is writing" in sentences(small, OVER, workers=1, out=tmp_path)

    sim.sweep(small, {"load.rate_per_s": [2]}, workers=1, out=tmp_path, progress=second)


def test_a_place_that_cannot_be_written_is_told_before_the_first_run(
    small: sim.Scenario, tmp_path: Path
) -> None:
    """A file where the folder should be: a sentence."""
    (tmp_path / "taken").write_text("", encoding="utf-8")
    assert "cannot be written" in sentences(small, OVER, workers=1, out=tmp_path / "taken")


def test_a_full_disk_keeps_what_is_finished(
    small: sim.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that does not fit any more is a sentence; with room again the sweep goes on after the last."""
    write, lines = journal._write, []

    def filling(file: Any, line: str) -> None:
        lines.append(line)
        if len(lines) > 3:
            file.write(line[:100].encode())
            raise OSError(28, "No space left on device")
        write(file, line)

    with monkeypatch.context() as full:
        full.setattr(journal, "_write", filling)
        told = sentences(small, OVER, workers=1, out=tmp_path)
    assert "No space left on device" in told
    assert "are kept" in told
    calls: list[int] = []
    sim.sweep(small, OVER, workers=1, out=tmp_path, progress=counted(calls))
    assert calls == [3, 4]


def test_an_interrupt_hands_over_what_is_finished(small: sim.Scenario) -> None:
    """Ctrl-C is a KeyboardInterrupt that carries the finished points, even without a folder."""

    def stop_after_two(made: int, expected: int, last: str) -> None:
        if made == 2:
            raise KeyboardInterrupt

    with pytest.raises(SweepInterrupted) as stopped:
        sim.sweep(small, OVER, workers=1, progress=stop_after_two)
    assert isinstance(stopped.value, KeyboardInterrupt)
    assert len(stopped.value.sweep.table) == 2
    assert stopped.value.sweep.missing == 2


def test_an_interrupt_between_the_journal_and_the_table_loses_no_point(
    small: sim.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point that is written down when Ctrl-C comes, and not told yet, is in the table all the same."""
    add = journal.Journal.add

    def interrupted(self: journal.Journal, key: str, answer: str) -> None:
        add(self, key, answer)
        raise KeyboardInterrupt

    monkeypatch.setattr(journal.Journal, "add", interrupted)
    with pytest.raises(SweepInterrupted) as end:
        sim.sweep(small, {"load.rate_per_s": [2, 4]}, workers=1, out=tmp_path / "out")
    assert len(end.value.sweep.points) == 1
