"""YAML by the 1.2 core rules, with the line of every key.

The text is parsed by PyYAML (its C parser where it is there) only as far as nodes; the values are made
here. Against PyYAML's own YAML 1.1 rules: `1e9` and `8e-3` are numbers; `on`, `no`, `12:30`, `017` and
`1_000` are text, for the schema to judge, and so is what is not finite (`.nan`, `1e999`); a key is always
text; a key that is there twice is a fault.
Core schema: https://yaml.org/spec/1.2.2/#103-core-schema
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from sim.faults import InputFault
from sim.scenario.tree import Faults, KeyPath, Place, Tree, spell

_TAG = "tag:yaml.org,2002:"
_MOST_VALUES = 100_000  # aliases of aliases can unfold a small file into billions of values
_DEEPEST = 60
_PATTERNS = (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", tuple("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", tuple("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        tuple("-+.0123456789"),
    ),
    ("merge", r"<<", ("<",)),
)
_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def core_loader(base: type) -> type:
    """A loader class on *base* (PyYAML's SafeLoader or CSafeLoader) that resolves by the core schema."""
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for name, pattern, firsts in _PATTERNS:
        for first in firsts:
            resolvers.setdefault(first, []).append((_TAG + name, re.compile(f"(?:{pattern})$")))
    return type("CoreLoader", (base,), {"yaml_implicit_resolvers": resolvers})


CoreLoader = core_loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_file(path: Path, faults: Faults) -> Tree:
    """The YAML mapping in the file *path*; places name the file without its folder.

    Faults that leave the rest readable (a key that is there twice, a tag) go to *faults*.
    Raises `InputFault` for a file that cannot be read, is no UTF-8, no YAML, empty or no mapping.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputFault(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputFault(
            f"{path.name}:{line}: must be UTF-8 text (byte 0x{data[error.start]:02x})"
        ) from error
    tree = read_text(text, Place(path.name, folder=path.parent), faults)
    if tree.value is None:
        raise InputFault(f"{path.name}: is empty; it must be a mapping of keys to values")
    if not isinstance(tree.value, dict):
        raise InputFault(f"{tree.place()}: must be a mapping of keys to values, `key: value` on each line")
    return Tree(tree.value, {**tree.places, (): Place(path.name, None, path.parent)})


def read_text(text: str, source: Place, faults: Faults, at: KeyPath = (), loader: Any = CoreLoader) -> Tree:
    """The one YAML value in *text*, whatever it is; None for no value at all. Faults spell paths from *at*.

    The places carry line numbers where *source* is a file, which is to say where it has a folder.
    Raises `InputFault` for what is no YAML.
    """
    if wrong := _NOT_TEXT.search(text):
        place = _line(source, text.count("\n", 0, wrong.start()))
        raise InputFault(f"{place}: has a character that YAML does not allow (0x{ord(wrong[0]):02x})")
    try:
        node = loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise InputFault(_syntax_sentence(error, text, source)) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputFault(f"{source}: is not YAML that can be read here ({type(error).__name__})") from error
    if node is None:
        return Tree(None, {(): source})
    return _Reader(source, faults, at).tree(node)


def _line(source: Place, line: int) -> Place:
    return source if source.folder is None else source._replace(line=line + 1)


def _syntax_sentence(error: yaml.MarkedYAMLError, text: str, source: Place) -> str:
    mark = error.problem_mark or error.context_mark
    number = mark.line if mark else 0
    lines = text.splitlines()
    here = lines[number] if number < len(lines) else ""
    column = mark.column if mark else 0
    problem = (error.problem or "cannot be parsed").replace("\n", " ")
    opened = error.context_mark.line if error.context_mark else number
    return f"{_line(source, number)}: {_advice(problem, here, column)}" + (
        f" (opened on line {opened + 1})" if opened != number and "flow" in (error.context or "") else ""
    )


def _advice(problem: str, line: str, column: int) -> str:
    character = line[column : column + 1]
    if "tab character" in problem or ("cannot start any token" in problem and "\t" in line[: column + 1]):
        return "a tab cannot indent YAML; write spaces"
    if "cannot start any token" in problem and character:
        return f"a value cannot start with {character}; put it in quotes"
    if "mapping values are not allowed" in problem:
        return "a second `: ` where one value is expected; mend the indent or put the text in quotes"
    if "another document" in problem:
        return "a second document (---) starts here; only one is read"
    if "nesting" in problem:
        return "is nested too deeply"
    return f"is not YAML: {problem}"


class _Reader:
    """Makes plain values out of the nodes of one text."""

    def __init__(self, source: Place, faults: Faults, at: KeyPath) -> None:
        self.source = source
        self.faults = faults
        self.at = at
        self.places: dict[KeyPath, Place] = {}
        self.values = 0

    def tree(self, node: Any) -> Tree:
        value = self.read(node, ())
        return Tree(value, {(): self._place(node), **self.places})

    def read(self, node: Any, path: KeyPath) -> Any:
        self.values += 1
        if self.values > _MOST_VALUES or len(path) > _DEEPEST:
            too = "has too many values" if self.values > _MOST_VALUES else "is nested too deeply"
            raise InputFault(f"{self._place(node)}: {too} (an alias that holds itself, perhaps)")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self._fault(node, path, f"has the tag {_short(node.tag)}, which is not read here")
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self._item(child, (*path, f"[{i}]")) for i, child in enumerate(node.value)]
        return self._mapping(node, path)

    def _item(self, node: Any, path: KeyPath) -> Any:
        self.places[path] = self._place(node)
        return self.read(node, path)

    def _mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, child in node.value:
            name = self._key(key, path)
            if name is None:
                continue
            if name in lines:
                self._fault(key, (*path, name), f"is written twice (first on line {lines[name]})")
                continue
            lines[name] = key.start_mark.line + 1
            if key.tag == f"{_TAG}merge":
                merged = self._merge(child, path)
            else:
                self.places[(*path, name)] = self._place(key)
                own[name] = self.read(child, (*path, name))
        return {**merged, **own}

    def _key(self, node: Any, path: KeyPath) -> str | None:
        if isinstance(node, yaml.ScalarNode) and (node.value or node.style):
            return node.value
        self._fault(node, path, "has a key that is not plain text")
        return None

    def _merge(self, node: Any, path: KeyPath) -> dict[str, Any]:
        """The mapping that `<<` brings in; of several the earlier wins, and a key written out beats all."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[str, Any] = {}
        for child in nodes:
            if isinstance(child, yaml.MappingNode):
                before = dict(self.places)
                result = {**self.read(child, path), **result}
                self.places = {**self.places, **before}
            else:
                self._fault(child, (*path, "<<"), "must be a mapping or a list of mappings")
        return result

    def _scalar(self, node: Any, path: KeyPath) -> Any:
        kind = node.tag.removeprefix(_TAG)
        text = node.value
        if kind in ("str", "merge", "!"):
            return text
        try:
            value = _SCALARS[kind](text)
        except KeyError:
            self._fault(node, path, f"has the tag {_short(node.tag)}, which is not read here")
            return text
        except ValueError:
            self._fault(node, path, f"must be a value of its tag {_short(node.tag)} (got {text:.40})")
            return text
        return text if isinstance(value, float) and not math.isfinite(value) else value

    def _place(self, node: Any) -> Place:
        return _line(self.source, node.start_mark.line)

    def _fault(self, node: Any, path: KeyPath, sentence: str) -> None:
        self.faults.add(self._place(node), f"{spell((*self.at, *path)) or 'the value'} {sentence}")


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")


def _whole(text: str) -> int | float:
    """An integer; one of more digits than any quantity here has is read as a float, hence not finite."""
    if text.startswith(("0o", "0x")):
        return int(text, 0)
    return int(text) if len(text) < 300 else math.inf


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_SCALARS: dict[str, Any] = {
    "null": lambda text: None,
    "bool": _bool,
    "int": _whole,
    "float": float,
}
