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
_COLUMNS = {"prompt_tokens": "prompt lengths", "output_tokens": "answer lengths", "patience_s": "patience"}


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
    """Which of arrivals, prompt lengths, answer lengths and patience are other draws in the two.

    A column that is the other one scaled (another rate, another mean) is the same draw. Judged by the
    first requests of the first scenario's seed; what neither draws is shared.
    """
    if "concurrency" in first.load or "concurrency" in other.load:
        arrivals = [] if first.load == other.load else ["arrivals"]
    else:
        arrivals = None
    a, b = _begun(first, first.run["seed"]), _begun(other, first.run["seed"])
    if a is None or b is None:
        return ()  # its runs will say why
    if arrivals is None:
        gaps = (np.diff(requests.arrival_s) for requests in (a, b))
        arrivals = [] if _same_draws(*gaps) else ["arrivals"]
    columns = ((getattr(a, name), getattr(b, name), words) for name, words in _COLUMNS.items())
    return (*arrivals, *(words for x, y, words in columns if not _same_draws(x, y)))


def _begun(scenario: Scenario, seed: int) -> Requests | None:
    run = {"requests": LOOKED_AT, "seed": seed}
    try:
        return generate(scenario.workload, scenario.load, run)
    except InputFault:
        return None


def _same_draws(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    count = min(len(a), len(b))
    a, b = a[:count], b[:count]
    if count < 2 or _constant(a) or _constant(b):
        return True  # needs no draws
    return bool(np.corrcoef(_ranks(a), _ranks(b))[0, 1] >= SAME_ORDER)


def _constant(values: np.ndarray) -> bool:
    return bool(np.ptp(values) <= 1e-6 * np.abs(values).max())  # times lie on a grid


def _ranks(values: np.ndarray) -> np.ndarray:
    """Mean rank of equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
