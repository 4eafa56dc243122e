"""The timeline of a run: valid Trace Event Format, and nothing in it that the records do not say."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from cases import sent
from runs import STORIES, every_story, story
from support import NO_FRONT_END, EvenSteps, base
from test_cli import SMALL, shell

from sim.faults import InputFault
from sim.files import write_whole
from sim.report.timeline import write_timeline
from sim.results import Result
from sim.results.phases import PHASES
from sim.simulation import simulate

ENGINE, REQUESTS = 1, 2
Event = dict[str, Any]


def events_of(result: Result) -> list[Event]:
    """The events of *result*'s timeline, by way of a file."""
    with TemporaryDirectory() as folder:
        text = write_timeline(result, Path(folder) / "trace.json").read_text(encoding="utf-8")
    found: list[Event] = json.loads(text)["traceEvents"]
    return found


@cache
def told(name: str) -> list[Event]:
    return events_of(story(name)[0])


def slices(events: list[Event], process: int) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["pid"] == process]


def spans(events: list[Event]) -> dict[int, Event]:
    """The slice of each request, by its number."""
    named = (event for event in slices(events, REQUESTS) if event["name"].startswith("request "))
    return {int(event["name"].split()[1]): event for event in named}


def phases(events: list[Event]) -> dict[int, list[Event]]:
    """The phases of each request: what lies within its slice, on its track."""
    tracks = defaultdict(list)
    for event in slices(events, REQUESTS):
        if event["name"] in PHASES:
            tracks[event["tid"]].append(event)
    return {
        request: [e for e in tracks[span["tid"]] if span["ts"] <= e["ts"] < span["ts"] + span["dur"]]
        for request, span in spans(events).items()
    }


def counter(events: list[Event], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Times in microseconds and values of a counter, each value holding until the next."""
    found = [(e["ts"], e["args"][key]) for e in events if e["ph"] == "C" and key in e["args"]]
    at_us, values = zip(*found, strict=True)
    return np.array(at_us), np.array(values)


def us(seconds: Any) -> np.ndarray:
    return np.rint(np.asarray(seconds) * 1e6).astype(int)


@every_story
def test_events_have_the_fields_of_the_format(name: str) -> None:
    """Phase, process and thread each; whole microseconds within the run; threads unique and named once."""
    events = told(name)
    end_us = us(max(story(name)[0].steps.end_s.max(), story(name)[0].requests.finish_s.max()))
    assert {event["ph"] for event in events} <= set("MXCi")
    for event in events:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        if event["ph"] != "M":
            assert isinstance(event["ts"], int)
            assert 0 <= event["ts"] <= event["ts"] + event.get("dur", 0) <= end_us
            assert event["ph"] != "X" or event["dur"] > 0
            assert event["ph"] != "C" or all(isinstance(v, int | float) for v in event["args"].values())
    named = [event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"]
    assert len(named) == len(set(named))
    assert set(named) == {event["tid"] for event in events if event["ph"] == "X"}
    assert len({(event["pid"], event["tid"]) for event in events}) == len({event["tid"] for event in events})


@every_story
def test_slices_of_a_track_nest(name: str) -> None:
    """A slice lies within the one that is open, or begins after it: what viewers can draw."""
    open_until: dict[int, list[int]] = defaultdict(list)
    ordered = sorted(
        (event for event in told(name) if event["ph"] == "X"), key=lambda e: (e["tid"], e["ts"], -e["dur"])
    )
    for event in ordered:
        stack = open_until[event["tid"]]
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        assert not stack or event["ts"] + event["dur"] <= stack[-1]
        stack.append(event["ts"] + event["dur"])
        assert len(stack) <= event["pid"]  # iterations do not overlap, a request holds its phases


@every_story
def test_iterations_are_the_summarys(name: str) -> None:
    """A slice a row of the step log, with its tokens; a leap counts for all its iterations."""
    found, _ = story(name)
    rows = slices(told(name), ENGINE)
    steps = found.steps
    assert sum(row["args"]["iterations"] for row in rows) == found.summary()["simulator"]["iterations"]
    assert [row["ts"] for row in rows] == us(steps.start_s).tolist()
    assert [row["ts"] + row["dur"] for row in rows] == us(steps.end_s).tolist()
    for key in ("iterations", "decodes", "prefill_tokens", "blocks_last"):
        assert [row["args"][key] for row in rows] == steps[key].tolist()
    for row, new, decodes, count in zip(
        rows, steps.prefill_tokens, steps.decodes, steps.iterations, strict=True
    ):
        expected = (
            f"{'mixed' if decodes else 'prefill'} {new + decodes} tokens" if new else f"decode x{count}"
        )
        assert row["name"] == expected


@every_story
def test_phases_of_a_request_add_up_to_its_e2e(name: str) -> None:
    """One after the other, without a gap; queue and prefill are those of its row, all of them its stay."""
    found, _ = story(name)
    events = told(name)
    each, outer = phases(events), spans(events)
    for row in found.requests.itertuples():
        mine, span = each[row.request_id], outer[row.request_id]
        assert span["args"]["status"] == row.status
        assert span["args"]["output_tokens"] == row.output_tokens
        assert sum(phase["dur"] for phase in mine) == span["dur"] == us(row.finish_s) - us(row.arrival_s)
        for before, after in pairwise(mine):
            assert after["ts"] == before["ts"] + before["dur"]
        names = [phase["name"] for phase in mine]
        assert names.count("preempted") == row.preemptions
        if "queue" in names and row.queue_s == row.queue_s:
            queue = mine[names.index("queue")]
            assert queue["ts"] + queue["dur"] == us(row.first_scheduled_s)
        if row.status == "completed":
            assert span["dur"] == pytest.approx(row.e2e_s * 1e6, abs=1)


@every_story
def test_tokens_come_in_decode(name: str) -> None:
    """A token lies in a decode, or ends a prefill or recompute; a decode begins with one."""
    _, tokens = story(name)
    for request, mine in phases(told(name)).items():
        tokens_us = us(tokens.tokens_s[request])
        decodes = [phase for phase in mine if phase["name"] == "decode"]
        ends_us = [p["ts"] + p["dur"] for p in mine if p["name"] in ("prefill", "recompute")]
        within = [any(d["ts"] <= at <= d["ts"] + d["dur"] for d in decodes) for at in tokens_us.tolist()]
        assert (np.array(within, dtype=bool) | np.isin(tokens_us, ends_us)).all()
        assert np.isin([d["ts"] for d in decodes], tokens_us).all()


@every_story
def test_counters_agree_with_slices_and_steps(name: str) -> None:
    """Running and waiting are the phases open at that time; waiting and blocks are those of the step log."""
    found, _ = story(name)
    events = told(name)
    spans_us = {
        "running": [p for p in slices(events, REQUESTS) if p["name"] in ("prefill", "decode", "recompute")],
        "waiting": [p for p in slices(events, REQUESTS) if p["name"] in ("queue", "preempted")],
    }
    for key, held in spans_us.items():
        at_us, values = counter(events, key)
        start_us = np.sort([p["ts"] for p in held])
        end_us = np.sort([p["ts"] + p["dur"] for p in held])
        inside = np.searchsorted(start_us, at_us, "right") - np.searchsorted(end_us, at_us, "right")
        assert values.tolist() == inside.tolist()
    steps = found.steps[found.steps.prefill_sequences > 0]
    at_us, values = counter(events, "waiting")
    assert values[np.searchsorted(at_us, us(steps.start_s), "right") - 1].tolist() == steps.waiting.tolist()
    at_us, percent = counter(events, "%")
    blocks = percent[np.searchsorted(at_us, us(found.steps.start_s), "right") - 1]
    assert blocks == pytest.approx(found.steps.blocks_first * 100 / found.run.scheduler.num_blocks, abs=0.005)
    assert percent.max() == pytest.approx(found.summary()["kv_cache"]["usage_max"] * 100, abs=0.005)
    assert (values[-1], percent[-1]) == (0, 0)


@every_story
def test_tracks_are_used_again(name: str) -> None:
    """There are as many tracks as there were requests at one time, no more."""
    outer = spans(told(name)).values()
    start_us, end_us = (np.sort([s["ts"] + k * s["dur"] for s in outer]) for k in (0, 1))
    inside = np.arange(1, len(start_us) + 1) - np.searchsorted(end_us, start_us, "right")
    assert len({span["tid"] for span in outer}) == inside.max()


def test_who_is_turned_away_at_once_is_an_instant() -> None:
    """A prompt beyond the model's context leaves no slice, only a mark with its reason."""
    scenario = base().replace({**NO_FRONT_END, "engine.max_model_len": 1024})
    run = simulate(scenario, requests=sent((0.5, 2000, 5), (1.0, 10, 5)), step_time=EvenSteps(0.25))
    events = events_of(Result(run))
    marks = [(event["name"], event["ts"]) for event in events if event["ph"] == "i"]
    assert marks == [("request 0 never_schedulable", 500_000)]
    assert list(spans(events)) == [1]


def test_a_story_in_seconds() -> None:
    """Two requests, two iterations of prefill and four of decode: every slice by hand."""
    scenario = base().replace(NO_FRONT_END)
    run = simulate(scenario, requests=sent((0.0, 10, 3), (0.5, 20, 2)), step_time=EvenSteps(1.0))
    found = events_of(Result(run))
    told = [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in found if e["ph"] == "X"]
    assert told == [
        ("prefill 10 tokens", 0, 1),
        ("mixed 21 tokens", 1, 1),
        ("decode x1", 2, 1),
        ("request 0", 0, 3),
        ("request 1", 0.5, 2.5),
        ("prefill", 0, 1),
        ("decode", 1, 2),
        ("queue", 0.5, 0.5),
        ("prefill", 1, 1),
        ("decode", 2, 1),
    ]


@pytest.mark.parametrize("name", ["preempting", "impatient and crowded"])
def test_leaps_and_compression_change_nothing(name: str, tmp_path: Path) -> None:
    """A run that leaps writes the bytes of one that steps; a name that ends in .gz gives them compressed."""
    stepping, _ = story(name)
    leaping = Result(simulate(stepping.run.scenario, requests=STORIES[name][0]))
    plain = write_timeline(stepping, tmp_path / "a.json").read_bytes()
    assert write_timeline(leaping, tmp_path / "b.json").read_bytes() == plain
    packed = [
        write_timeline(run, tmp_path / f"{i}.json.gz").read_bytes()
        for i, run in enumerate((stepping, leaping))
    ]
    assert packed[0] == packed[1]
    assert len(packed[0]) * 4 < len(plain)
    assert gzip.decompress(packed[0]) == plain


def test_the_command_writes_timeline_and_metrics(tmp_path: Path) -> None:
    """Both files are there, as whole as the others, and stderr says so; stdout is the summary alone."""
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    trace, out = tmp_path / "new" / "trace.json.gz", tmp_path / "out"
    ended = shell(
        "run",
        str(tmp_path / "small.yaml"),
        "--json",
        "--trace",
        str(trace),
        "--out",
        str(out),
        "--scrape-interval=10",
    )
    assert ended.returncode == 0
    iterations = json.loads(ended.stdout)["simulator"]["iterations"]
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(row["args"]["iterations"] for row in slices(events, ENGINE)) == iterations
    rows = (out / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert [row.partition(",")[0] for row in rows[:3]] == ["time_s", "0.000000", "10.000000"]
    assert ended.stderr.splitlines()[-2:] == [f"wrote {out / 'metrics.csv'}", f"wrote {trace}"]


@pytest.mark.parametrize("place", ["", "file/trace.json"])
def test_a_place_that_cannot_be_written_is_said_before_the_run(tmp_path: Path, place: str) -> None:
    """A folder as the file, a file as the folder: one sentence, status 2, and nothing is left behind."""
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    ended = shell("run", "chat-8b-a100", "--trace", str(tmp_path / place))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "cannot be written" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_fills_up_leaves_no_half_timeline(tmp_path: Path) -> None:
    """The write fails between two parts: the older file is whole, the beginning of the new one is gone."""

    def parts() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    path = write_whole(tmp_path / "trace.json", "old")
    with pytest.raises(InputFault, match="No space left on device"):
        write_whole(path, parts())
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
