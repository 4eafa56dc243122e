"""Reading recorded traffic: exact to the tick, faults by line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.faults import InputFault
from sim.workload import read_trace
from sim.workload.trace import Trace, parse_trace

EXTRACT = Path(__file__).parent / "data" / "azure-2023-conv-first-12.csv"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"


def read(text: str, zero_output: str = "drop") -> Trace:
    """The trace in *text*."""
    return parse_trace(text.encode(), "t.csv", zero_output)


def faults_of(content: str | bytes, zero_output: str = "drop") -> tuple[str, ...]:
    """The sentences that *content* earns."""
    with pytest.raises(InputFault) as caught:
        parse_trace(content.encode() if isinstance(content, str) else content, "t.csv", zero_output)
    return caught.value.faults


def test_an_azure_file_as_it_is() -> None:
    """Byte order mark, CRLF, seven decimals, no newline at the end: twelve requests, exact to 100 ns."""
    content = EXTRACT.read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    assert content.count(b"\r\n") == 12
    trace = read_trace(EXTRACT)
    assert len(trace) == 12
    assert trace.arrival_ns is not None
    assert trace.arrival_ns[:3].tolist() == [
        0,
        4_314_579_000,
        4_541_877_000,
    ]  # 46.68059, 50.995169, 51.222467
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (374, 44)
    assert trace.notes == {}


def test_requests_milliseconds_apart_stay_apart() -> None:
    """Requests at 1, 2, 9 and 11 ms are 0, 1, 8 and 10 ms after the first: no burst."""
    rows = "".join(f"2023-11-16 18:17:03.{ms:03d}0000,10,5\r\n" for ms in (1, 2, 9, 11))
    trace = read(AZURE + rows)
    assert trace.arrival_ns is not None
    assert (trace.arrival_ns / 1e9).tolist() == [0, 0.001, 0.008, 0.010]


@pytest.mark.parametrize(("unit", "in_ns"), [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)])
@pytest.mark.parametrize("ticks", [("2", "4", "11"), ("2.5", "4.25", "11.125"), ("2 ", "4", "11")], ids=str)
def test_a_unit_is_so_many_nanoseconds(unit: str, in_ns: int, ticks: tuple[str, ...], tmp_path: Path) -> None:
    """Whole numbers, decimals, those with a space, and numbers of a Parquet file; halves of a ns are even."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = [round((float(tick) - float(ticks[0])) * in_ns) for tick in ticks]
    if unit == "ns":
        expected = [round(float(tick)) - round(float(ticks[0])) for tick in ticks]
    name = f"arrival_{unit}"
    text = f"{name},prompt_tokens,output_tokens\n" + "".join(f"{tick},9,5\n" for tick in ticks)
    table = pa.table({name: [float(x) for x in ticks], "prompt_tokens": [9] * 3, "output_tokens": [5] * 3})
    if ticks[0].strip() == "2":
        table = table.set_column(0, name, pa.array(list(map(int, ticks))))
    pq.write_table(table, tmp_path / "t.parquet")
    for trace in (parse_trace(text.encode(), "t.csv"), read_trace(tmp_path / "t.parquet")):
        assert trace.arrival_ns is not None
        assert trace.arrival_ns.tolist() == expected


def test_decimals_that_no_double_has_are_rounded_and_not_cut() -> None:
    """1.001 times 1e9 is a little less than 1001000000 in doubles."""
    assert 1.001 * 1e9 < 1_001_000_000
    trace = read(PLAIN + "0,9,5\n1.001,9,5\n1.009,9,5\n")
    assert trace.arrival_ns is not None
    assert trace.arrival_ns.tolist() == [0, 1_001_000_000, 1_009_000_000]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=11))
@settings(max_examples=50, deadline=None)
def test_every_tick_counts(ticks: list[int]) -> None:
    """Times written with seven decimals come back as the same multiples of 100 ns, sorted: of eleven rows at
    most, since twelve may be two traces of six, one after the other, which are refused."""
    epoch = np.datetime64("2023-11-16T18:00:00", "ns")
    written = [str(epoch + np.timedelta64(100 * tick, "ns"))[:-2].replace("T", " ") for tick in ticks]
    trace = read(AZURE + "".join(f"{time},1,1\r\n" for time in written))
    assert trace.arrival_ns is not None
    assert trace.arrival_ns.tolist() == [100 * (tick - min(ticks)) for tick in sorted(ticks)]


@pytest.mark.parametrize(
    "text",
    [
        PLAIN + "0.5,3,4\n2,5,6\n",
        "\n" + PLAIN + "\n0.5,3,4\n\n,,\n2,5,6\n\n\n",
        "Output_Tokens, id ,ARRIVAL_S,prompt_tokens\n4,a,0.5,3\n6,b,2.0,5.0\n",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n5e-1,3,4\n20e-1,5,6",
        '"arrival_s","prompt_tokens","output_tokens"\r\n"0.5","3","4"\r\n"2"," 5","6 "\r\n',
        "arrival_s,prompt_tokens,output_tokens\n1700000000.5,3,4\n1700000002,5,6\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10T00:00:00+00:00,3,4\n2024-05-10T00:00:01.5Z,5,6\n",
    ],
    ids=["plain", "blank lines", "order and case", "other names", "quoted", "since 1970", "zoned"],
)
def test_ways_to_write_one_trace(text: str) -> None:
    """Names, order, quotes, blank lines and time forms do not matter."""
    for content in (text.encode(), b"\xef\xbb\xbf" + text.encode(), gzip.compress(text.encode())):
        trace = parse_trace(content, "t.csv")
        assert trace.arrival_ns is not None
        assert trace.arrival_ns.tolist() == [0, 1_500_000_000]
        assert trace.prompt_tokens.tolist() == [3, 5]
        assert trace.output_tokens.tolist() == [4, 6]


def test_unsorted_rows_are_sorted_and_counted() -> None:
    """Rows of one time keep the file's order; rows behind a later one are counted."""
    trace = read(PLAIN + "3,1,1\n1,2,2\n4,3,3\n1,4,4\n")
    assert trace.prompt_tokens.tolist() == [2, 4, 1, 3]
    assert trace.notes == {"trace_rows_sorted": 2}
    many = read(PLAIN + "".join(f"{time},{row},1\n" for row, time in enumerate([1, 0] * 500, start=1)))
    assert many.prompt_tokens.tolist() == [*range(2, 1001, 2), *range(1, 1001, 2)]


def test_zero_output_is_dropped_or_refused() -> None:
    """`drop` leaves the requests out and counts them; `error` names their lines; all zero serves nobody."""
    text = PLAIN + "0,5,0\n1,6,2\n2,7,0\n"
    trace = read(text)
    assert trace.prompt_tokens.tolist() == [6]
    assert trace.notes == {"zero_output_dropped": 2}
    refused = faults_of(text, zero_output="error")
    assert [fault.split(" has no")[0] for fault in refused] == ["t.csv:2:", "t.csv:4:"]
    assert "every request has zero output tokens" in faults_of(PLAIN + "0,5,0\n")[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "t.csv is empty"),
        ("\r\n\r\n", "t.csv is empty"),
        (PLAIN, "t.csv has a header and no requests"),
        ("\n\na,b,output_tokens\n0,1,2\n", "t.csv:3: no column for the prompt tokens"),
        ("arrival_s,prompt,output_tokens\n", "no column for the prompt tokens (prompt_tokens, ContextTokens"),
        (
            "arrival_s,n_in,output_tokens\n",
            "the columns are arrival_s, n_in, output_tokens; trace.columns.prompt",
        ),
        ("TIMESTAMP,ContextToken,GeneratedTokens\n", "ContextToken: did you mean ContextTokens?"),
        (
            "arrival_s,prompt_tokens,ContextTokens,output_tokens\n1,2,3,4\n",
            "t.csv:1: more than one column for the prompt: prompt_tokens, ContextTokens; keep one",
        ),
        ("0.5,3,4\n1,2,3\n", "t.csv:1: the first line must name the columns (got 0.5,3,4)"),
        (
            "arrival_s;prompt_tokens;output_tokens\n1,5;2;3\n",
            "separated by semicolons; separate them by commas",
        ),
        (PLAIN + '0,"1,024",4\n', 'prompt_tokens is written with thousands commas; write 1024, not "1,024"'),
        (
            PLAIN + "0,1,024,4\n",
            "t.csv:2: 4 fields, but the header has 3; a number must not have thousands commas",
        ),
        (PLAIN + "0,1,2\n1,5\n", "t.csv:3: 2 fields, but the header has 3"),
        (PLAIN + "0,ten,4\n", "t.csv:2: prompt_tokens must be a number (got 'ten')"),
        (PLAIN + "\n0,1,4\n0,,4\n", "t.csv:4: prompt_tokens is empty"),
        (PLAIN + "0,0,4\n", "t.csv:2: prompt_tokens must be at least 1 and at most 1e9 (got 0)"),
        (PLAIN + "0,1,-4\n", "t.csv:2: output_tokens must be at least 0 and at most 1e9 (got -4)"),
        (PLAIN + "0,1,4.5\n", "t.csv:2: output_tokens must be a whole number of tokens (got 4.5)"),
        (PLAIN + "0,1e300,4\n", "at most 1e9 (got 1e300)"),
        (PLAIN + "0,1_0,4\n", "prompt_tokens must be a number (got '1_0')"),
        (PLAIN + "-1,1,4\n", "t.csv:2: arrival_s must not be negative (got -1)"),
        (PLAIN + "nan,1,4\n", "arrival_s must be a number (got 'nan')"),
        (
            PLAIN + "1700000000000,1,4\n",
            "is too large for seconds (got 1700000000000); is it in milliseconds?",
        ),
        (PLAIN + "2023-11-16 18:17:03,1,4\n", "arrival_s must be a number (got '2023-11-16 18:17:03')"),
        (
            AZURE + "1700000000,1,4\n",
            "of unknown unit (got 1700000000); write seconds and name the column arrival_s",
        ),
        (
            AZURE + "2023-11-16,1,4\n",
            "must be a date and time such as 2023-11-16 18:17:03.9799600 (got '2023-11-16')",
        ),
        (AZURE + "2023-02-30 10:00:00,1,4\n", "t.csv:2: TIMESTAMP is no date of the calendar"),
        (
            AZURE + "2023-11-16 18:17:03Z,1,4\n2023-11-16 18:17:04+02:00,1,4\n",
            "t.csv:3: TIMESTAMP must have one time zone throughout (got +0200, the first request has +0000)",
        ),
        (
            AZURE + "2023-11-16 18:17:03,1,4\n2023-11-16 18:17:04Z,1,4\n",
            "(got +0000, the first request has none)",
        ),
        (
            PLAIN + "0,1,2\n" + PLAIN + "0,1,2\n",
            "t.csv:3: a second header: two traces in one file; split it here",
        ),
        (PLAIN + "0,1,2\n" + AZURE, "t.csv:3: a second header"),
    ],
)
def test_faults_of_a_file(text: str, sentence: str) -> None:
    """One fault, one sentence: the line, the requirement, what came."""
    faults = faults_of(text)
    assert len(faults) == 1
    assert sentence in faults[0]


def test_all_faults_come_together_in_the_files_order() -> None:
    """Columns and kinds of fault are mixed by line; two missing columns are two sentences."""
    faults = faults_of(PLAIN + "0,1\nx,0,1\n2,3,4.5\n")
    assert [fault.split(": ")[0] for fault in faults] == ["t.csv:2", "t.csv:3", "t.csv:3", "t.csv:4"]
    assert len(faults_of("a,b\n1,2\n")) == 2


def test_many_faults_are_cut_short() -> None:
    """Twenty faults in full, then how many more."""
    faults = faults_of(PLAIN + "0,1,x\n" * 33)
    assert len(faults) == 21
    assert faults[19].startswith("t.csv:21: ")
    assert faults[20] == "t.csv: and 13 more"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file names its neighbour; a directory, a cut or damaged .gz and another encoding are said."""
    (tmp_path / "day.csv").write_text(PLAIN + "0,1,2\n", encoding="utf-8")
    for path, sentence in ((tmp_path / "days.csv", r"days\.csv is not there; did you mean day\.csv\?"),
                           (tmp_path / "nowhere" / "day.csv", r"day\.csv is not there$"),
                           (tmp_path / "day", r"day is not there; did you mean day\.csv\?"),
                           (tmp_path, "is a directory")):  # fmt: skip
        with pytest.raises(InputFault, match=sentence):
            read_trace(path)
    packed = gzip.compress((PLAIN + "0,1,2\n" * 1000).encode())
    assert "the compressed data end early" in faults_of(packed[:-20])[0]
    assert "the compressed data are damaged" in faults_of(packed[:-8] + bytes(8))[0]
    assert faults_of((PLAIN + "0,1,2\n").encode() + b"0,1,\xe9\n") == (
        "t.csv:3: a trace must be text in UTF-8; save it as UTF-8",
    )


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """A trace that was read is kept until its file changes; its columns cannot be written to."""
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress((PLAIN + "0,1,2\n").encode()))
    first = read_trace(path)
    assert read_trace(path) is first
    with pytest.raises(ValueError, match="read-only"):
        first.prompt_tokens[0] = 9
    path.write_bytes(gzip.compress((PLAIN + "0,1,2\n1,3,4\n").encode()))
    assert len(read_trace(path)) == 2
