"""What a workload may not say of people and their clients; and a run tells all that it takes them to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario_inputs import SCENARIO, Catalogue, starting

from sim.results.people import people_warnings
from sim.scenario.people_keys import KINDS, PEOPLE_KEYS

TIME = "must be a time in seconds"
SHARE = "must be a share of one >= 0 and <= 1"
FAULTS = [
    ("patience: 5", "patience must be a mapping of keys to values (got 5)"),
    ("patience: {kind: gamma, mean_s: 1}", "patience.kind must be fixed, exponential, weibull or lognormal"),
    ("patience: {kind: fixed, mean_s: 0}", f"patience.mean_s {TIME} > 0, such as 250ms (got 0)"),
    ("patience: {mean_s: 3}", "patience.kind is missing: the distribution that mean_s is of"),
    ("patience: {cv: 3}", "patience.kind is missing: the distribution that cv is of"),
    ("patience: {shape: 3}", "patience.kind is missing: the distribution that shape is of"),
    ("patience: {share: 0.5}", "patience.kind is missing: the distribution that share is of"),
    ("patience: {kind: weibull, mean_s: 1}", "patience.shape is missing"),
    ("patience: {kind: lognormal, mean_s: 1}", "patience.cv is missing"),
    (
        "patience: {kind: fixed, mean_s: 1, cv: 2}",
        "patience.cv does not go with workload.patience.kind fixed",
    ),
    ("patience: {kind: fixed, mean_s: 1, share: 1.5}", f"patience.share {SHARE}, such as 92% (got 1.5)"),
    (
        "patience: {kind: fixed, mean_s: 1, total: {kind: fixed, mean_s: 2}}",
        "patience.total excludes patience.kind, which says the same; write one of them",
    ),
    ("patience: {total: {mean_s: 2}}", "patience.total.kind is missing"),
    ("patience: {first_token: {kind: fixed}}", "patience.first_token.mean_s is missing"),
    ("patience: {queue: {kind: fixed, mean_s: -1}}", f"patience.queue.mean_s {TIME} > 0, such as 250ms"),
    ("patience: {queu: {kind: fixed, mean_s: 1}}", "patience.queu is unknown; did you mean queue?"),
    ("patience: {stop_after: {kind: fixed}}", "patience.stop_after.mean is missing: mean tokens"),
    (
        "patience: {stop_after: {kind: fixed, mean: 0.5}}",
        "patience.stop_after.mean must be a number >= 1 (got 0.5)",
    ),
    (
        "patience: {stop_after: {kind: uniform, mean: 5}}",
        "patience.stop_after.mean does not go with workload.patience.stop_after.kind uniform",
    ),
    (
        "patience: {stop_after: {kind: fixed, mean_s: 5}}",
        "patience.stop_after.mean_s is unknown; did you mean mean?",
    ),
    (
        "patience: {kind: fixed, mean_s: 1, silent_share: 2}",
        f"patience.silent_share {SHARE}, such as 92% (got 2)",
    ),
    ("patience: {detection_s: 3}", "patience.detection_s goes with patience.silent_share only: others tell"),
    ("patience: {silent_share: 0.5}", "patience.silent_share needs a time after which clients leave"),
    ("patience: {share: 0.5}", "patience.kind is missing: the distribution that share is of"),
    (
        "patience: {kind: fixed, mean_s: 1, silent_share: 1, detection_s: 0}",
        f"patience.detection_s {TIME} > 0",
    ),
    ("retries: 3", "retries must be a mapping of keys to values (got 3)"),
    ("retries: {client: curl}", "retries.client must be openai-python (got curl)"),
    ("retries: {max: -1}", "retries.max must be a whole number >= 0 and <= 100 (got -1)"),
    ("retries: {max: 101}", "retries.max must be a whole number >= 0 and <= 100 (got 101)"),
    ("retries: {base_s: -1}", f"retries.base_s {TIME} >= 0, such as 250ms (got -1)"),
    ("retries: {base_s: 9, cap_s: 2}", "retries.cap_s must be >= base_s 9 (got 2)"),
    ("retries: {jitter: 1.1}", f"retries.jitter {SHARE}, such as 92% (got 1.1)"),
    ("retries: {on: rejected}", "retries.on must be a list, each item rejected, timed_out or abandoned"),
    ("retries: {on: [refused]}", "retries.on[0] must be rejected, timed_out or abandoned (got refused)"),
    ("retries: {timeout_s: 0}", f"retries.timeout_s {TIME} > 0, such as 250ms (got 0)"),
    ("retries: {retry_after_s: -1}", f"retries.retry_after_s {TIME} >= 0, such as 250ms (got -1)"),
    ("connections: 0", "connections must be a whole number >= 1 (got 0)"),
    ("connections: many", "connections must be a whole number >= 1 (got many)"),
]


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path)


@pytest.mark.parametrize(("section", "sentence"), FAULTS)
def test_people_that_cannot_be_are_told_where_they_stand(
    catalogue: Catalogue, section: str, sentence: str
) -> None:
    """One sentence each, with file, line and path; the same of a class of traffic, by the class's path."""
    for inside, path in ((section, ""), (f"classes: {{chat: {{share: 1, {section}}}}}", "classes.chat.")):
        faults = catalogue.faults(SCENARIO.replace("chat", f"{{base: chat, {inside}}}"))
        of_class = sentence.replace("with workload.", f"with workload.{path}")
        assert len(faults) == 1
        starting(f"chat.yaml:3: workload.{path}{of_class}", faults)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("retries: {max: 1}", "retries"),
        ("connections: 3", "connections"),
        ("patience: {queue: {kind: fixed, mean_s: 1}}", "patience.queue"),
        ("patience: {first_token: {kind: fixed, mean_s: 1}}", "patience.first_token"),
        ("patience: {stop_after: {kind: uniform}}", "patience.stop_after"),
        ("patience: {kind: fixed, mean_s: 1, silent_share: 0.5}", "patience.silent_share"),
    ],
)
def test_what_does_not_go_with_streamed_records(catalogue: Catalogue, section: str, key: str) -> None:
    """Clients who do more than send and give up, everybody's or a class's; those who give up may be."""
    streamed = SCENARIO + "run: {stream_records: true}\n"
    for inside, path in ((section, ""), (f"classes: {{chat: {{share: 1, {section}}}}}", "classes.chat.")):
        faults = catalogue.faults(streamed.replace("chat", f"{{base: chat, {inside}}}"))
        assert len(faults) == 1
        starting(f"chat.yaml:3: workload.{path}{key} does not go with run.stream_records", faults)
    for whole in ("patience: {kind: fixed, mean_s: 1}", "patience: {total: {kind: fixed, mean_s: 1}}"):
        catalogue.load(streamed.replace("chat", f"{{base: chat, {whole}}}"))


def distribution(kind: str, mean: str) -> dict[str, Any]:
    """A section of that *kind* in which every number is written."""
    own = {"weibull": {"shape": 0.7}, "lognormal": {"cv": 1.5}}.get(kind, {})
    return {"kind": kind, "share": 0.3, **({} if kind == "uniform" else {mean: 9.0}), **own}


def everybody(kind: str) -> Iterator[dict[str, Any]]:
    """Workloads in which all keys about people are written, distributions of that *kind* where possible."""
    times, reading = (
        distribution("fixed" if kind == "uniform" else kind, "mean_s"),
        distribution(kind, "mean"),
    )
    others = {"first_token": times, "queue": times, "stop_after": reading}
    left = {"silent_share": 0.4, "detection_s": 5.0}
    habits = {"max": 3, "base_s": 1.0, "cap_s": 4.0, "jitter": 0.2, "timeout_s": 50.0, "retry_after_s": 7.0}
    clients = {"retries": {**habits, "on": ["rejected", "abandoned"]}, "connections": 8}
    for total in (times, {"total": times}):
        yield {"patience": {**total, **others, **left}, **clients}


def changed(section: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key in *section*, by its path, and *section* with another value of it."""
    for key, value in section.items():
        path = f"{at}{key}"
        if isinstance(value, dict):
            yield from ((p, {**section, key: other}) for p, other in changed(value, f"{path}."))
        elif key == "kind":
            yield path, {**section, key: "exponential" if value == "fixed" else "fixed", "mean": 9.0}
        else:
            yield path, {**section, key: value[:1] if isinstance(value, list) else value / 2}


def test_every_assumption_about_people_is_in_a_sentence() -> None:
    """Another value of any key about people is another sentence, and of one sentence only.

    But retries.client: there is only one.
    """
    told = {"retries.client"}
    for kind in (*KINDS, "uniform"):
        for workload in everybody(kind):
            sentences = people_warnings(workload)
            assert len(sentences) == len({*sentences}) == 7
            assert all(sentence.startswith("assumed: ") for sentence in sentences)
            for path, other in changed(workload):
                told.add(path)
                pairs = zip(sentences, people_warnings(other), strict=True)
                assert sum(one != another for one, another in pairs) == 1, (kind, path)
    assert told == {key.path for key in PEOPLE_KEYS if key.kind != "mapping"}


def test_assumptions_are_told_class_by_class() -> None:
    """Each class has its own sentences, with its name; and nothing is said of people who only send."""
    mail = {"share": 1, "retries": {"max": 1}}
    classes = {"chat": {**mail, "connections": 2}, "mail": mail, "robots": {"share": 1}}
    starts = [sentence.partition(":")[0] for sentence in people_warnings({"classes": classes})]
    assert starts == ["assumed of class chat", "assumed of class chat", "assumed of class mail"]
    assert people_warnings({"lengths": {}}) == []


@pytest.mark.parametrize(
    ("on", "told_s", "wait"),
    [
        (["rejected"], 7.0, "after 7 s, as the server asks; "),
        (
            ["rejected", "abandoned"],
            7.0,
            "after 7 s, as the server asks, or, where they were abandoned, min(0.5",
        ),
        (["abandoned"], 7.0, "after min(0.5 x 2^k, 8) s less up to 0.25 of it; "),
        (
            ["rejected"],
            61.0,
            "after min(0.5 x 2^k, 8) s less up to 0.25 of it (a longer Retry-After is ignored)",
        ),
    ],
)
def test_the_wait_that_is_told_is_the_wait(on: list[str], told_s: float, wait: str) -> None:
    """And what is sent again; who left hears of no Retry-After, nobody obeys one of more than a minute."""
    (sentence,) = people_warnings({"retries": {"on": on, "retry_after_s": told_s}})
    assert wait in sentence
    assert f"requests that are {' or '.join(on)} are sent again, 2 times at most" in sentence
