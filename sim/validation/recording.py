"""Recordings of an engine's schedules, read; what is no recording is said with its line and place.

One JSON object a line: config, requests, aborts by step, and a trace with one row a step: step number,
tokens by request, preempted, finished or aborted, free blocks, cached tokens of first-time requests.
Nothing is passed over: what we do not know could change any schedule.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from sim.faults import InputFault

MOST = 1 << 24  # blocks, tokens and whatever else is counted
ROW_FIELDS = ("step", "tokens", "preempted", "finished", "free_blocks", "cached_tokens")

_CASE = ("case", "config", "requests", "trace")
_OPTIONAL_OF_CASE = ("aborts", "engine")
_SIZES = ("usable_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs")
_SWITCHES = ("scheduler_reserve_full_isl", "enable_prefix_caching", "async_scheduling")
_CONFIG = {*_SIZES, *_SWITCHES[:2], "long_prefill_token_threshold", "policy"}
# Recorded since asynchronous scheduling is; without them it is off, as is the watermark.
_OPTIONAL = {"async_scheduling", "watermark", "engine", "engine_version"}
_POLICIES = ("fcfs", "priority")
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})\.\d{1,6}\S*", re.ASCII)
_REQUEST = {"id": None, "arrival_step": 1, "order": 0, "prompt_tokens": 1, "max_tokens": 1}
_OPTIONAL_OF_REQUEST = {"priority": 0, "prefix_tokens": 0, "prefix_group": 0}


def read_cases(path: Path) -> Iterator[dict[str, Any]]:
    """The cases of the recording *path*, one after the other; raises `InputFault` with file and line."""
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _case(f"{path}:{number}", line)
    except FileNotFoundError:
        raise InputFault(f"{path}: no such recording") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        past = f" past line {number}" if number else ""
        raise InputFault(f"{path}: cannot be read as a recording{past} ({error})") from None


def version_of(config: dict[str, Any]) -> tuple[int, int]:
    """(0, 32) of vLLM 0.32.0, which is what recordings without a version are of."""
    major, minor = config.get("engine_version", "0.32.0").split(".")[:2]
    return int(major), int(minor)


def _case(place: str, line: str) -> dict[str, Any]:
    try:
        case = json.loads(line)
        faults = list(_case_faults(case))
    except RecursionError:
        raise InputFault(f"{place}: must be one JSON object a line (this is nested too deeply)") from None
    except ValueError as error:
        raise InputFault(f"{place}: must be one JSON object a line ({error})") from None
    if faults:
        raise InputFault(f"{place}: {fault}" for fault in faults)
    return case


def _case_faults(case: Any) -> Iterator[str]:
    if not isinstance(case, dict):
        yield f"must be one JSON object a line ({_got(case)})"
        return
    missing = [key for key in _CASE if key not in case]
    if missing:
        yield f"a recorded case needs {', '.join(missing)}"
        return
    if unknown := sorted(set(case).difference(_CASE, _OPTIONAL_OF_CASE)):
        yield f"a recorded case has no {', '.join(unknown)}; known: {_names(_CASE + _OPTIONAL_OF_CASE)}"
    if isinstance(case["case"], bool) or not isinstance(case["case"], int | str):
        yield f"case must be a number or a name ({_got(case['case'])})"
    yield from _config_faults(case["config"])
    faults = list(_requests_faults(case["requests"]))
    yield from faults or _aborts_faults(case.get("aborts", {}), {r["id"] for r in case["requests"]})
    yield from _trace_faults(case["trace"])


# -- config ----------------------------------------------------------------------------------------


def _config_faults(config: Any) -> Iterator[str]:
    if not isinstance(config, dict):
        yield f"config must be an object ({_got(config)})"
        return
    unknown = sorted(set(config) - _CONFIG - _OPTIONAL)
    lacking = sorted(_CONFIG - set(config))
    if unknown or lacking:
        what = [f"has unknown settings {', '.join(unknown)}"] if unknown else []
        what += [f"lacks {', '.join(lacking)}"] if lacking else []
        yield f"config {' and '.join(what)}; known: {_names(_CONFIG | _OPTIONAL)}"
        return
    for key in _SIZES:
        yield from _whole(f"config.{key}", config[key], 1)
    yield from _whole("config.long_prefill_token_threshold", config["long_prefill_token_threshold"], 0)
    for key in _SWITCHES:
        if not isinstance(config.get(key, False), bool):
            yield f"config.{key} must be true or false ({_got(config[key])})"
    watermark = config.get("watermark", 0.0)
    if isinstance(watermark, bool) or not isinstance(watermark, int | float) or not 0 <= watermark < 1:
        yield f"config.watermark must be a number >= 0 and below 1 ({_got(watermark)})"
    yield from _engine_faults(config)


def _engine_faults(config: dict[str, Any]) -> Iterator[str]:
    """Versions and policies are vLLM's; what another engine calls them is not known here."""
    engine, version = config.get("engine", "vllm"), config.get("engine_version", "0.32.0")
    if not isinstance(engine, str):
        yield f"config.engine must be a name ({_got(engine)})"
    elif engine == "vllm":
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            yield f"config.engine_version must be a version such as 0.32.0 ({_got(version)})"
        if config["policy"] not in _POLICIES:
            yield f"config.policy must be {' or '.join(_POLICIES)} ({_got(config['policy'])})"


# -- requests and aborts ---------------------------------------------------------------------------


def _requests_faults(requests: Any) -> Iterator[str]:
    if not isinstance(requests, list) or not all(isinstance(request, dict) for request in requests):
        yield "requests must be a list of objects"
        return
    for number, request in enumerate(requests):
        yield from _request_faults(f"requests[{number}]", request)
    ids = Counter(name for request in requests if _is_name(name := request.get("id")))
    if twice := [name for name, times in ids.items() if times > 1]:
        yield f"requests must each have an id of their own (several are {twice[0]!r})"


def _request_faults(place: str, request: dict[str, Any]) -> Iterator[str]:
    if not _is_name(request.get("id")):
        yield f"{place}.id must be a name ({_got(request.get('id'))})"
    known = _REQUEST | _OPTIONAL_OF_REQUEST
    for key, least in known.items():
        if least is not None and (key in _REQUEST or key in request):
            yield from _whole(f"{place}.{key}", request.get(key), least)
    if unknown := sorted(set(request) - set(known)):
        yield f"{place} has no {', '.join(unknown)}; known: {_names(known)}"


def _aborts_faults(aborts: Any, ids: set[str]) -> Iterator[str]:
    if not isinstance(aborts, dict):
        yield f"aborts must be an object of lists by step ({_got(aborts)})"
        return
    for step, names in aborts.items():
        if not re.fullmatch("[1-9][0-9]*", step):
            yield f"aborts must be by step, a whole number >= 1 ({_got(step)})"
        if not _is_list_of_names(names) or len(set(names)) < len(names):
            yield f"aborts.{step} must be a list of ids, each once ({_got(names)})"
        elif unknown := sorted(set(names) - ids):
            yield f"aborts.{step} has {unknown[0]!r}, which is no request's id"


# -- trace -----------------------------------------------------------------------------------------


def _trace_faults(trace: Any) -> Iterator[str]:
    """The first row at fault: a recorder that is wrong in one is wrong in all."""
    if not isinstance(trace, list) or not trace:
        yield f"trace must be a list of rows, one a step, and not empty ({_got(trace)})"
        return
    for number, row in enumerate(trace):
        if why := _row_fault(row):
            yield f"not a recorded case: trace[{number}] must be {why}"
            return


def _row_fault(row: Any) -> str | None:
    if not isinstance(row, list) or len(row) != len(ROW_FIELDS):
        return f"a list of {', '.join(ROW_FIELDS)} ({_got(row)})"
    for field, (fits, kind), value in zip(ROW_FIELDS, _ROW_KINDS, row, strict=True):
        if not fits(value):
            return f"a row whose {field} is {kind} ({_got(value)})"
    return None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_name, value))


def _is_tokens_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_whole, value.values()))


_ROW_KINDS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (_is_whole, "a whole number"),
    (_is_tokens_by_name, "an object of whole numbers"),
    (_is_list_of_names, "a list of ids"),
    (_is_list_of_names, "a list of ids"),
    (_is_whole, "a whole number"),
    (_is_tokens_by_name, "an object of whole numbers"),
)


# -- words -----------------------------------------------------------------------------------------


def _whole(key: str, value: Any, least: int) -> Iterator[str]:
    if not _is_whole(value) or value < least:
        yield f"{key} must be a whole number >= {least} ({_got(value)})"
    elif value > MOST:
        yield f"{key} must be at most {MOST:,} ({_got(value)})"


def _got(value: Any) -> str:
    words = repr(value)
    return f"got {words if len(words) <= 60 else words[:60] + '...'}"


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
