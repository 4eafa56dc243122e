"""What two scenarios differ in: their keys, and which random draws they do not share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.faults import InputFault
from sim.scenario import Scenario
from sim.scenario.scenario import SECTIONS
from sim.scenario.tree import leaves, spell
from sim.workload import Requests, generate

LOOKED_AT = 256  # requests: enough to tell a draw from another one
SAME_ORDER = 0.99  # rank correlation of two columns that are the same draws, scaled
_OWN = ("run.seed",)  # the comparison's
_NAMED = ("hardware", "model")  # a file's name stands for all that is in it
_LENGTHS = {
    "arrivals": "arrival_s",
    "prompt lengths": "prompt_tokens",
    "answer lengths": "output_tokens",
}
_PATIENCE = {
    "patience": "patience_s",
    "patience for a first token": "first_token_patience_s",
    "patience in the queue": "queue_patience_s",
    "tokens read": "stop_after",
    "who leaves silently": "silent",
}
COLUMNS = _LENGTHS | _PATIENCE  # of `sim.workload.Requests`, by what they are called here


@dataclass(frozen=True)
class Changed:
    """A key that differs: its values in base units (None: absent), and where each came from."""

    key: str
    first: Any
    here: Any
    first_source: str
    source: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "here": self.here,
            "first_source": self.first_source,
            "source": self.source,
        }


def changed_keys(first: Scenario, other: Scenario) -> tuple[Changed, ...]:
    """The keys whose resolved values differ, in the order of a scenario's sections."""
    return tuple(
        Changed(key, a, b, _source(first, key), _source(other, key))
        for key, a, b in _differing(_values(first), _values(other))
        if key not in _OWN
    )


def _differing(first: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    order = [*first, *(key for key in other if key not in first)]
    for section in SECTIONS:
        renamed = section in _NAMED and first.get(f"{section}.name") != other.get(f"{section}.name")
        for key in order:
            told = key == f"{section}.name" if renamed else key.partition(".")[0] == section
            if told and first.get(key) != other.get(key):
                yield key, first.get(key), other.get(key)


def _values(scenario: Scenario) -> dict[str, Any]:
    """Every value by its dotted path, without where numbers come from."""
    resolved = {name: value for name, value in scenario.resolved().items() if name in SECTIONS}
    return {spell(path): value for path, value in leaves(resolved) if path[1:2] != ("provenance",)}


def _source(scenario: Scenario, key: str) -> str:
    """Where the value came from: the entry of the key, or of the nearest thing around it."""
    sources, part = scenario.sources, key
    while part and part not in sources:
        part = part.rpartition(".")[0]
    return sources.get(part, "default")


def not_shared(first: Scenario, other: Scenario) -> tuple[str, ...]:
    """Which of `COLUMNS` are other draws in the two.

    A column that is the other one scaled (another rate, another mean) is the same draw. Judged by the first
    requests of the first scenario's seed, class by class; what only one has, the keys that differ tell.
    """
    a, b = (_begun(one, first.run["seed"]) for one in (first, other))
    if a is None or b is None:
        return ()  # its runs will say why
    waits = [one.load.get("concurrency") for one in (first, other)]
    found = {"arrivals"} if waits[0] != waits[1] else set()
    for name, rows in a.items():
        found |= {words for words in rows if name in b and not _same_draws(rows[words], b[name].get(words))}
    return tuple(words for words in COLUMNS if words in found)


def _begun(scenario: Scenario, seed: int) -> dict[str, dict[str, np.ndarray]] | None:
    """By class, the columns of the first requests; a single class has no name."""
    run = {"requests": LOOKED_AT, "seed": seed}
    try:
        requests = generate(scenario.workload, scenario.load, run)
    except InputFault:
        return None
    if requests.classes is None:
        return {"": _columns(requests, slice(None))}
    rows = {name: np.flatnonzero(requests.classes == i) for i, name in enumerate(requests.class_names)}
    return {name: _columns(requests, which) for name, which in rows.items()}


def _columns(requests: Requests, rows: np.ndarray | slice) -> dict[str, np.ndarray]:
    columns = {words: getattr(requests, name) for words, name in COLUMNS.items()}
    found = {words: column[rows].astype(float) for words, column in columns.items() if column is not None}
    if "tokens read" in found:
        found["tokens read"][found["tokens read"] == 0] = np.inf  # to the end, like patience without end
    return {**found, "arrivals": np.diff(found["arrivals"])}


def _same_draws(a: np.ndarray, b: np.ndarray | None) -> bool:
    if b is None:
        return True  # only one draws them
    count = min(len(a), len(b))
    both = np.isfinite(a[:count]) & np.isfinite(b[:count])  # of others no draw is seen
    a, b = a[:count][both], b[:count][both]
    if len(a) < 2 or _constant(a) or _constant(b):
        return True  # needs no draws
    return bool(np.corrcoef(_ranks(a), _ranks(b))[0, 1] >= SAME_ORDER)


def _constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values) <= 1e-6 * np.abs(values).max())  # times lie on a grid


def _ranks(values: np.ndarray) -> np.ndarray:
    """Mean rank of equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
