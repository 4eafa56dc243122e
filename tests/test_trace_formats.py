"""Every format of recorded traffic, by a few lines of each: times, tokens, blocks, sessions, classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traces

from sim.faults import InputFault
from sim.scenario.trace_keys import TRACE_FORMATS, TRACE_ROLES
from sim.workload import read_trace
from sim.workload.readers.formats import FORMATS, ROLES
from sim.workload.readers.reading import Reading
from sim.workload.trace import Trace, parse_trace

SHARED = Path(__file__).parents[1].parent / "shared" / "data" / "traces"


def lines(*records: dict[str, Any]) -> str:
    """*records* as JSON lines."""
    return "\n".join(map(json.dumps, records))


def read(name: str, text: str, **reading: Any) -> Trace:
    """The trace in a file called *name*."""
    return parse_trace(text.encode(), name, Reading(**reading))


MOONCAKE = {"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 2000]}
CHAT = {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 20, "output_length": 132,
        "type": "text", "turn": 1, "hash_ids": [4, 5]}  # fmt: skip
BENCHMARK = {"date": "20250101", "request_rate": "inf", "input_lens": [100, 200, 300],
             "output_lens": [7, 0, 9], "ttfts": [0.1, 0.0, 0.2], "errors": ["", "refused", ""]}  # fmt: skip
COMMON = '10.0.0.1 - - [26/Oct/2025:02:59:59 +0200] "POST /v1/chat HTTP/1.1" 200 400\n'

SAMPLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "azure": ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
              "2023-11-16 18:17:04.0319600,3180,8\r\n", {}),
    "azure 2024": ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                   "2024-05-10 00:00:00.009930+00:00,4808,10\n"
                   "2024-05-10 00:00:00.061930+00:00,3180,8\n", {}),
    "azure 2025": ("t.csv", "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
                   "2024-10-15 00:00:00.000001,2,4808,10\n2024-10-15 00:00:00.052001,0,3180,8\n", {}),
    "vidur": ("t.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n0.052,3180,8\n", {}),
    "mooncake": ("t.jsonl", lines(
        {"timestamp": 0, "input_length": 4808, "output_length": 10, "hash_ids": [*range(10)]},
        {"timestamp": 52, "input_length": 3180, "output_length": 8, "hash_ids": [*range(7)]}), {}),
    "timed_trace in seconds": ("t.jsonl", lines(
        {"timestamp": 0.0, "input_length": 4808, "output_length": 10},
        {"timestamp": 0.052, "input_length": 3180, "output_length": 8}), {"time_unit": "s"}),
    "timed_trace by other labels": ("t.jsonl", lines({"at": 0, "n_in": 4808, "n_out": 10},
                                                     {"at": 52, "n_in": 3180, "n_out": 8}),
                                    {"time_unit": "ms", "columns": (("arrival", "at"), ("output", "n_out"),
                                                                    ("prompt", "n_in"))}),
    "llmservingsim": ("t.jsonl", lines(
        {"input_toks": 4808, "output_toks": 10, "arrival_time_ns": 7},
        {"input_toks": 3180, "output_toks": 8, "arrival_time_ns": 52_000_007}), {}),
    "llmservingsim-measured": ("t.jsonl", lines(
        {"input_toks": 4808, "output_toks": 10, "arrival_time": 1787267980.0, "queued_ts": 1.0},
        {"input_toks": 3180, "output_toks": 8, "arrival_time": 1787267980.052, "queued_ts": 2.0}), {}),
    "aibrix": ("t.jsonl", lines(
        {"timestamp": 0, "requests": [{"prompt": "a", "prompt_length": 4808, "output_length": 10}]},
        {"timestamp": 52, "requests": [{"prompt": "b", "prompt_length": 3180, "output_length": 8}]}), {}),
    "vllm-result": ("t.json", json.dumps({"input_lens": [4808, 3180], "output_lens": [10, 8], "date": "x",
                                          "start_times": [27536.5, 27536.552]}, indent=1), {}),
    "plain": ("t.csv", "id,arrival_ms,prompt_tokens,output_tokens\na,100,4808,10\nb,152,3180,8\n", {}),
    "nginx-json": ("access.log", lines(
        {"msec": "1700000001.500", "request_time": "1.500", "status": "200", "request_length": 19232,
         "bytes_sent": 40},
        {"msec": "1700000000.052", "request_time": "0.000", "status": "200", "request_length": 12720,
         "bytes_sent": 32}),
        {"bytes_per_token": 4.0}),
    "pattern": ("access.log", "2023-11-16T18:17:03.979960Z in=4808 out=10\nstarted\n"
                "2023-11-16T18:17:04.031960Z in=3180 out=8\n",
                {"pattern": r"(?P<arrival>\S+) in=(?P<prompt>\d+) out=(?P<output>\d+)"}),
}  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES)
def test_two_requests_in_every_format(sample: str) -> None:
    """A request of 4808 and 10 tokens, and 52 ms later one of 3180 and 8, exact to the nanosecond."""
    name, text, reading = SAMPLES[sample]
    trace = read(name, text, **reading)
    assert trace.arrival_ns is not None
    assert trace.arrival_ns.tolist() == [0, 52_000_000]
    assert trace.prompt_tokens.tolist() == [4808, 3180]
    assert trace.output_tokens.tolist() == [10, 8]
    if sample in TRACE_FORMATS:
        assert trace.format == sample


def test_the_keys_and_the_readers_know_the_same_formats_and_roles() -> None:
    """The scenario's table repeats names of the readers, which it may not import."""
    assert tuple(form.name for form in FORMATS) == TRACE_FORMATS
    assert tuple(TRACE_ROLES) == ROLES


def test_the_page_is_what_the_table_makes_of_it() -> None:
    """docs/traces.md is written from the formats that are read; docs/traces.py writes it again."""
    assert traces.PAGE.read_text(encoding="utf-8") == traces.page()


def test_burstgpt_leaves_failures_out_and_tells_models_apart() -> None:
    """Seconds; a request without response tokens failed: it is dropped and counted."""
    text = ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,a,1,ChatGPT,472,18,490,Conversation log\n45,b,1,GPT-4,1087,0,1087,API log\n"
            "118,a,1,GPT-4,417,276,693,API log\n")  # fmt: skip
    trace = read("BurstGPT_1.csv", text)
    assert trace.format == "burstgpt"
    assert trace.arrival_ns is not None
    assert (trace.arrival_ns / 1e9).tolist() == [0, 113]
    assert trace.notes == {"zero_output_dropped": 1}
    assert trace.classes is not None
    assert [trace.class_names[number] for number in trace.classes] == ["ChatGPT", "GPT-4"]
    assert trace.sessions is not None
    assert trace.sessions[0] == trace.sessions[1]
    by_log = read("BurstGPT_1.csv", text, columns=(("class", "Log Type"),))
    assert by_log.class_names == ("Conversation log", "API log")


def test_bailian_turns_belong_to_the_session_of_their_parent() -> None:
    """Blocks of 16 tokens, seconds; a chain of parents is one session."""
    chats = [{**CHAT, "chat_id": chat, "parent_chat_id": parent, "timestamp": chat}
             for chat, parent in ((159, -1), (160, -1), (161, 159), (162, 161))]  # fmt: skip
    trace = read("t.jsonl", lines(*chats))
    assert trace.format == "bailian"
    assert trace.chains is not None
    assert trace.chains.block_tokens == 16
    assert trace.sessions is not None
    same = trace.sessions[:, None] == trace.sessions
    assert same[0].tolist() == [True, False, True, True]


def test_delays_of_sessions_wait_for_the_answer() -> None:
    """aiperf's lines without a time come a delay (ms) after the end of their session's line before; the time
    that they get is the one at which they would come if answers took none."""
    turn = {"input_length": 5, "output_length": 2}
    trace = read("t.jsonl", lines({**turn, "session_id": "a", "timestamp": 1000},
                                  {**turn, "session_id": "a", "delay": 500},
                                  {**turn, "session_id": "b", "timestamp": 1100},
                                  {**turn, "session_id": "a", "delay": 250}))  # fmt: skip
    assert trace.format == "mooncake"
    assert trace.arrival_ns is not None
    assert (trace.arrival_ns / 1e6).tolist() == [0, 100, 500, 750]
    assert trace.delay_ns is not None
    assert (trace.delay_ns / 1e6).tolist() == [-1e-6, -1e-6, 500, 250]
    lost = lines({**turn, "session_id": "a", "delay": 500}, {**turn, "session_id": "a", "timestamp": 1000})
    with pytest.raises(InputFault, match=r"t\.jsonl:1: has no time, and no delay after another request"):
        read("t.jsonl", lost)


def test_llmservingsim_sessions_call_tools_between_requests() -> None:
    """Each of `sub_requests` follows the one before by the tool's time."""
    calls = [{"input_toks": 10, "output_toks": 1, "tool_duration_ns": 3000},
             {"input_toks": 20, "output_toks": 2, "tool_duration_ns": 0}]  # fmt: skip
    trace = read("t.jsonl", lines(
        {"session_id": "s", "arrival_time_ns": 500, "sub_requests": calls},
        {"session_id": "r", "arrival_time_ns": 900, "sub_requests": calls[:1]}))  # fmt: skip
    assert trace.format == "llmservingsim"
    assert trace.arrival_ns is not None
    assert trace.arrival_ns.tolist() == [0, 400, 3000]
    assert trace.delay_ns is not None
    assert trace.delay_ns.tolist() == [-1, -1, 3000]
    assert trace.prompt_tokens.tolist() == [10, 10, 20]


def test_requests_of_one_aibrix_line_come_at_once() -> None:
    """All of a line's requests have its time."""
    part = {"prompt_length": 101, "output_length": 3, "session_id": 0}
    trace = read(
        "t.jsonl", lines({"timestamp": 19, "requests": [part, part]}, {"timestamp": 29, "requests": [part]})
    )
    assert trace.arrival_ns is not None
    assert (trace.arrival_ns / 1e6).tolist() == [0, 0, 10]
    with pytest.raises(InputFault, match=r"t\.jsonl:1: output_length is empty"):
        read("t.jsonl", lines({"timestamp": 19, "requests": [{**part, "output_length": None}]}))


def test_a_benchmarks_result_is_traffic() -> None:
    """Errors are failed requests; without start times it has lengths alone."""
    trace = read("result.json", json.dumps({**BENCHMARK, "start_times": [5.0, 5.5, 6.25]}))
    assert trace.arrival_ns is not None
    assert (trace.arrival_ns / 1e9).tolist() == [0, 1.25]
    assert trace.notes == {"failed_dropped": 1}
    untimed = read("result.json", json.dumps(BENCHMARK))
    assert untimed.prompt_tokens.tolist() == [100, 300]
    with pytest.raises(InputFault, match="no column for the arrival times"):
        untimed.require_times()


def test_texts_become_tokens_by_their_bytes() -> None:
    """vLLM's custom dataset has prompts as text: so many bytes a token, and a note that says so."""
    text = lines({"prompt": "twelve bytes", "output_tokens": 5}, {"prompt": "caf\u00e9", "output_tokens": 7})
    trace = read("t.jsonl", text, bytes_per_token=4.0)
    assert trace.format == "vllm-custom"
    assert trace.prompt_tokens.tolist() == [3, 1]
    assert trace.notes == {"tokens_estimated_from_bytes": 2}
    with pytest.raises(InputFault, match=r"prompt has no tokens but bytes; .* trace\.bytes_per_token: 4"):
        read("t.jsonl", text)


def test_a_common_log_is_read_across_the_end_of_summer_time() -> None:
    """Times with zones are instants: an hour later on the clock's change is one second. Failed requests are
    left out and counted, or kept; without prompts a log has arrivals alone."""
    text = COMMON + COMMON.replace("02:59:59 +0200", "02:00:00 +0100") + COMMON.replace(" 200 ", " 503 ")
    trace = read("access.log", text, lengths=False)
    assert trace.format == "common-log"
    assert trace.arrival_ns is not None
    assert (trace.arrival_ns / 1e9).tolist() == [0, 1]
    assert trace.notes == {"failed_dropped": 1, "times_of_another_zone": 1}
    assert len(read("access.log", text, lengths=False, failed="keep")) == 3
    with pytest.raises(InputFault, match=r"no column for the prompt tokens .* or give `lengths` of another"):
        read("access.log", text)


def test_zones_east_and_west_of_utc_are_hours_and_minutes() -> None:
    """Noon in UTC, and a second later each in zones behind and ahead of it, not all of whole hours."""
    written = ["12:00:00 +0000", "06:30:01 -0530", "17:45:02 +0545", "09:00:03 -0300"]
    text = "".join(COMMON.replace("02:59:59 +0200", clock) for clock in written)
    trace = read("access.log", text, lengths=False)
    assert trace.arrival_ns is not None
    assert trace.arrival_ns.tolist() == [0, 10**9, 2 * 10**9, 3 * 10**9]
    assert trace.notes["times_of_another_zone"] == 3


def test_parquet_has_rows_in_place_of_lines(tmp_path: Path) -> None:
    """Whole numbers, times and lists as they are stored, faults by row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    times = np.array(
        ["2023-11-16T18:17:03.979960000", "2023-11-16T18:17:04.031960100"], dtype="datetime64[ns]"
    )
    outputs = pa.array([10, 8], pa.int32())
    table = pa.table({"TIMESTAMP": times, "prompt_tokens": [4808, 3180], "output_tokens": outputs,
                      "priority": [1, 0], "hash_ids": [[1, 2], [1, 3]]})  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.arrival_ns is not None
    assert trace.arrival_ns.tolist() == [0, 52_000_100]
    assert trace.prompt_tokens.tolist() == [4808, 3180]
    assert trace.priorities is not None
    assert trace.priorities.tolist() == [1, 0]
    assert trace.chains is not None
    assert trace.chains.offsets.tolist() == [0, 2, 4]
    faulty = table.set_column(1, "prompt_tokens", pa.array([4808.0, 0.5])).set_column(
        2, "output_tokens", [[None, 8]]
    )
    pq.write_table(faulty, tmp_path / "f.parquet")
    with pytest.raises(InputFault) as caught:
        read_trace(tmp_path / "f.parquet")
    assert [fault.split("f.parquet")[1] for fault in caught.value.faults] == [
        ":1: output_tokens is empty",
        ":2: prompt_tokens must be at least 1 and at most 1e9 (got 0.5)",
    ]
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-40])
    with pytest.raises(InputFault, match=r"cut\.parquet is no whole Parquet file"):
        read_trace(tmp_path / "cut.parquet")


def test_ids_may_stand_in_any_kind_of_file() -> None:
    """A column of lists in CSV is one of JSON; texts are ids too."""
    text = (
        'arrival_s,prompt_tokens,output_tokens,hash_ids\n0,40,1,"[1, 2, 3]"\n1,40,1,"[""1"", 2, 4]"\n2,8,1,\n'
    )
    trace = read("t.csv", text)
    assert trace.chains is not None
    assert np.diff(trace.chains.offsets).tolist() == [3, 3, 0]
    assert list(trace.chains.names) == [1, 2, 3, "1", 4]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recorded traces are not here")
@pytest.mark.parametrize(
    ("path", "form", "rows", "span_s"),
    [
        ("azure2023/AzureLLMInferenceTrace_code.csv", "azure", 8819, 3436),
        ("azure2023/AzureLLMInferenceTrace_conv.csv", "azure", 19366, 3502),
        ("mooncake/synthetic_trace.jsonl.gz", "mooncake", 3993, 1022),
        ("vllm_rtx4090/RTX4090_Llama-3.1-8B__requests.jsonl", "llmservingsim-measured", 300, 29),
    ],
)
def test_recorded_traces_as_they_were_published(path: str, form: str, rows: int, span_s: int) -> None:
    """Rows and spans as their descriptions have them."""
    trace = read_trace(SHARED / path)
    assert (trace.format, len(trace)) == (form, rows)
    assert trace.arrival_ns is not None
    assert round(trace.arrival_ns[-1] / 1e9) in (span_s, span_s + 1)
