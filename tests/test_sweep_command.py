"""`kneesim sweep`: what it prints, what a kill leaves, and how values are written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from test_sweep import SMALL

import sim
from sim.cli.over import read_over
from sim.faults import InputFault
from sim.planning.grid import grid


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """SMALL as a file; JSON is YAML."""
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    return path


def kneesim(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sim", "sweep", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def started(*arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """`kneesim sweep` with a process group of its own, as a terminal gives it one.

    What a shell starts in the background is deaf to Ctrl-C, and so are its children: not this one.
    """
    command = [sys.executable, "-m", "sim", "sweep", *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    end = monotonic() + seconds
    while not what():
        assert monotonic() < end, "waited in vain"
        sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


def long(rates: str) -> tuple[Any, ...]:
    """Four points a rate, each so long that a sweep can be caught in the middle."""
    return ("run.requests=4000", "--over", f"load.rate_per_s={rates}", "--seeds", 4)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_loses_only_points_in_flight(how: signal.Signals, file: Path, tmp_path: Path) -> None:
    """Killed or interrupted in the middle: no worker lives on, and the next sweep runs only the rest."""
    path = tmp_path / "out" / "journal.jsonl"

    def lines() -> list[bytes]:
        return path.read_bytes().splitlines()[1:] if path.exists() else []

    rates = ",".join(f"{3 + step / 10:g}" for step in range(100))  # more than a busy machine ends in time
    with started(file, *long(rates), "--workers", 2, "--out", tmp_path / "out") as process:
        wait_for(lambda: len(lines()) > 3)
        workers = children(process.pid)
        os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
        out, err = process.communicate(timeout=30)
        wait_for(lambda: not any(map(alive, workers)), seconds=10)
    kept = {json.loads(line)["key"] for line in lines()}
    assert len(workers) >= 2
    assert 4 <= len(kept) < 400
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "the same command goes on from here" in err
        assert "Traceback" not in err
        assert len(out.splitlines()) == len(kept) + 2
    _, points = grid(sim.load(file, ["run.requests=4000"]), {"load.rate_per_s": [3]}, 4)
    found = len(kept.intersection(point.key for point in points))
    again = kneesim(file, *long("3"), "--workers", 1, "--out", tmp_path / "out", "--json")
    assert found >= 2  # the first points but for those in flight
    assert f"{found} of 4 runs were in" in again.stderr
    assert again.stdout == kneesim(file, *long("3"), "--workers", 1, "--json").stdout


def test_the_table_goes_to_stdout(file: Path, tmp_path: Path) -> None:
    """Piped: a header, a rule and a row a point on stdout, nothing but the files' names on stderr."""
    ended = kneesim(file, "--over", "load.rate_per_s=2, 8", "--seeds", 2, "--out", tmp_path / "out")
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["2", "1"], ["2", "2"], ["8", "1"], ["8", "2"]]
    assert [line.split()[0] for line in ended.stderr.splitlines()] == ["wrote"] * 3
    piped = kneesim(file, "--over", "load.rate_per_s=2,8", "--workers", 1, "--json")
    assert piped.stderr == ""
    assert len(json.loads(piped.stdout)["points"]) == 2


def test_nothing_that_can_run_is_a_fault_of_the_input(file: Path) -> None:
    """If no point fits, the table still says why, and the status is 2."""
    ended = kneesim(file, "--over", "model=llama-3-70b,llama-2-70b", "--json", "--workers", 1)
    assert ended.returncode == 2
    assert all("does not fit" in point["fault"] for point in json.loads(ended.stdout)["points"])
    assert ended.stderr.startswith("none of the 2 points can run; the first: small: does not fit")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("engine.max_num_seqs=64,128", [64, 128]),
        ("engine.max_num_seqs=[64, 128]", [64, 128]),
        ("slo.ttft_p99_s=250ms,1s", ["250ms", "1s"]),
        ("hardware=[a, {base: a, memory_bytes: 40GB}]", ["a", {"base": "a", "memory_bytes": "40GB"}]),
        ("hardware={base: a, memory_bytes: 40GB}", [{"base": "a", "memory_bytes": "40GB"}]),
        ("x=[1, 2], [3, 4]", [[1, 2], [3, 4]]),
        ("x=[[1, 2]]", [[1, 2]]),
        ("x=1e-3,null,on", [0.001, None, "on"]),
        ("x=", []),
        ("x=[]", []),
    ],
)
def test_values_are_items_of_a_yaml_list(text: str, values: list[Any]) -> None:
    """Brackets may be left out; an item may be anything that a scenario may hold there."""
    assert list(read_over([text]).values()) == [values]


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["load.rate_per_s"], "`load.rate_per_s` must be key=value,value,..."),
        (["=2"], "`=2` must be key=value,value,..."),
        (["a=1", "a=2"], "a is swept twice"),
        (["a=[1"], "a=[1: is not YAML"),
        (["a=1],[2"], "a=1],[2: is not YAML"),
        (["a={x: 1, x: 2}"], "a[0].x is written twice"),
    ],
)
def test_texts_that_are_no_list_are_told(texts: list[str], sentence: str) -> None:
    """What --over cannot read is answered with the text itself."""
    with pytest.raises(InputFault, match="--over: ") as caught:
        read_over(texts)
    assert sentence in str(caught.value)
