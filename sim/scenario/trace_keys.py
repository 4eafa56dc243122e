"""The keys of a workload that say how the file of its trace is read."""

from __future__ import annotations

from sim.scenario.keys import Key

TRACE_FORMATS = (
    "vllm-result", "aibrix", "llmservingsim", "llmservingsim-measured", "burstgpt", "azure", "vidur",
    "bailian", "mooncake", "nginx-json", "vllm-custom", "common-log", "pattern", "plain",
)  # fmt: skip
TRACE_ROLES = {
    "arrival": "when the request came: a date with a time of day, or a number",
    "prompt": "tokens of the prompt, at least 1",
    "output": "tokens of the answer; a request with none is left out and counted",
    "prompt_bytes": "bytes of the prompt, for `bytes_per_token`",
    "output_bytes": "bytes of the answer, for `bytes_per_token`",
    "prompt_text": "the prompt itself, for `bytes_per_token`",
    "hash_ids": "ids of the prompt's blocks, from its first token on",
    "session": "whose request it is, or of which conversation",
    "parent": "the conversation's turn before this one",
    "class": "traffic class or tenant",
    "priority": "a whole number; smaller is more urgent",
    "status": "an HTTP status or a word; a request that failed is left out and counted",
    "duration": "seconds the request took, where the arrival's column has the time of its end",
    "delay": "time from the end of the session's request before to this one, in the unit of the arrivals",
}
"""What a column of a trace may hold, and its meaning."""

TRACE_KEYS = (
    Key("trace", "mapping", "How the file of a trace is read where its columns do not tell (docs/traces.md). "
        "`workload: {base: requests.csv, trace: {...}}` is the shortest way."),
    Key("trace.format", "choice", "Its format.", choices=TRACE_FORMATS, otherwise="known by its columns"),
    Key("trace.columns", "mapping", "Which column has what, where its name is not in docs/traces.md."),
    *(Key(f"trace.columns.{role}", "text", f"The column with {meaning.partition(':')[0]}.")
      for role, meaning in TRACE_ROLES.items()),
    Key("trace.time_unit", "choice", "Of the arrivals; iso stands for dates with a time of day.",
        choices=("s", "ms", "us", "ns", "iso"),
        otherwise="by the column's name or the format; dates are iso"),
    Key("trace.pattern", "text", "A regular expression that finds a request in a line of a log; its named "
        "groups are the roles above, such as `(?P<arrival>...)` and `(?P<prompt>\\d+)`. Lines without are "
        "left out and counted."),
    Key("trace.bytes_per_token", "number", "Turns bytes into tokens, about 4 in English; results say that "
        "they are estimates.", above=0),
    Key("trace.failed", "choice", "Requests whose status says that they failed: drop (and count) them, or "
        "keep them as traffic.", "drop", choices=("drop", "keep")),
)  # fmt: skip
