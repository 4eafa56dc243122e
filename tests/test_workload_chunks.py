"""Requests drawn piece by piece are those drawn at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.workload import Requests, generate, generate_chunks
from sim.workload.distributions import geometric, lognormal, lognormal_mixture, quantile_table
from sim.workload.streams import Streams, repeated, running_sum

LENGTHS = {"kind": "lognormal", "prompt_mean": 900, "output_mean": 200, "cv": 1.4}
WORKLOADS: dict[str, dict[str, Any]] = {
    "poisson": {"patience": {"kind": "exponential", "mean_s": 9}, "priorities": {"weights": [0.2, 0.8]}},
    "constant": {"arrivals": {"kind": "constant"}},
    "answers": {"answers": 3},
    "heads": {"prefixes": {"kind": "groups", "groups": 5, "tokens": 300}},
    "sessions": {
        "sessions": {
            "turns": {"kind": "geometric", "mean": 2.0},
            "gap": {"kind": "lognormal", "mean_s": 60.0, "cv": 1.0},
        }
    },
}
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "patience_s", "priorities")


def assert_chunks_are_the_whole(workload: dict[str, Any], load: dict[str, Any], run: dict[str, Any]) -> None:
    """Of 7 rows each, the columns and segments laid together, and the last notes, are those of `generate`."""
    whole = generate(workload, load, run)
    chunks = list(generate_chunks(workload, load, run, rows=7))
    assert [len(chunk) for chunk in chunks[:-1]] == [7] * (len(chunks) - 1)
    assert dict(chunks[-1].notes) == dict(whole.notes)
    for column in COLUMNS:
        pieces = [getattr(chunk, column) for chunk in chunks]
        expected = getattr(whole, column)
        together = None if expected is None else np.concatenate(pieces)
        assert np.array_equal(together, expected), column
    assert told(chunks) == told([whole])


def told(chunks: list[Requests]) -> list[Any]:
    """What each request's prompt is made of, one after the other."""
    return [c.contents.of(row) for c in chunks if c.contents is not None for row in range(len(c))]


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("run", [{"requests": 50}, {"duration_s": 20.0}])
def test_chunks_are_the_whole(name: str, run: dict[str, Any]) -> None:
    """Whatever is drawn, a run of a number of requests or of a time comes in pieces without a seam."""
    assert_chunks_are_the_whole({"lengths": LENGTHS} | WORKLOADS[name], {"rate_per_s": 3}, {"seed": 4} | run)


@pytest.mark.parametrize("load", [{"rate_per_s": 2}, {"mode": "trace", "time_scale": 3}])
def test_chunks_of_a_trace(tmp_path: Path, load: dict[str, Any]) -> None:
    """A trace is begun again, and its rows are drawn again, across the pieces' ends."""
    path = tmp_path / "trace.csv"
    rows = "".join(f"{k * k},{k + 1},{2 * k + 1}\n" for k in range(12))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    workload = {"arrivals": {"kind": "trace", "path": path}, "lengths": {"kind": "trace", "path": path}}
    assert_chunks_are_the_whole(workload, load, {"requests": 40, "seed": 3})


def test_chunks_without_a_rate() -> None:
    """All at once is in pieces too."""
    workload = {"lengths": LENGTHS}
    assert_chunks_are_the_whole(workload, {"mode": "burst"}, {"requests": 20})
    assert_chunks_are_the_whole(workload, {"concurrency": 4}, {"requests": 21})


@pytest.mark.parametrize(
    "length",
    [
        lognormal(500, 0.8),
        lognormal_mixture([0.4, 0.6], [5, 6.5], [0.5, 0.8], 10, 900),
        quantile_table([0, 0.25, 1], [10, 100, 1000]),
        geometric(5),
    ],
)
def test_ten_and_twenty_are_thirty(length: Any) -> None:
    """A distribution's values do not hang on how many are taken at a time."""
    parts, whole = length.open(Streams(1), "x"), length.open(Streams(1), "x")
    assert np.array_equal(np.concatenate([parts(10), parts(0), parts(20)]), whole(30))


def test_sums_and_repeats_have_no_seam() -> None:
    """A running sum adds in one order, whatever the pieces, and a repeated value may be cut anywhere."""
    for make in (running_sum, lambda take: repeated(take, 4)):
        parts, whole = (make(Streams(2).open("x").random) for _ in range(2))
        assert np.array_equal(np.concatenate([parts(n) for n in (10, 1, 0, 2, 17)]), whole(30))


def test_streams_of_a_part_have_its_name() -> None:
    """The streams within a part of the traffic are those that begin with its name."""
    part = Streams(3).within("classes.chat")
    assert part.open("arrivals").random() == Streams(3).open("classes.chat.arrivals").random()
