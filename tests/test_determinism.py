"""The same scenario and seed give the same bytes, wherever and whenever; another seed gives others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import without_times

import sim

CHAT = """\
hardware: h100-80gb-sxm
model: llama-3.1-8b
engine: {num_gpu_blocks_override: 600, max_num_seqs: 32, max_num_batched_tokens: 512, max_model_len: 4096}
workload:
  arrivals: {kind: poisson}
  lengths: {kind: lognormal, prompt_mean: 900, output_mean: 300, cv: 1.2}
  patience: {kind: exponential, mean_s: 10}
load: {rate_per_s: 12}
slo: {ttft_p99_s: 2.0, tpot_p99_s: 0.05}
run: {requests: 600, seed: 3}
"""

SAME_IN_ANOTHER_ORDER = """\
run: {seed: 3, requests: 600}
slo: {tpot_p99_s: 0.05, ttft_p99_s: 2.0}
workload:
  patience: {mean_s: 10, kind: exponential}
  lengths: {cv: 1.2, output_mean: 300, prompt_mean: 900, kind: lognormal}
  arrivals: {kind: poisson}
load: {rate_per_s: 12}
engine: {max_model_len: 4096, max_num_batched_tokens: 512, max_num_seqs: 32, num_gpu_blocks_override: 600}
model: llama-3.1-8b
hardware: h100-80gb-sxm
"""

WRITE = "import sys, sim; sim.simulate(sys.argv[1]).write(sys.argv[2])"


def written(folder: Path, text: str, name: str = "chat.yaml") -> dict[str, Any]:
    """What a run of the scenario *text* writes into *folder*, run in this process."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    sim.simulate(path).write(folder / "here")
    return files(folder / "here")


def files(folder: Path) -> dict[str, Any]:
    """The files of a run: the summary without the simulator's own times, the others as bytes."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    found["summary.json"] = json.dumps(without_times(json.loads(found["summary.json"])))
    return found


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_gives_the_same_bytes(tmp_path: Path, hash_seed: str) -> None:
    """Every file of a run with preemptions and departures, whatever order hashing gives to sets."""
    here = written(tmp_path, CHAT)
    summary = json.loads(here["summary.json"])
    assert summary["preemptions"] > 0
    assert summary["requests"]["cancelled"] > 0
    subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path / "chat.yaml"), str(tmp_path / "there")],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
    )
    assert files(tmp_path / "there") == here
    assert set(here) == {"summary.json", "requests.csv", "requests.parquet", "steps.parquet"}


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    """Arrivals and lengths differ, and with them every file."""
    here = written(tmp_path, CHAT)
    other = written(tmp_path, CHAT.replace("seed: 3", "seed: 4"))
    assert [name for name in here if here[name] == other[name]] == []


def test_the_order_of_keys_does_not_matter(tmp_path: Path) -> None:
    """Only the lines from which values came differ."""
    runs = []
    for number, text in enumerate((CHAT, SAME_IN_ANOTHER_ORDER)):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = written(folder, text)
        summary = json.loads(run.pop("summary.json"))
        sources = summary["scenario"].pop("sources")
        runs.append((run, summary, sources))
    assert runs[0][:2] == runs[1][:2]
    assert runs[0][2] != runs[1][2]
    assert set(runs[0][2]) == set(runs[1][2])
