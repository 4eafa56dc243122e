"""The formats of recorded traffic: by which columns each is known, its unit of time, its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from sim.faults import InputFault, did_you_mean
from sim.workload.readers import nested
from sim.workload.readers.reading import Reading
from sim.workload.readers.times import DIGITS

Record = Mapping[str, Any]

ARRIVAL_UNITS: dict[str, str | None] = {
    **{f"{stem}_{unit}": unit for stem in ("arrival", "arrival_time", "timestamp") for unit in DIGITS},
    "arrived_at": "s",
    "start_times": "s",
    "msec": "s",
    "time_iso8601": "iso",
    "TIMESTAMP": None,
}
"""The columns of arrivals, and the unit that the name tells; None where the format tells it."""

NAMES: dict[str, tuple[str, ...]] = {
    "arrival": tuple(ARRIVAL_UNITS),
    "prompt": (
        "prompt_tokens", "ContextTokens", "num_prefill_tokens", "input_tokens", "input_length",
        "Request tokens", "input_toks", "prompt_length", "input_lens",
    ),
    "output": (
        "output_tokens", "GeneratedTokens", "num_decode_tokens", "output_length", "Response tokens",
        "output_toks", "output_lens",
    ),
    "prompt_bytes": ("prompt_bytes", "request_length"),
    "output_bytes": ("output_bytes", "body_bytes_sent", "bytes_sent"),
    "prompt_text": (),
    "hash_ids": ("hash_ids",),
    "session": ("session_id", "Session ID"),
    "parent": (),
    "class": ("class", "tenant"),
    "priority": ("priority",),
    "status": ("status",),
    "duration": ("request_time",),
    "delay": (),
}  # fmt: skip
"""By role the columns that have it, in any case; `workload.trace.columns` names others."""

ROLES = tuple(NAMES)


@dataclass(frozen=True)
class Format:
    """One way to record traffic.

    marks: columns that tell it, in any case; each of one of the groups. kinds: csv, json, parquet or log.
    unit: of the arrivals, where the column's name does not tell. block_tokens: of each of hash_ids.
    names: columns by role that only this format has, the first that is there. delay_unit: of the delays.
    flatten: the requests of a record that holds several. pattern: of a log's line. rules: what the reader
    does, in sentences.
    """

    name: str
    made_by: str
    marks: tuple[tuple[str, ...], ...]
    kinds: tuple[str, ...] = ("csv", "json", "parquet")
    unit: str | None = None
    block_tokens: int | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    delay_unit: str = "ns"
    flatten: Callable[[Record], Iterable[Record]] | None = None
    pattern: str = ""
    rules: tuple[str, ...] = ()


_COMMON_LOG = (
    r'^(?P<host>\S+) \S+ \S+ \[(?P<arrival>[^\]]+)\] "(?P<request>[^"]*)" '
    r"(?P<status>\d{3}) (?P<output_bytes>\d+|-)"
)

FORMATS: tuple[Format, ...] = (
    Format("vllm-result", "`vllm bench serve --save-detailed`, SGLang's `--output-details`",
           (("input_lens", "output_lens"),), ("json",), "s", flatten=nested.benchmark_requests,
           rules=("Requests with an error are failed ones.",)),
    Format("aibrix", "AIBrix' workload generator", (("timestamp", "requests"),), ("json",), "ms",
           flatten=nested.simultaneous_requests,
           rules=("The requests of a line come at its timestamp.",)),
    Format("llmservingsim", "LLMServingSim", (("arrival_time_ns",),), ("json",), "ns",
           names={"delay": ("delay_ns",)}, flatten=nested.session_requests,
           rules=("Each of `sub_requests` is sent when the one before has ended and its "
                  "`tool_duration_ns` have passed.",)),
    Format("llmservingsim-measured", "LLMServingSim's measured runs", (("arrival_time", "input_toks"),),
           unit="s", names={"arrival": ("arrival_time",)}),
    Format("burstgpt", "BurstGPT (CC-BY 4.0); `burst_gpt_trace` of aiperf",
           (("timestamp", "request tokens", "response tokens"),), unit="s", names={"class": ("Model",)},
           rules=("A request without an answer has failed; it is left out and counted.",
                  "`class: Log Type` under `columns` tells API calls from conversations instead.")),
    Format("azure", "Azure LLM inference traces of 2023, 2024 and 2025 (CC-BY 4.0)",
           (("timestamp", "contexttokens", "generatedtokens"),), unit="iso",
           rules=("All digits of the times count (100 ns in 2023, 1 us in 2024).",
                  "`NumImages` (2025) is not read.")),
    Format("vidur", "vidur, splitwise-sim", (("arrived_at",),), unit="s"),
    Format("bailian", "Qwen-Bailian (Apache-2.0); `bailian_trace` of aiperf",
           (("timestamp", "chat_id"),), unit="s", block_tokens=16,
           names={"session": ("chat_id",), "parent": ("parent_chat_id",), "class": ("type",)},
           rules=("A turn belongs to the session of its `parent_chat_id`.",)),
    Format("mooncake", "Mooncake (Apache-2.0); `mooncake_trace` of aiperf, `timed_trace` of vLLM",
           (("timestamp", "input_length"), ("delay", "input_length"), ("timestamp", "text_input")),
           unit="ms", block_tokens=512,
           names={"delay": ("delay",), "prompt_text": ("text_input",)}, delay_unit="ms",
           rules=("A line without `timestamp` but with `session_id` and `delay` is sent so long after the "
                  "session's line before has ended.",
                  "vLLM's `timed_trace` may have other units and blocks: `trace.time_unit`, "
                  "`prefixes.block_tokens`.")),
    Format("nginx-json", "nginx with a JSON `log_format`", (("msec",), ("time_iso8601",)), ("json",),
           names={"arrival": ("msec", "time_iso8601"), "output_bytes": ("body_bytes_sent", "bytes_sent")},
           rules=("`request_time` is taken off the time, which is that of the end.",)),
    Format("vllm-custom", "vLLM's custom dataset", (("prompt",),), ("json",),
           names={"prompt_text": ("prompt",)},
           rules=("It has no times: for `lengths` alone.",)),
    Format("common-log", "Apache and nginx, common and combined log format", (), ("log",), "iso",
           pattern=_COMMON_LOG),
    Format("pattern", "any log, by `trace.pattern`", (), ("log",)),
    Format("plain", "any table with a request a row", ()),
)  # fmt: skip


def recognise(header: Sequence[str], kind: str, reading: Reading) -> Format:
    """The format that *reading* names, or the first whose marks a *header* of a file of *kind* has."""
    if reading.format is not None:
        named_so = [each for each in FORMATS if each.name == reading.format]
        if not named_so:
            known = [each.name for each in FORMATS]
            raise InputFault(
                f"trace.format {reading.format} is unknown{did_you_mean(reading.format, known, show=20)}"
            )
        return named_so[0]
    if reading.pattern is not None:
        return next(each for each in FORMATS if each.name == "pattern")
    there = {column.lower() for column in header}
    fitting = (
        each
        for each in FORMATS
        if kind in each.kinds and (not each.marks or any(there.issuperset(marks) for marks in each.marks))
    )
    return next(fitting)


def named(header: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns of *header* that are called one of *names*, in any case."""
    wanted = [name.lower() for name in names]
    return [column for column in header if column.lower() in wanted]


def missing(meaning: str, names: Sequence[str], header: Sequence[str]) -> str:
    """The sentence on a column that is not there, with the names it may have and near ones that are."""
    spelt = {name.lower(): name for name in names}
    known = {name.lower() for others in NAMES.values() for name in others}
    strange = [column for column in header if column.lower() not in known]
    near = [(column, get_close_matches(column.lower(), spelt, n=1, cutoff=0.75)) for column in strange]
    meant = "".join(f"; {column}: did you mean {spelt[match[0]]}?" for column, match in near if match)
    return f"no column for {meaning} ({', '.join(names)}); the columns are {', '.join(header)}{meant}"
