"""The tables of a run and the files that keep them."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from runs import STORIES, story
from support import on_a_full_disk

from sim import files
from sim.faults import InputFault
from sim.results import Result
from sim.simulation import simulate

CONTRACT_COLUMNS = [
    "request_id",
    "traffic_class",
    "replica",
    "status",
    "in_window",
    "arrival_s",
    "first_scheduled_s",
    "first_token_s",
    "finish_s",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "queue_s",
    "ttft_s",
    "tpot_s",
    "stall_s",
    "e2e_s",
]


def test_the_tables_are_the_log() -> None:
    """A row a request, a row a batch, with their columns in order."""
    run, tokens = story("preempting")
    assert list(run.requests.columns) == CONTRACT_COLUMNS
    assert len(run.requests) == 80
    assert run.steps.iterations.sum() == len(tokens.seconds) == run.summary()["simulator"]["iterations"]
    assert (run.steps.end_s > run.steps.start_s).all()
    assert (run.steps.start_s[1:].to_numpy() >= run.steps.end_s[:-1].to_numpy()).all()
    assert run.requests.preemptions.sum() == tokens.preemptions


@pytest.mark.parametrize("name", ["impatient", "short answers"])
def test_the_files_hold_the_tables(tmp_path: Path, name: str) -> None:
    """Four files in a folder that is made; CSV and Parquet say the same, to the last digit."""
    import pandas as pd

    run, _ = story(name)
    folder = tmp_path / "some" / "where"
    written = run.write(folder)
    names = ["requests.csv", "requests.parquet", "steps.parquet", "summary.json"]
    assert sorted(path.name for path in written) == sorted(path.name for path in folder.iterdir()) == names
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8")) == run.summary()
    with open(folder / "requests.csv", newline="", encoding="utf-8") as lines:
        header, *rows = csv.reader(lines)
    assert header == CONTRACT_COLUMNS
    pd.testing.assert_frame_equal(
        pd.read_parquet(folder / "requests.parquet"), run.requests, check_dtype=False
    )
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "steps.parquet"), run.steps, check_dtype=False)
    for column, texts in zip(header, zip(*rows, strict=True), strict=True):
        for text, value in zip(texts, run.requests[column].tolist(), strict=True):
            if isinstance(value, float):
                assert np.isnan(value) if text == "" else float(text) == value
            else:
                assert text == (str(value).lower() if isinstance(value, bool) else str(value))


def test_files_are_the_same_bytes_again(tmp_path: Path) -> None:
    """Written twice, and by a run that leaps: equal, but for the simulator's own times in the summary."""
    stepping, _ = story("preempting")
    leaping = Result(simulate(stepping.run.scenario, requests=STORIES["preempting"][0]))
    for first, second in zip(stepping.write(tmp_path / "a"), leaping.write(tmp_path / "b"), strict=True):
        if first.suffix != ".json":
            assert first.read_bytes() == second.read_bytes()


def test_what_cannot_be_written_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    """A file where the folder should be, and a folder where a file should be: a sentence, no half files."""
    run, _ = story("short answers")
    blocked = tmp_path / "file"
    blocked.write_text("mine", encoding="utf-8")
    with pytest.raises(InputFault, match="cannot be written"):
        run.write(blocked)
    assert blocked.read_text(encoding="utf-8") == "mine"
    folder = tmp_path / "out"
    (folder / "requests.csv").mkdir(parents=True)
    with pytest.raises(InputFault, match=r"requests\.csv cannot be written"):
        run.write(folder)
    assert not list(folder.glob(".*"))
    assert not list(folder.glob("*.part"))


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write fails in the middle: the older file is still whole, the beginnings are gone."""
    run, _ = story("short answers")
    run.write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    monkeypatch.setattr(files, "open", on_a_full_disk(), raising=False)
    with pytest.raises(InputFault, match=r"summary\.json cannot be written: No space left on device"):
        story("steady")[0].write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_result_says_what_it_is() -> None:
    """Its name and size, for people at a prompt; the run inside cannot be changed."""
    run, _ = story("steady")
    assert repr(run) == "<Result of test: 120 requests>"
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.run.events = 0  # type: ignore[misc]
