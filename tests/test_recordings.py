"""What vLLM's own scheduler did with the cases of tests/recordings, and whether ours does the same.

``make conformance`` prints the counts; tests/record/README.md says how the recordings were made.
"""

from __future__ import annotations

import copy
import gzip
import importlib.util
import json
import random
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sim.faults import InputFault
from sim.validation.conformance import check, compare

HERE = Path(__file__).parent
RECORDINGS = sorted((HERE / "recordings").glob("*.jsonl.gz"))
NEWER = sorted((HERE / "recordings" / "0.33").glob("*.jsonl.gz"))  # where it differs from 0.32
GROUPS = {
    f"{policy}{prefix}{async_}"
    for policy in ("fcfs", "priority")
    for prefix in ("", "-prefix")
    for async_ in ("", "-async")
}
STEP, TOKENS, PREEMPTED, FINISHED, FREE_BLOCKS, CACHED = range(6)


@cache
def lines(recording: Path) -> tuple[str, ...]:
    with gzip.open(recording, "rt", encoding="utf-8") as text:
        return tuple(text)


def cases(recording: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(recording)]


def name(recording: Path) -> str:
    return recording.name.removesuffix(".jsonl.gz")


# -- the recordings --------------------------------------------------------------------------------


def test_every_group_is_recorded() -> None:
    """Both policies, prefix caching off and on, asynchronous scheduling off and on: 200 cases of each."""
    assert {name(recording) for recording in RECORDINGS} == GROUPS
    for recording in RECORDINGS:
        assert len(lines(recording)) >= 200
        for case in cases(recording):
            config = case["config"]
            assert config["policy"] in name(recording)
            assert config["enable_prefix_caching"] == ("-prefix" in name(recording))
            assert config["async_scheduling"] == ("-async" in name(recording))
            assert (config["engine"], config["engine_version"]) == ("vllm", "0.32.0")


@pytest.mark.parametrize("recording", RECORDINGS, ids=name)
def test_the_recording_shows_every_rule_at_work(recording: Path) -> None:
    """An agreement about nothing proves nothing: each setting has several values, each event happens."""
    recorded = cases(recording)
    settings = ("block_size", "max_num_seqs", "max_num_batched_tokens", "watermark")
    for setting in (*settings, "scheduler_reserve_full_isl", "long_prefill_token_threshold"):
        assert len({case["config"][setting] for case in recorded}) >= 2, setting
    rows = [row for case in recorded for row in case["trace"]]
    assert sum(len(row[PREEMPTED]) for row in rows) > 200
    assert sum(bool(case["aborts"]) for case in recorded) > 40
    assert (sum(len(row[CACHED]) for row in rows) > 200) == ("-prefix" in name(recording))


@pytest.mark.parametrize("recording", [r for r in RECORDINGS if "-prefix" in name(r)], ids=name)
def test_the_same_prompt_comes_at_every_moment(recording: Path) -> None:
    """In one step with the first of its kind, soon after it and long after it."""
    gaps = []
    for case in cases(recording):
        first: dict[tuple[int, int], int] = {}
        for request in case["requests"]:
            if request["prefix_tokens"] == request["prompt_tokens"]:
                prompt = (request["prefix_group"], request["prompt_tokens"])
                if prompt in first:
                    gaps.append(request["arrival_step"] - first[prompt])
                first.setdefault(prompt, request["arrival_step"])
    assert sum(gap == 0 for gap in gaps) > 10
    assert sum(0 < gap <= 4 for gap in gaps) > 10
    assert sum(gap >= 40 for gap in gaps) > 10


@pytest.mark.parametrize("recording", [r for r in RECORDINGS if "-async" in name(r)], ids=name)
def test_a_preempted_request_can_finish_on_the_token_in_flight(recording: Path) -> None:
    """Asynchronous: its last token was on the way when its blocks were taken."""
    rows = [row for case in cases(recording) for row in case["trace"]]
    assert any(set(row[PREEMPTED]) & set(row[FINISHED]) for row in rows)


# -- our scheduler ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recording", [*RECORDINGS, *NEWER], ids=lambda path: f"{path.parent.name}-{name(path)}"
)
def test_every_case_is_repeated_exactly(recording: Path) -> None:
    """Tokens of each request, preemptions, finishes, free blocks, cached tokens, in every step."""
    report = check(recording)
    assert report.mismatches == []
    assert report.matched == report.cases == len(lines(recording))


def test_the_versions_differ_where_a_request_preempts_itself() -> None:
    """vLLM 0.33.0 goes on with the next of the batch, 0.32.0 ends the step: only priorities show it."""
    assert {name(path) for path in NEWER} == {group for group in GROUPS if "priority" in group}
    for path in NEWER:
        older, newer = cases(HERE / "recordings" / path.name), cases(path)
        assert [case["requests"] for case in older] == [case["requests"] for case in newer]
        assert any(a["trace"] != b["trace"] for a, b in zip(older, newer, strict=True))
        taken_for_older = [case | {"config": case["config"] | {"engine_version": "0.32.0"}} for case in newer]
        assert any(compare(case)[1] is not None for case in taken_for_older)


# -- what does not agree is noticed ----------------------------------------------------------------


def alter_tokens(row: list[Any]) -> bool:
    """One request gets a token more."""
    if row[TOKENS]:
        row[TOKENS][min(row[TOKENS])] += 1
    return bool(row[TOKENS])


def alter_preempted(row: list[Any]) -> bool:
    """A preemption is forgotten."""
    return bool(row[PREEMPTED]) and bool(row[PREEMPTED].pop())


def alter_finished(row: list[Any]) -> bool:
    """A finish is forgotten."""
    return bool(row[FINISHED]) and bool(row[FINISHED].pop())


def alter_free_blocks(row: list[Any]) -> bool:
    """A block more is free."""
    row[FREE_BLOCKS] += 1
    return True


def alter_cached(row: list[Any]) -> bool:
    """A first-time request found a token more in the prefix cache, or one where it found none."""
    if row[TOKENS]:
        found = min(row[CACHED] or row[TOKENS])
        row[CACHED][found] = row[CACHED].get(found, 0) + 1
    return bool(row[TOKENS])


COLUMNS = (alter_tokens, alter_preempted, alter_finished, alter_free_blocks, alter_cached)


@pytest.mark.parametrize("alter", COLUMNS)
@pytest.mark.parametrize("recording", RECORDINGS, ids=name)
def test_one_altered_number_is_caught_at_its_step(recording: Path, alter: Any, tmp_path: Path) -> None:
    """In any column: each altered case differs, first in the altered row."""
    draw, altered, steps = random.Random(name(recording)), [], {}
    for case in map(json.loads, draw.sample(lines(recording), 40)):
        rows = draw.sample(case["trace"], len(case["trace"]))
        row = next((row for row in rows if alter(row)), None)
        if row is not None:
            altered.append(case)
            steps[case["case"]] = row[STEP]
    assert len(altered) > 10
    report = check(written(tmp_path, *altered))
    assert report.matched == 0
    assert {found.case: found.step for found in report.mismatches} == steps


# -- recordings at fault ---------------------------------------------------------------------------


def written(folder: Path, *recorded: Any) -> Path:
    """A recording of these cases; strings are lines as they are."""
    path = folder / "some.jsonl"
    text = "".join(f"{case if isinstance(case, str) else json.dumps(case)}\n" for case in recorded)
    path.write_text(text, encoding="utf-8")
    return path


def sentence(path: Path) -> str:
    """The one sentence that a recording at fault is refused with."""
    with pytest.raises(InputFault) as caught:
        check(path)
    (found,) = caught.value.faults
    return found


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("batches_in_flight", 2, "config has unknown settings batches_in_flight"),
        ("async_scheduling", "on", "config.async_scheduling must be true or false (got 'on')"),
        ("watermark", 1.0, "config.watermark must be a number >= 0 and below 1 (got 1.0)"),
        ("watermark", "1%", "config.watermark must be a number >= 0 and below 1 (got '1%')"),
    ],
)
def test_a_setting_at_fault_is_named_with_its_line(
    tmp_path: Path, setting: str, value: Any, words: str
) -> None:
    """The second case of the file has it."""
    first, second = cases(RECORDINGS[0])[:2]
    second["config"][setting] = value
    path = written(tmp_path, first, second)
    assert sentence(path).startswith(f"{path}:2: {words}")


def test_a_truncated_archive_says_how_far_it_could_be_read(tmp_path: Path) -> None:
    """Half of a recording is no recording, however many of its cases match."""
    path = tmp_path / "half.jsonl.gz"
    whole = RECORDINGS[0].read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert re.match(
        rf"{re.escape(str(path))}: cannot be read as a recording past line \d+ \(", sentence(path)
    )


def test_a_truncated_line_is_refused_with_its_number(tmp_path: Path) -> None:
    """The last line breaks off: it is no JSON."""
    first, second = lines(RECORDINGS[0])[:2]
    path = written(tmp_path, first.strip(), second[: len(second) // 2])
    assert sentence(path).startswith(f"{path}:2: must be one JSON object a line (")


# -- the comparison of two recordings --------------------------------------------------------------


def test_two_recordings_are_compared_step_by_step(tmp_path: Path) -> None:
    """The first step at which a case parts is printed, and the exit status tells."""
    old = cases(RECORDINGS[0])[:3]
    new = copy.deepcopy(old)
    new[1]["config"]["engine_version"] = "0.99"
    assert compared(tmp_path, old, new) == (0, "3 of 3 cases agree in every step\n")
    new[1]["trace"][4][FREE_BLOCKS] += 1
    free = old[1]["trace"][4][FREE_BLOCKS]
    assert compared(tmp_path, old, new) == (
        1,
        f"case {old[1]['case']}, step 5: free blocks {free} -> {free + 1}\n"
        "2 of 3 cases agree in every step\n",
    )
    new[1]["requests"][0]["max_tokens"] += 1
    status, text = compared(tmp_path, old, new[:2])
    assert status == 2
    assert text.startswith(f"not the same cases: only in one [{old[2]['case']}]")


def compared(folder: Path, *recordings: list[dict[str, Any]]) -> tuple[int, str]:
    """Exit status and text of tests/record/compare.py."""
    paths = [folder / f"{number}.jsonl.gz" for number in range(len(recordings))]
    for path, recorded in zip(paths, recordings, strict=True):
        with gzip.open(path, "wt", encoding="utf-8") as out:
            out.writelines(json.dumps(case) + "\n" for case in recorded)
    run = subprocess.run(
        [sys.executable, HERE / "record" / "compare.py", *paths], capture_output=True, text=True, check=False
    )
    assert run.stderr == ""
    return run.returncode, run.stdout


def test_the_cases_come_from_the_seed_alone() -> None:
    """So that another engine version is given the same: the recorded inputs are made again."""
    spec = importlib.util.spec_from_file_location("random_cases", HERE / "record" / "random_cases.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    for recording in RECORDINGS:
        recorded = cases(recording)[7]
        group = made.Group(
            recorded["config"]["policy"],
            recorded["config"]["enable_prefix_caching"],
            recorded["config"]["async_scheduling"],
        )
        seed = 10 if group.name == "priority-prefix" else 1  # as tests/record/README.md says
        again = made.random_case(seed, recorded["case"], group, large=False)
        given = {key: value for key, value in recorded["config"].items() if not key.startswith("engine")}
        del recorded["trace"]
        assert again == recorded | {"config": given}
