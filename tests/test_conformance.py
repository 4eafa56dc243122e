"""Our scheduler repeats recorded schedules step by step, and any other number in them is noticed."""

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
from sim.validation.conformance import check, compare

RECORDING = Path(__file__).parent / "data" / "vllm_v1_0.32.0_fcfs.jsonl.gz"
FULL_RECORDING = Path(__file__).parents[1].parent / "shared" / "data" / "golden" / "vllm_v1_0.32.0.jsonl.gz"
STEP, TOKENS, PREEMPTED, FINISHED, FREE_BLOCKS, CACHED = range(6)


@cache
def lines() -> tuple[str, ...]:
    with gzip.open(RECORDING, "rt", encoding="utf-8") as recording:
        return tuple(recording)


def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines()]


def written(folder: Path, *recorded: Any, name: str = "some.jsonl") -> Path:
    """A recording of these cases; strings are lines as they are."""
    path = folder / name
    text = "".join(f"{case if isinstance(case, str) else json.dumps(case)}\n" for case in recorded)
    path.write_text(text, encoding="utf-8")
    return path


def sentence(path: Path) -> str:
    """The one sentence that a recording at fault is refused with."""
    with pytest.raises(InputFault) as caught:
        check(path)
    (found,) = caught.value.faults
    return found


# -- recorded schedules ----------------------------------------------------------------------------


def test_every_recorded_case_is_repeated_exactly() -> None:
    """All steps of all cases: tokens of each request, preemptions, finishes and free blocks."""
    report = check(RECORDING)
    assert report.mismatches == []
    assert report.unsupported == {}
    assert report.matched == report.cases == len(cases())
    assert report.steps == sum(len(case["trace"]) for case in cases())


def test_the_recording_shows_every_rule_at_work() -> None:
    """With and without gate, threshold, aborts, preemptions: an agreement about nothing proves nothing."""
    kinds = {
        (
            case["config"]["scheduler_reserve_full_isl"],
            case["config"]["long_prefill_token_threshold"] > 0,
            bool(case["aborts"]),
            any(row[PREEMPTED] for row in case["trace"]),
        )
        for case in cases()
    }
    assert len(kinds) >= 14
    assert sum(len(row[PREEMPTED]) for case in cases() for row in case["trace"]) > 50
    assert len({case["config"]["max_num_seqs"] for case in cases()}) > 3
    assert len({case["config"]["block_size"] for case in cases()}) > 1


@pytest.mark.skipif(not FULL_RECORDING.exists(), reason="the full recording is not here")
def test_the_full_recording_is_repeated() -> None:
    """Both policies, with prefix caching and without; eight cases of each kind are large."""
    report = check(FULL_RECORDING)
    assert report.mismatches == []
    assert (report.cases, report.matched) == (224, 224)


# -- what does not agree is noticed ----------------------------------------------------------------


def tokens_differ(row: list[Any], draw: random.Random) -> bool:
    """One request gets a token more or less."""
    if not row[TOKENS]:
        return False
    row[TOKENS][draw.choice(sorted(row[TOKENS]))] += draw.choice((-1, 1))
    return True


def nobody_ran(row: list[Any], draw: random.Random) -> bool:
    """One request is left out of the step."""
    if not row[TOKENS]:
        return False
    del row[TOKENS][draw.choice(sorted(row[TOKENS]))]
    return True


def blocks_differ(row: list[Any], draw: random.Random) -> bool:
    """A block more or less is free."""
    row[FREE_BLOCKS] += draw.choice((-1, 1))
    return True


def preemption_differs(row: list[Any], draw: random.Random) -> bool:
    """A preemption that was not, or one that was forgotten."""
    row[PREEMPTED] = row[PREEMPTED][1:] if row[PREEMPTED] else ["r0"]
    return True


def finish_differs(row: list[Any], draw: random.Random) -> bool:
    """A finish that was not, or one that was forgotten."""
    row[FINISHED] = row[FINISHED][1:] if row[FINISHED] else ["r0"]
    return True


def step_differs(row: list[Any], draw: random.Random) -> bool:
    """The row is said to be of another step."""
    row[STEP] += draw.choice((-1, 1))
    return True


def cached_differs(row: list[Any], draw: random.Random) -> bool:
    """Tokens were found in a prefix cache that is off."""
    row[CACHED] = {"r0": 16}
    return True


ALTERATIONS = (
    tokens_differ,
    nobody_ran,
    blocks_differ,
    preemption_differs,
    finish_differs,
    step_differs,
    cached_differs,
)


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_one_altered_number_is_found_in_its_step(alter: Any) -> None:
    """Any one change in any one row of any one case: that case differs, first at that row.

    Aborted requests may or may not be in a row's list of finished ones: that is the recorder's choice,
    and their blocks tell.
    """
    draw, altered = random.Random(alter.__name__), 0
    for case in cases():
        for _ in range(4):
            changed = copy.deepcopy(case)
            number = draw.randrange(len(case["trace"]))
            row = changed["trace"][number]
            aborts = case["aborts"].get(str(row[STEP]), ())
            if alter is finish_differs and {*row[FINISHED], "r0"} & {*aborts}:
                continue
            if not alter(row, draw):
                continue
            altered += 1
            steps, mismatch = compare(changed)
            assert mismatch is not None
            assert (mismatch.case, mismatch.step, steps) == (case["case"], row[STEP], number + 1)
            assert mismatch.expected != mismatch.got
    assert altered > 3 * len(cases()) / 2


def test_a_finish_moved_to_the_next_step_is_found() -> None:
    """The step at which a request ends is compared, not only that it ends."""
    for case in cases():
        rows = case["trace"]
        for number, row in enumerate(rows[:-1]):
            if row[FINISHED] and not case["aborts"].get(str(row[STEP])):
                rows[number + 1][FINISHED] = [*rows[number + 1][FINISHED], row[FINISHED].pop()]
                break
        else:
            continue
        _, mismatch = compare(case)
        assert mismatch is not None
        assert mismatch.step == row[STEP]


def test_only_the_altered_case_differs(tmp_path: Path) -> None:
    """The others still match, and the text says which step of which case differs in what."""
    recorded = cases()[:5]
    recorded[2]["trace"][3][FREE_BLOCKS] += 1
    report = check(written(tmp_path, *recorded))
    assert (report.cases, report.matched, len(report.mismatches)) == (5, 4, 1)
    assert report.mismatches[0].case == recorded[2]["case"]
    assert f"case {recorded[2]['case']} differs first at step 4" in report.text()
    assert "free_blocks: the engine" in report.text()


def test_a_recording_that_skips_a_step_is_no_match() -> None:
    """Steps without work are rows too: a missing row is a difference, at that row."""
    case = next(case for case in cases() if len(case["trace"]) > 20)
    del case["trace"][10]
    _, mismatch = compare(case)
    assert mismatch is not None
    assert mismatch.step == 12


def test_what_is_not_supported_yet_is_counted_and_never_a_match(tmp_path: Path) -> None:
    """Another engine's schedule, even where our scheduler would happen to do the same."""
    other, case = cases()[:2]
    other["config"] |= {"engine": "sglang"}
    why = "engine sglang"
    report = check(written(tmp_path, other, case))
    assert (report.cases, report.matched, report.mismatches) == (2, 1, [])
    assert report.unsupported == {why: 1}
    assert report.steps == len(case["trace"])
    assert report.as_dict()["not_yet_supported"] == {why: 1}
    assert "1 not yet supported" in report.text()


# -- recordings at fault ---------------------------------------------------------------------------


def test_blank_lines_are_nothing(tmp_path: Path) -> None:
    """And gzip is told by the name."""
    assert check(written(tmp_path, "", lines()[0].strip(), "  ")).matched == 1


def test_an_empty_recording_is_no_success(tmp_path: Path) -> None:
    """Nothing recorded is nothing shown: a fault, not 0 of 0."""
    for path in (written(tmp_path), written(tmp_path, "", "")):
        assert sentence(path).startswith(f"{path}: ")


def test_a_missing_recording_is_said_so(tmp_path: Path) -> None:
    """With its name, as is a folder in its place."""
    assert sentence(tmp_path / "none.jsonl.gz") == f"{tmp_path / 'none.jsonl.gz'}: no such recording"
    assert sentence(tmp_path).startswith(f"{tmp_path}: cannot be read as a recording")


def test_an_unreadable_recording_is_said_so(tmp_path: Path) -> None:
    """A truncated or damaged archive, text that is not compressed, and bytes that are no text."""
    whole = RECORDING.read_bytes()
    path = tmp_path / "some.jsonl.gz"
    middle = len(whole) // 2
    for content in (whole[:middle], whole[:10] + b"\xff" * 8 + whole[18:], b"{}"):
        path.write_bytes(content)
        assert sentence(path).startswith(f"{path}: cannot be read as a recording")
    text = tmp_path / "some.jsonl"
    text.write_bytes(b"\xff\xfe")
    assert sentence(text).startswith(f"{text}: cannot be read as a recording")


@pytest.mark.parametrize("line", ["{", "schedule", "[1, 2", "{'case': 1}"])
def test_what_is_not_json_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    """The second line is at fault."""
    path = written(tmp_path, cases()[0], line)
    assert sentence(path).startswith(f"{path}:2: must be one JSON object a line")


@pytest.mark.parametrize("line", ["5", "null", "[]", '"case"', "{}"])
def test_json_that_is_no_case_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    """Numbers, lists and empty objects are JSON, but no recorded case."""
    path = written(tmp_path, cases()[0], line)
    assert sentence(path).startswith(f"{path}:2: ")


@pytest.mark.parametrize("key", ["case", "config", "requests", "trace"])
def test_a_case_without_one_of_its_parts_is_refused(tmp_path: Path, key: str) -> None:
    """The sentence names the part."""
    case = cases()[0]
    del case[key]
    path = written(tmp_path, case)
    assert sentence(path) == f"{path}:1: a recorded case needs {key}"


def test_unknown_and_missing_settings_are_named(tmp_path: Path) -> None:
    """A setting that we do not know could change any schedule, so that nothing may be concluded."""
    case = cases()[0]
    case["config"]["batches_in_flight"] = 2
    del case["config"]["block_size"]
    path = written(tmp_path, cases()[1], case)
    found = sentence(path)
    assert found.startswith(f"{path}:2: config has unknown settings batches_in_flight and lacks block_size")
    assert "known: async_scheduling, block_size, enable_prefix_caching, engine" in found


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("config", "block_size", 0),
        ("config", "block_size", "16"),
        ("config", "max_num_seqs", None),
        ("requests", "prompt_tokens", 0),
        ("requests", "prompt_tokens", -5),
        ("requests", "max_tokens", 0),
        ("requests", "max_tokens", -1),
        ("requests", "prompt_tokens", "12"),
        ("requests", "arrival_step", None),
    ],
)
def test_impossible_numbers_are_refused_with_their_line(
    tmp_path: Path, part: str, key: str, value: Any
) -> None:
    """Sizes and lengths are whole and positive; what they would make our scheduler do says nothing."""
    case = cases()[0]
    target = case["config"] if part == "config" else case["requests"][0]
    target[key] = value
    path = written(tmp_path, case)
    assert sentence(path).startswith(f"{path}:1: ")


@pytest.mark.parametrize("row", [[1, {}, [], []], [1, [], [], [], 5, {}], {}, None, "row"])
def test_rows_of_another_shape_are_refused_with_their_line(tmp_path: Path, row: Any) -> None:
    """A row has six fields of known kinds."""
    case = cases()[0]
    case["trace"][0] = row
    path = written(tmp_path, case)
    assert sentence(path).startswith(f"{path}:1: not a recorded case")


@pytest.mark.parametrize("part", ["config", "requests", "trace"])
def test_parts_of_another_kind_are_refused_with_their_line(tmp_path: Path, part: str) -> None:
    """A number where a list or a mapping should be."""
    path = written(tmp_path, cases()[0] | {part: 7})
    assert sentence(path).startswith(f"{path}:1: ")
