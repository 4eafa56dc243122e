"""Random numbers: named streams of one seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sim.workload import Streams, stream

IN_ANOTHER_PROCESS = """
import hashlib
from sim.workload import generate
lengths = {"kind": "lognormal", "prompt_mean": 900, "output_mean": 200, "cv": 1.5}
patience = {"kind": "exponential", "mean_s": 9}
workload = {"arrivals": {"kind": "poisson"}, "lengths": lengths, "patience": patience}
requests = generate(workload, {"rate_per_s": 3.7}, {"requests": 500, "seed": 11})
columns = requests.arrival_s, requests.prompt_tokens, requests.output_tokens, requests.patience_s
print(hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest())
"""


def test_a_name_and_a_seed_are_one_stream() -> None:
    """The same name and seed give the same numbers, drawn at once or in parts."""
    whole = stream(1, "arrivals").random(100)
    parts = stream(1, "arrivals")
    assert np.array_equal(whole, np.concatenate([parts.random(30), parts.random(70)]))


@pytest.mark.parametrize(
    ("seed", "name"),
    [(1, "arrivals "), (1, "Arrivals"), (0, "arrivals"), (2, "arrivals"), (2**32 + 1, "arrivals")],
)
def test_another_name_or_seed_is_an_independent_stream(seed: int, name: str) -> None:
    """Pairs from two streams fill the unit square evenly (chi-square over 8 x 8 cells, 99.9 %)."""
    count, cells = 20_000, 8
    one, other = stream(1, "arrivals").random(count), stream(seed, name).random(count)
    observed, _, _ = np.histogram2d(one, other, bins=cells, range=[[0, 1], [0, 1]])
    expected = count / cells**2
    assert ((observed - expected) ** 2 / expected).sum() < stats.chi2.ppf(0.999, cells**2 - 1)


def test_streams_do_not_hang_on_the_process() -> None:
    """Another process with another string hash draws the same requests, byte for byte."""
    here = Path(__file__).parents[1]
    digests = {
        subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(here)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "12345")
    }
    assert len(digests) == 1


def test_raw_numbers_stay_the_same_from_version_to_version() -> None:
    """Regression data: the first raw numbers, which numpy keeps stable for a seed sequence and generator."""
    raw = stream(1, "arrivals").bit_generator.random_raw(2).tolist()
    assert raw == [12605462615323800294, 10153162954089657778]


def test_a_part_of_a_part_has_streams_of_its_own() -> None:
    """Their names begin with both: of equal parts of two things, each has its own numbers."""
    inner = Streams(1).within("classes.chat").within("tenants.0")
    assert inner.open("arrivals").random() == stream(1, "classes.chat.tenants.0.arrivals").random()
    assert Streams(1).within("tenants.0").open("arrivals").random() != inner.open("arrivals").random()
