"""A recording that is none is refused in a sentence with line and place, never compared by half."""

from __future__ import annotations

import copy
import gzip
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sim.faults import InputFault
from sim.validation.conformance import check

RECORDING = Path(__file__).parent / "recordings" / "priority-prefix-async.jsonl.gz"


@cache
def a_line() -> str:
    """A recorded case with aborts."""
    with gzip.open(RECORDING, "rt", encoding="utf-8") as lines:
        return next(line for line in lines if json.loads(line)["aborts"])


def faults(folder: Path, line: str) -> tuple[str, ...]:
    """What is said of *line* as the second of a recording."""
    path = folder / "some.jsonl"
    path.write_text(f"{a_line().strip()}\n{line}\n", encoding="utf-8")
    with pytest.raises(InputFault) as caught:
        check(path)
    assert all(fault.startswith(f"{path}:2: ") for fault in caught.value.faults)
    return tuple(fault.removeprefix(f"{path}:2: ") for fault in caught.value.faults)


def altered(place: tuple[Any, ...], value: Any) -> str:
    """The case with *value* at *place*."""
    case = json.loads(a_line())
    part = case
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return json.dumps(case)


CONFIG, REQUEST, ROW = ("config",), ("requests", 1), ("trace", 1)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ((*CONFIG, "block_size"), 10**12, "config.block_size must be at most 16,777,216 (got 1000000000000)"),
        ((*CONFIG, "usable_blocks"), 10**9, "config.usable_blocks must be at most"),
        ((*CONFIG, "max_num_batched_tokens"), 10**9, "config.max_num_batched_tokens must be at most"),
        (
            (*CONFIG, "long_prefill_token_threshold"),
            -1,
            "config.long_prefill_token_threshold must be a whole",
        ),
        ((*CONFIG, "policy"), "lifo", "config.policy must be fcfs or priority (got 'lifo')"),
        ((*CONFIG, "enable_prefix_caching"), 1, "config.enable_prefix_caching must be true or false (got 1)"),
        ((*CONFIG, "scheduler_reserve_full_isl"), "no", "config.scheduler_reserve_full_isl must be true or"),
        ((*CONFIG, "async_scheduling"), None, "config.async_scheduling must be true or false (got None)"),
        ((*CONFIG, "engine_version"), "new", "config.engine_version must be a version such as 0.32.0"),
        ((*CONFIG, "engine_version"), 0.32, "config.engine_version must be a version such as 0.32.0"),
        ((*CONFIG, "engine"), [], "config.engine must be a name (got [])"),
        ((*REQUEST, "priority"), 0.5, "requests[1].priority must be a whole number >= 0 (got 0.5)"),
        ((*REQUEST, "prefix_tokens"), "3", "requests[1].prefix_tokens must be a whole number >= 0 (got '3')"),
        ((*REQUEST, "prefix_group"), -1, "requests[1].prefix_group must be a whole number >= 0 (got -1)"),
        ((*REQUEST, "order"), None, "requests[1].order must be a whole number >= 0 (got None)"),
        ((*REQUEST, "id"), None, "requests[1].id must be a name (got None)"),
        ((*REQUEST, "id"), "r0", "requests must each have an id of their own (several are 'r0')"),
        ((*REQUEST, "stop"), 1, "requests[1] has no stop; known: arrival_step, id, max_tokens, order, "),
        (("seed",), 1, "a recorded case has no seed; known: aborts, case, config, engine, requests, trace"),
        (("case",), None, "case must be a number or a name (got None)"),
        (("aborts",), [], "aborts must be an object of lists by step (got [])"),
        (("aborts", "1"), ["nobody"], "aborts.1 has 'nobody', which is no request's id"),
        (("aborts", "1"), ["r0", "r0"], "aborts.1 must be a list of ids, each once (got ['r0', 'r0'])"),
        (("aborts", "soon"), [], "aborts must be by step, a whole number >= 1 (got 'soon')"),
        (("trace",), [], "trace must be a list of rows, one a step, and not empty (got [])"),
        (("trace",), {}, "trace must be a list of rows, one a step, and not empty (got {})"),
        ((*ROW, 1), {"r0": True}, "not a recorded case: trace[1] must be a row whose tokens is an object of"),
        ((*ROW, 2), "r0", "not a recorded case: trace[1] must be a row whose preempted is a list of ids"),
        ((*ROW, 4), 5.0, "not a recorded case: trace[1] must be a row whose free_blocks is a whole number"),
    ],
)
def test_the_sentence_says_where_and_what(
    tmp_path: Path, place: tuple[Any, ...], value: Any, sentence: str
) -> None:
    """One mistake, one sentence."""
    (found,) = faults(tmp_path, altered(place, value))
    assert found.startswith(sentence)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"case": ' * 100_000, "[" * 900 + "]" * 900, "9" * 5000])
def test_what_no_reader_follows_is_refused(tmp_path: Path, line: str) -> None:
    """Nested without end, or a number that is."""
    (found,) = faults(tmp_path, line)
    assert found.startswith("must be one JSON object a line (")


def test_all_faults_of_a_line_travel_together(tmp_path: Path) -> None:
    """So that it is mended in one go."""
    case = json.loads(a_line())
    case["config"]["policy"] = "lifo"
    case["requests"][0]["priority"] = case["requests"][2]["max_tokens"] = "x"
    assert len(faults(tmp_path, json.dumps(case))) == 3


VALUES = (None, True, -1, 0, 1, 2.5, 10**12, float("nan"), "", "x", [], [[]], {}, {"x": None})


@pytest.mark.parametrize("seed", range(150))
def test_any_value_anywhere_is_compared_or_refused(tmp_path: Path, seed: int) -> None:
    """A count of cases or sentences: nothing else comes out, whatever stands where."""
    draw = random.Random(seed)
    case = copy.deepcopy(json.loads(a_line()))
    part = case
    while True:
        key = draw.choice(sorted(part) if isinstance(part, dict) else range(len(part)))
        if not isinstance(part[key], dict | list) or not part[key] or draw.random() < 0.2:
            break
        part = part[key]
    part[key] = draw.choice(VALUES)
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps(case), encoding="utf-8")
    sentences: tuple[str, ...] = ()
    try:
        compared = check(path).cases
    except InputFault as fault:
        compared, sentences = 0, fault.faults
    assert compared == (not sentences)
    assert all(sentence.startswith(f"{path}:1: ") for sentence in sentences)


def test_the_largest_sizes_are_compared(tmp_path: Path) -> None:
    """What is not refused is run, and does not ask for more memory than there is."""
    case = json.loads(a_line())
    for size in ("block_size", "usable_blocks", "max_num_batched_tokens", "max_num_seqs"):
        case["config"][size] = 1 << 24
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps(case), encoding="utf-8")
    assert check(path).cases == 1
