"""A hundred times more requests cost a hundred times more, and no more memory than their own rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest
from support import base

import sim
from sim.results import Result
from sim.scenario import Scenario
from sim.simulation import Run, simulate

FEW, MANY = 2_000, 200_000
SCENARIOS = {"steady": 8.0, "chat-8b-a100": 5.0}  # arrivals a second

# VmHWM: unlike ru_maxrss it begins anew with the program, whatever the size of the process that started it.
PEAK = """\
import json, sys
import sim
from support import base
name, changes = sys.argv[1], json.loads(sys.argv[2])
whole = base() if name == "steady" else sim.load(name)
sim.simulate(whole.replace(changes)).summary()
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def changes(name: str, requests: int) -> dict[str, float]:
    return {"load.rate_per_s": SCENARIOS[name], "run.requests": requests}


def scenario(name: str, requests: int) -> Scenario:
    """The scenario *name* at its rate in `SCENARIOS`, for *requests*."""
    whole = base() if name == "steady" else sim.load(name)
    return whole.replace(changes(name, requests))


def work(run: Run) -> dict[str, float]:
    """What one request of *run* cost on average: exact counts, no clock."""
    count, recorder = len(run.requests), run.recorder
    return {
        "events": run.events / count,
        "rows": recorder.num_rows / count,
        "stretches": len(recorder.column("stretch_request")) / count,
        "row bytes": len(recorder.steps) / count,
    }


@pytest.mark.parametrize("name", SCENARIOS)
def test_work_a_request_does_not_grow(name: str) -> None:
    """SimPy events and rows of the log: from 2,000 to 20,000 requests no more than 3 % up."""
    few, more = (work(simulate(scenario(name, count))) for count in (FEW, 10 * FEW))
    assert {cost: more[cost] for cost in few if more[cost] > 1.03 * few[cost]} == {}
    assert few["events"] < 5
    assert few["rows"] < 5


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_cost_a_request_does_not_grow_a_hundredfold(name: str) -> None:
    """200,000 requests cost the same events and rows each as 2,000, and less than twice the time.

    Run it with ``pytest -m slow tests/test_scale.py``.
    """

    def timed(requests: int) -> tuple[dict[str, float], float]:
        began = perf_counter()
        run = simulate(scenario(name, requests))
        Result(run).summary()
        return work(run), (perf_counter() - began) / requests

    timed(FEW)  # what is done once
    (few, few_s), (many, many_s) = timed(FEW), timed(MANY)
    assert {cost: many[cost] for cost in few if many[cost] > 1.03 * few[cost]} == {}
    assert many_s < 2 * few_s


def peak_bytes(name: str, requests: int) -> int:
    """The peak resident memory of a fresh process that runs and summarises the scenario."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, name, json.dumps(changes(name, requests))],
        cwd=Path(__file__).parent,
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_memory_grows_by_less_than_300_bytes_a_request(name: str) -> None:
    """Peak resident memory, summary included, between 2,000 and 200,000 requests.

    Run it with ``pytest -m slow tests/test_scale.py``.
    """
    assert (peak_bytes(name, MANY) - peak_bytes(name, FEW)) / (MANY - FEW) < 300
