"""A key of an input file, and how its value is read: the row type of the tables in `schema`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.clock import HORIZON_S
from sim.faults import did_you_mean
from sim.scenario.quantities import RefusedError, measure, whole
from sim.scenario.tree import KeyPath


@dataclass(frozen=True)
class Key:
    """One key: where it stands, what it holds, what it means."""

    path: str
    """`engine.max_num_seqs`; a part in angle brackets stands for the names in `PLACEHOLDERS`."""
    kind: str
    """One of `KINDS`; `mapping` for a key that holds keys."""
    meaning: str
    default: Any = None
    """What holds where the key is not written; `{}` for a mapping whose own keys have defaults."""
    otherwise: str = ""
    """In words, how the default comes about where it is no constant."""
    required: bool = False
    above: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    many: bool = False
    """The value is a list of the kind."""
    when: tuple[str, tuple[str, ...]] | None = None
    """(path of another key, its values): the key belongs to these only."""
    needs: str = ""
    """Path of another key, without which this one has no meaning; who replaces that drops this."""
    unless: str = ""
    """Path of another key, whose presence makes a required one needless."""
    one_of: str = ""
    """Keys of one such group exclude one another; one set from the command line replaces the others."""

    @property
    def parts(self) -> KeyPath:
        return tuple(self.path.split("."))

    def read(self, value: Any) -> Any:
        """*value* (of a list: one item) in base units. Raises `RefusedError`."""
        read = self._bounded(KINDS[self.kind].read(value, self), isinstance(value, str))
        if self.kind == "seconds" and read > HORIZON_S:
            raise RefusedError(self.requirement, f"no time is longer than {HORIZON_S:,.0f} s, twelve days")
        return read

    @property
    def requirement(self) -> str:
        """What a fault's sentence on one value says after `must be`."""
        kind = KINDS[self.kind]
        one = _either(self.choices) if self.choices else kind.requirement
        limits = ((">", self.above), (">=", self.minimum), ("<=", self.maximum), ("<", self.below))
        bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
        return f"{one} {bounds}".rstrip() + (f", such as {kind.example}" if kind.example else "")

    def _bounded(self, value: Any, as_text: bool) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            inside = (
                (self.above is None or value > self.above)
                and (self.minimum is None or value >= self.minimum)
                and (self.maximum is None or value <= self.maximum)
                and (self.below is None or value < self.below)
            )
            if not inside:
                share = self.kind == "share" and 1 < value <= 100 and not as_text
                raise RefusedError(self.requirement, f"write {value / 100:g} or {value:g}%" if share else "")
        return value


def _either(words: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


@dataclass(frozen=True)
class Kind:
    """How one kind of value is read, and what documents and editors say about it."""

    read: Callable[[Any, Key], Any]
    requirement: str
    example: str = ""
    dimension: str = ""
    json_type: str = "number"


def _quantity(
    dimension: str, rounded: Callable[[float, str], int] | None = None
) -> Callable[[Any, Key], float | int]:
    def read(value: Any, key: Key) -> float | int:
        base = measure(value, dimension, key.requirement)
        return rounded(base, key.requirement) if rounded else float(base)

    return read


def _nearest(value: float, requirement: str) -> int:
    """Bytes: logs print GiB to two decimals, which are no whole number of bytes."""
    return round(value)


def _flag(value: Any, key: Key) -> bool:
    if not isinstance(value, bool):
        raise RefusedError(key.requirement, "write true or false" if isinstance(value, str) else "")
    return value


def _text(value: Any, key: Key) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise RefusedError(key.requirement, "" if isinstance(value, dict | list | str) else "put it in quotes")


def _choice(value: Any, key: Key) -> str:
    if not isinstance(value, str):
        raise RefusedError(key.requirement)
    if value not in key.choices:
        near = did_you_mean(value, key.choices).removeprefix("; ")
        raise RefusedError(key.requirement, near if near.startswith("did you mean") else "")
    return value


def _matrix(value: Any, key: Key) -> list[list[float]]:
    if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
        raise RefusedError(key.requirement)
    return [[float(measure(item, "number", key.requirement)) for item in row] for row in value]


def _warmup(value: Any, key: Key) -> float | dict[str, float]:
    """A share stays a number; a time becomes `{seconds: 30.0}`, which is also read."""
    text = value.get("seconds") if isinstance(value, dict) and list(value) == ["seconds"] else value
    if text is not value or (isinstance(text, str) and re.search("[a-z]$", text.strip())):
        seconds = float(measure(text, "seconds", key.requirement))
        if seconds < 0:
            raise RefusedError(key.requirement)
        return {"seconds": seconds}
    share = float(measure(value, "share", key.requirement))
    if not 0 <= share < 1:
        raise RefusedError(key.requirement, f"write {share:g}s if seconds are meant" if share >= 1 else "")
    return share


def _as_written(value: Any, key: Key) -> Any:
    if isinstance(value, str | dict) and value != "":
        return value
    raise RefusedError(key.requirement, "put the name in quotes" if isinstance(value, int | float) else "")


KINDS: Mapping[str, Kind] = {
    "count": Kind(_quantity("number", whole), "a whole number", "", "number", "integer"),
    "tokens": Kind(_quantity("number", whole), "a whole number of tokens", "", "number", "integer"),
    "number": Kind(_quantity("number"), "a number", "", "number"),
    "bytes": Kind(_quantity("bytes", _nearest), "a size in bytes", "80GiB", "bytes", "integer"),
    "bytes per second": Kind(
        _quantity("bytes per second"), "a number of bytes per second", "2039GB/s", "bytes per second"
    ),
    "seconds": Kind(_quantity("seconds"), "a time in seconds", "250ms", "seconds"),
    "per second": Kind(_quantity("per second"), "a rate per second", "", "per second"),
    "share": Kind(_quantity("share"), "a share of one", "92%", "share"),
    "usd": Kind(_quantity("number"), "US dollars", "", "number"),
    "flag": Kind(_flag, "true or false", json_type="boolean"),
    "matrix": Kind(_matrix, "a list of rows, each a list of numbers", json_type="array"),
    "text": Kind(_text, "text", json_type="string"),
    "choice": Kind(_choice, "", json_type="string"),
    "warmup": Kind(_warmup, "a share in [0, 1) or a time", "30s", json_type="warmup"),
    "reference": Kind(_as_written, "a name, a path or a mapping", json_type="reference"),
    "mapping": Kind(_as_written, "a mapping", json_type="object"),
}


@dataclass(frozen=True)
class Placeholder:
    """What a part such as `<dtype>` of a key's path stands for."""

    pattern: str
    examples: tuple[str, ...]
    """Every name where they are few, else good ones: for `did you mean` and the documents."""

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None


@dataclass(frozen=True)
class Group:
    """The keys of a table as a tree: what may stand in one mapping."""

    key: Key | None = None
    inside: dict[str, Group] = field(default_factory=dict)

    def find(self, name: str, placeholders: Mapping[str, Placeholder]) -> Group | None:
        """The entry for the key *name*, by its own name or through a placeholder."""
        if name in self.inside and name not in placeholders:
            return self.inside[name]
        fitting = (
            inner
            for part, inner in self.inside.items()
            if part in placeholders and placeholders[part].matches(name)
        )
        return next(fitting, None)


def grouped(keys: tuple[Key, ...]) -> Group:
    """The tree of a table's keys. A mapping needs a row of its own only to say something about itself."""
    root: dict[str, Any] = {}
    for key in keys:
        at = root
        for part in key.parts:
            at = at.setdefault(part, {})
        at[""] = key
    return _group(root)


def _group(raw: dict[str, Any]) -> Group:
    return Group(raw.get(""), {part: _group(inner) for part, inner in raw.items() if part})
