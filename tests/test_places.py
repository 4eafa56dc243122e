"""What a run's files are asked to be is seen to before the run: one sentence, status 2, nothing lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sim.simulation
from sim.cli.main import main
from sim.cli.places import WRITTEN_TO_OUT

CHAT = "chat-8b-a100"
Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command, which must be refused before it simulates; answers its sentence."""

    def no_run(*_: object, **__: object) -> None:
        pytest.fail("the run has begun")

    def call(*arguments: object) -> str:
        monkeypatch.setattr(sim.simulation, "simulate", no_run)
        monkeypatch.setattr(sys, "argv", ["kneesim", "run", CHAT, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        answer, sentence = capsys.readouterr()
        assert (end.value.code, answer, sentence.count("\n")) == (2, "", 1)
        return sentence.strip()

    return call


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1"])
def test_no_interval_is_refused(refused: Refused, tmp_path: Path, value: str) -> None:
    """Not a number, without end, nothing, backwards; no folder is made for it."""
    sentence = refused(f"--scrape-interval={value}", "--out", tmp_path / "out")
    assert sentence == f"--scrape-interval must be a finite number of seconds > 0 (got {value})"
    assert list(tmp_path.iterdir()) == []


def test_an_interval_of_nothing_is_refused(refused: Refused) -> None:
    """Without --out there is no metrics.csv."""
    assert "goes with --out only" in refused("--scrape-interval", 2)


@pytest.mark.parametrize("name", WRITTEN_TO_OUT)
def test_a_timeline_in_the_place_of_a_result_is_refused(refused: Refused, tmp_path: Path, name: str) -> None:
    """By whatever way the path leads there; what lay there stays."""
    (tmp_path / name).write_text("mine", encoding="utf-8")
    trace = tmp_path / "more" / ".." / name
    assert refused("--out", tmp_path, "--trace", trace) == (
        f"--trace {trace} is a file that --out {tmp_path} writes; give it another name"
    )
    assert (tmp_path / name).read_text(encoding="utf-8") == "mine"


def test_the_files_of_a_result_are_those(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What --out writes is what no timeline may be."""
    monkeypatch.setattr(
        sys, "argv", ["kneesim", "run", CHAT, "run.requests=200", "--json", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert {path.name for path in tmp_path.iterdir()} == set(WRITTEN_TO_OUT)


def test_a_place_at_fault_is_the_one_that_was_given(refused: Refused, tmp_path: Path) -> None:
    """And not the file that was tried; a name that is too long for the disk is noticed too."""
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for trace in (tmp_path / "file" / "x.json", tmp_path / f"{'x' * 300}.json"):
        assert refused("--trace", trace).startswith(f"{trace} cannot be written: ")
    out = tmp_path / "file" / "out"
    assert refused("--out", out).startswith(f"{out} cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
