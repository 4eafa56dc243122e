"""Clumsy traces: each is a sentence with the file and the line, or a rule whose use is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sim.faults import InputFault
from sim.workload import read_trace
from sim.workload.readers.reading import Reading
from sim.workload.trace import parse_trace

PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
DATES = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
LINE = '{"timestamp": 1, "input_length": 5, "output_length": 2}\n'


def rows(times: Any) -> str:
    """A row for each of *times*, no two alike."""
    return "".join(f"{time},{row + 1},5\n" for row, time in enumerate(times))


def hours(*clock: int) -> list[str]:
    """Dates on one day, at *clock* and every five minutes of the hour from it on."""
    return [f"2025-10-26 {hour:02}:{minute:02}:00" for hour in clock for minute in range(0, 60, 5)]


def faults_of(name: str, content: str | bytes, **reading: Any) -> tuple[str, ...]:
    """The sentences that a file called *name* earns."""
    with pytest.raises(InputFault) as caught:
        parse_trace(content.encode() if isinstance(content, str) else content, name, Reading(**reading))
    return caught.value.faults


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.csv", "time,prompt_tokens,output_tokens\n1,2,3\n", "t.csv:1: no column for the arrival times"),
        ("t.csv", "timestamp,prompt_tokens,output_tokens\n1,2,3\n11,2,3\n",
         "t.csv:1: timestamp is a number of unknown unit (got 1); write seconds and name the column "
         "arrival_s, or say trace.time_unit: s (0.1 requests/s), ms (100 requests/s)"),
        ("t.jsonl", '{"timestamp": 1, "prompt_tokens": 2, "output_tokens": 3}\n', "of unknown unit (got 1)"),
        ("t.csv", "arrival_s;prompt_tokens;output_tokens\n1,5;2;3\n", "t.csv:1: the fields are separated"),
        ("t.csv", PLAIN + '0,"1,024",4\n', "t.csv:2: prompt_tokens is written with thousands commas; write"),
        ("t.csv", PLAIN + "0,12.5,4\n", "t.csv:2: prompt_tokens must be a whole number of tokens (got 12.5)"),
        ("t.csv", PLAIN + "0,NaN,4\n", "t.csv:2: prompt_tokens must be a number (got 'NaN')"),
        ("t.csv", PLAIN + "0,3,-4\n", "t.csv:2: output_tokens must be at least 0"),
        ("t.csv", PLAIN + "0,3,4\n0,3\n", "t.csv:3: 2 fields, but the header has 3"),
        ("t.csv", PLAIN + '0,"3\n",4\n0,x,4\n', "t.csv:4: prompt_tokens must be a number (got 'x')"),
        ("t.csv", PLAIN + rows(range(9)) + LINE, "t.csv:11: JSON in a CSV file: two formats in one file"),
        ("t.csv", LINE * 2 + "1,2,3\n", "t.csv:3: is not JSON"),
        ("t.csv", PLAIN + rows(range(9)) + DATES + rows(hours(1)), "t.csv:11: a second header: two"),
        ("t.csv", PLAIN + rows([*range(60), *range(50)]),
         "t.csv:62: the time goes back by 59 s here, of 59 s so far: two traces in one file?"),
        ("t.csv", DATES + rows([*hours(0, 1, 2, 2, 3)]),
         "t.csv:38: the time goes back by an hour here: a clock set back at the end of summer time?"),
        ("t.csv", DATES + rows(["2025-10-26 01:00:00+02:00", "2025-10-26 01:00:00+01:00"]),
         "t.csv:3: TIMESTAMP must have one time zone throughout (got +0100, the first request has +0200)"),
        ("t.jsonl", json.dumps([json.loads(LINE)]), "t.jsonl:1: the file is a JSON array; write each of its"),
        ("t.jsonl", "[\n" + LINE + "]", "t.jsonl:1: the file is a JSON array"),
        ("t.jsonl", LINE + "timestamp,input_length\n", "t.jsonl:2: is not JSON"),
        ("t.jsonl", LINE + LINE[:20], "t.jsonl:2: is not JSON"),
        ("t.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "t.csv is a binary file; a trace is text in UTF-8"),
        ("t.csv", PLAIN.encode("utf-16"), "t.csv is text in UTF-16; save it as UTF-8"),
        ("t.csv", b"PK\x03\x04zip", "t.csv is a zip archive; unpack it"),
        ("t.csv", gzip.compress((PLAIN + rows(range(10**4))).encode())[:-9], "t.csv: the compressed data"),
        ("access.log", "GET /\nGET /\n", "access.log: no line fits trace.pattern"),
        ("access.log", "\n", "access.log is empty"),
        ("t.json", "{\n", "t.json:1: is not JSON"),
    ],
)  # fmt: skip
def test_a_clumsy_file_is_one_sentence(name: str, content: str | bytes, sentence: str) -> None:
    """One fault, with the file and, where there is one, the line; what came, and what to do."""
    if "no column for the arrival" in sentence:
        with pytest.raises(InputFault) as caught:
            parse_trace(str(content).encode(), name).require_times()
        faults = caught.value.faults
    else:
        faults = faults_of(name, content)
    assert len(faults) == 1
    assert sentence in faults[0]


@pytest.mark.parametrize(
    ("reading", "sentence"),
    [
        ({"format": "azur"}, "trace.format azur is unknown; did you mean azure?"),
        ({"columns": (("arrival", "when"),)}, "t.csv:1: there is no column when (trace.columns.arrival)"),
        ({"columns": (("arrival", "output_tokens"),)}, "output_tokens is a number of unknown unit (got 3)"),
        ({"pattern": "(?P<arrival>"}, "trace.pattern must be a regular expression ("),
        ({"pattern": "x"}, "trace.pattern must have named groups such as (?P<arrival>...)"),
    ],
)
def test_a_clumsy_reading_is_one_sentence(reading: dict[str, Any], sentence: str) -> None:
    """What `workload.trace` says wrongly."""
    faults = faults_of("t.csv", PLAIN + "1,2,3\n", **reading)
    assert len(faults) == 1
    assert sentence in faults[0]


@pytest.mark.parametrize(
    ("name", "content", "notes"),
    [
        ("t.csv", PLAIN + "0,1,2\n0,1,2\n0,1,3\n1,1,2\n", {"trace_rows_alike": 1}),
        ("t.csv", PLAIN + rows([*range(50), 20, *range(51, 99)]), {"trace_rows_sorted": 1}),
        ("t.csv", PLAIN + rows([second ^ 3 for second in range(40)]), {"trace_rows_sorted": 30}),
        ("t.csv", DATES + rows([*hours(0, 1), "2025-10-26 01:54:59", *hours(2)]), {"trace_rows_sorted": 1}),
        ("t.csv", PLAIN + "0,1,0\n1,1,2\n", {"zero_output_dropped": 1}),
        ("t.csv", PLAIN.replace("\n", ",status\n") + "0,1,5,200\n1,1,5,503\n2,1,5,error\n",
         {"failed_dropped": 2}),
        ("t.jsonl", LINE + LINE.replace(" 5,", ' 5, "hash_ids": [1],'), {}),
    ],
)  # fmt: skip
def test_what_is_mended_is_counted(name: str, content: str, notes: dict[str, int]) -> None:
    """Doubles are kept, stragglers sorted, failures left out: each with its count."""
    assert parse_trace(content.encode(), name).notes == notes


@pytest.mark.parametrize(("before", "after"), [(6, 6), (5, 9), (9, 5), (6, 7)])
def test_two_traces_in_one_file_are_five_steps_of_time_each(before: int, after: int) -> None:
    """As many that rise on either side of the step back are a stretch of time; fewer are stragglers."""
    content = PLAIN + rows([*range(10, 10 + before), *range(after)])
    if min(before, after) >= 6:
        (fault,) = faults_of("t.csv", content)
        assert fault.startswith(f"t.csv:{before + 2}: the time goes back by {before + 9} s here, of")
    else:
        assert parse_trace(content.encode(), "t.csv").notes == {"trace_rows_sorted": after}


def test_a_few_traces_in_one_file_are_told_and_many_are_logs_of_workers() -> None:
    """Up to three steps back, each with its line; rows of more are in no order, and sorted."""
    four, five = (PLAIN + rows([*range(9)] * count) for count in (4, 5))
    assert [fault.split(":")[1] for fault in faults_of("t.csv", four)] == ["11", "20", "29"]
    assert parse_trace(five.encode(), "t.csv").notes["trace_rows_sorted"] == 32


def test_two_traces_are_a_step_back_by_half_of_the_time_so_far() -> None:
    """Of 20 s, 10 s are one and 9 s are not."""
    half, less = (PLAIN + rows([*range(21), *range(back, 40)]) for back in (10, 11))
    (fault,) = faults_of("t.csv", half)
    assert "t.csv:23: the time goes back by 10 s here, of 20 s so far" in fault
    assert parse_trace(less.encode(), "t.csv").notes["trace_rows_sorted"] == 9


def test_who_failed_is_left_out_and_counted_in_every_block() -> None:
    """By a status from 400 on or a word; 399 and `ok` did not fail. With `failed: keep` all are sent."""
    told = {0: "400", 1: "399", 2: "ok", 3: "timeout", 4: "499", 20_000: "Timed_Out", 20_001: " rejected",
            20_002: "503", 39_998: "failure", 39_999: "error"}  # fmt: skip
    content = PLAIN.replace("\n", ",status\n")
    content += "".join(f"{row},{row % 90 + 1},5,{told.get(row, 200)}\n" for row in range(40_000))
    trace = parse_trace(content.encode(), "t.csv")
    assert (len(trace), trace.notes) == (39_992, {"failed_dropped": 8})
    kept = parse_trace(content.encode(), "t.csv", Reading(failed="keep"))
    assert (len(kept), kept.notes) == (40_000, {})


def test_a_million_faults_are_told_in_constant_memory() -> None:
    """The first twenty by line, then how many more."""
    faults = faults_of("t.csv", PLAIN + "0,0,1\n" * 30_000)
    assert len(faults) == 21
    assert faults[0].startswith("t.csv:2: ")
    assert faults[20] == "t.csv: and 29980 more"


def test_folders_and_folders_of_clients(tmp_path: Path) -> None:
    """A folder is no trace; one of ServeGen's clients is told what makes a workload of it."""
    with pytest.raises(InputFault, match="is a directory; name a trace file in it"):
        read_trace(tmp_path)
    (tmp_path / "chunk-0-trace.csv").touch()
    with pytest.raises(InputFault, match=r"describes traffic and has no requests; .* kneesim workload fit"):
        read_trace(tmp_path)


@pytest.mark.parametrize("content", [PLAIN + rows(range(40_000)), LINE * 20_000])
def test_blocks_are_no_borders(content: str) -> None:
    """A file of many blocks is read as one: lines count on, and faults keep their place."""
    name = "t.csv" if content.startswith("arrival") else "t.jsonl"
    lines = content.count("\n")
    trace = parse_trace(content.encode(), name)
    assert len(trace) == lines - (name == "t.csv")
    last = "x,1,1\n" if name == "t.csv" else LINE.replace("5", "0")
    assert faults_of(name, content + last)[0].startswith(f"{name}:{lines + 1}: ")
