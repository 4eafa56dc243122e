"""A run as a timeline: JSON in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

Process 1 is the engine: a slice for each row of the step log (iterations that repeat one batch are one
slice with their count), and the KV cache, running and waiting requests as counters. Process 2 has the
requests, each a slice with its phases inside. A request's track is free for another once it has left, so
there are as many tracks as there were requests at one time.

All times are whole microseconds. Thread ids are unique over both processes: Perfetto looks threads up by
id alone.
"""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from sim.files import write_whole
from sim.results import Result
from sim.results.phases import PHASES, Phases, phases_of
from sim.results.requests import RequestTable
from sim.results.steps import StepLog
from sim.serving.scheduler import HELD_BY
from sim.simulation import Run
from sim.simulation.recorder import COMPLETED, STATUS, STEP
from sim.version import __version__

_ENGINE, _REQUESTS = 1, 2  # process ids; the engine's only thread has its process's
_ROWS_AT_A_TIME = 1 << 14
_EVENTS_AT_A_TIME = 1 << 12


def write_timeline(result: Result, path: Path) -> Path:
    """Write the timeline of *result* to *path*, compressed if its name ends in ``.gz``; returns *path*.

    Equal runs give equal bytes. Raises `InputFault` where the place cannot be written.
    """
    parts = _document(result.run)
    return write_whole(path, _compressed(parts) if path.suffix == ".gz" else parts)


def _compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """As gzip, which has no time and no name in it."""
    gzip = zlib.compressobj(wbits=31)
    for part in parts:
        yield gzip.compress(part)
    yield gzip.flush()


def _document(run: Run) -> Iterator[bytes]:
    """The JSON text, a few thousand events at a time."""
    about = {
        "scenario": run.scenario.name,
        "scenario_sha256": run.scenario.sha256,
        "seed": run.scenario.run["seed"],
        "kneesim": __version__,
    }
    head = {"displayTimeUnit": "ms", "otherData": about}
    yield json.dumps(head)[:-1].encode() + b', "traceEvents": [\n'
    events = _events(run)
    before = ""
    while some := list(islice(events, _EVENTS_AT_A_TIME)):
        yield (before + ",\n".join(some)).encode()
        before = ",\n"
    yield b"\n]}\n"


def _events(run: Run) -> Iterator[str]:
    """Every event as JSON."""
    log, phases = StepLog(run.recorder, run.step_time), phases_of(run)
    yield _name("process_name", _ENGINE, _ENGINE, "engine")
    yield _name("thread_name", _ENGINE, _ENGINE, "iterations")
    yield from _iterations(log)
    yield from _kv_cache(log, run.scheduler.num_blocks)
    yield from _counts(phases)
    yield _name("process_name", _REQUESTS, _REQUESTS, "requests")
    yield from _requests(run, phases)


def _us(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e6).astype(np.int64)


def _name(what: str, process: int, thread: int, name: str) -> str:
    return f'{{"ph":"M","pid":{process},"tid":{thread},"name":"{what}","args":{{"name":"{name}"}}}}'


def _slice(process: int, thread: int, start_us: int, end_us: int, name: str, args: str = "") -> str:
    return (
        f'{{"ph":"X","pid":{process},"tid":{thread},"ts":{start_us},"dur":{end_us - start_us},"name":"{name}"'
        + (f',"args":{{{args}}}}}' if args else "}")
    )


def _counter(at_us: int, name: str, args: str) -> str:
    return f'{{"ph":"C","pid":{_ENGINE},"tid":{_ENGINE},"ts":{at_us},"name":"{name}","args":{{{args}}}}}'


# -- the engine --------------------------------------------------------------------------------------


def _iterations(log: StepLog) -> Iterator[str]:
    for rows in _parts(log):
        columns = [_us(rows["start_s"]).tolist(), _us(rows["end_s"]).tolist()]
        names = (
            "iterations",
            "decodes",
            "prefill_sequences",
            "prefill_tokens",
            "context_tokens",
            "blocks_first",
            "blocks_last",
            "held_by",
        )
        columns += [rows[name].tolist() for name in names]
        for start_us, end_us, *values, held_by in zip(*columns, strict=True):
            iterations, decodes, prefills, tokens = values[:4]
            if not prefills:
                name = f"decode x{iterations}"
            else:
                name = f"mixed {tokens + decodes} tokens" if decodes else f"prefill {tokens} tokens"
            args = ",".join(f'"{key}":{value}' for key, value in zip(names, values, strict=False))
            args += f',"queue_held_by":"{HELD_BY[held_by]}"'
            yield _slice(_ENGINE, _ENGINE, start_us, end_us, name, args)


def _parts(log: StepLog) -> Iterator[np.ndarray]:
    """The rows of the log (`STEP`), some thousands at a time."""
    rows = np.frombuffer(log.recorder.steps, STEP)
    for first in range(0, len(rows), _ROWS_AT_A_TIME):
        yield rows[first : first + _ROWS_AT_A_TIME]


def _kv_cache(log: StepLog, num_blocks: int) -> Iterator[str]:
    """Use of the KV cache: at each row's start, in its last iteration, and none where nothing runs."""
    last_s = log.end_s - log.longest_s
    idle = np.append(log.start_s[1:] > log.end_s[:-1], True)[: len(log.end_s)]
    at_s = np.concatenate([log.start_s, last_s, log.end_s[idle]])
    blocks = [log.recorder.column("blocks_first"), log.recorder.column("blocks_last")]
    used = np.concatenate([*blocks, np.zeros(int(idle.sum()), dtype=np.int64)])
    order = np.argsort(at_s, kind="stable")
    percent = used[order, None] * (100.0 / num_blocks)
    yield from _changes(at_s[order], percent, "KV cache usage", '"%":{:.2f}')


def _counts(phases: Phases) -> Iterator[str]:
    """Requests that run and that wait, whenever either changes."""
    step = np.stack([phases.running, phases.waiting], axis=1).astype(np.int64)
    at_s = np.concatenate([phases.start_s, phases.end_s])
    order = np.argsort(at_s, kind="stable")
    values = np.cumsum(np.concatenate([step, -step])[order], axis=0)
    yield from _changes(at_s[order], values, "requests", '"running":{},"waiting":{}')


def _changes(at_s: np.ndarray, values: np.ndarray, name: str, form: str) -> Iterator[str]:
    """A counter's events: the last *values* (a row of them) of each microsecond, where they changed."""
    at_us = _us(at_s)
    last = np.append(at_us[1:] > at_us[:-1], True)[: len(at_us)]
    at_us, values = at_us[last], values[last]
    changed = np.append(True, (values[1:] != values[:-1]).any(axis=1))[: len(at_us)]
    for us, row in zip(at_us[changed].tolist(), values[changed].tolist(), strict=True):
        yield _counter(us, name, form.format(*row))


# -- the requests ------------------------------------------------------------------------------------


def _requests(run: Run, phases: Phases) -> Iterator[str]:
    """Each request with its phases, and an instant for one that was gone as soon as it came."""
    start_us, end_us = _us(run.requests.arrival_s), _us(run.recorder.column("finish_s"))
    thread = _tracks(start_us, end_us)
    tracks = int(thread.max(initial=-1)) + 1
    for number in range(tracks):
        name = f"track {number + 1:0{len(str(tracks))}}"
        yield _name("thread_name", _REQUESTS, _REQUESTS + 1 + number, name)
    thread += _REQUESTS + 1
    yield from _spans(run, start_us, end_us, thread)
    columns = (thread[phases.request], _us(phases.start_s), _us(phases.end_s), phases.phase)
    for track, begin_us, until_us, phase in zip(*(column.tolist() for column in columns), strict=True):
        if begin_us < until_us:
            yield _slice(_REQUESTS, track, begin_us, until_us, PHASES[phase])


def _spans(run: Run, start_us: np.ndarray, end_us: np.ndarray, thread: np.ndarray) -> Iterator[str]:
    table = RequestTable.of(run)
    columns = (
        table.status,
        run.requests.prompt_tokens,
        table.got_tokens,
        run.recorder.column("preemptions"),
        start_us,
        end_us,
        thread,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for index, (status, prompt, output, preemptions, begin_us, until_us, track) in enumerate(rows):
        name = f"request {index}" + ("" if status == COMPLETED else f" {STATUS[status]}")
        args = (
            f'"status":"{STATUS[status]}","prompt_tokens":{prompt},"output_tokens":{output},'
            f'"preemptions":{preemptions}'
        )
        if begin_us < until_us:
            yield _slice(_REQUESTS, track, begin_us, until_us, name, args)
        else:
            yield (
                f'{{"ph":"i","s":"p","pid":{_REQUESTS},"tid":{_REQUESTS},"ts":{begin_us},"name":"{name}",'
                f'"args":{{{args}}}}}'
            )


def _tracks(start_us: np.ndarray, end_us: np.ndarray) -> np.ndarray:
    """A track for each request: the lowest that is free when it comes (who is gone at once needs none)."""
    track = np.zeros(len(start_us), dtype=np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # until when, which
    tracks = 0
    for request in np.flatnonzero(start_us < end_us).tolist():
        while busy and busy[0][0] <= start_us[request]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free, tracks = [tracks], tracks + 1
        track[request] = heapq.heappop(free)
        heapq.heappush(busy, (int(end_us[request]), int(track[request])))
    return track
