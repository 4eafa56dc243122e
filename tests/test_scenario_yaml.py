"""YAML by the 1.2 core rules, with lines."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sim.faults import InputFault
from sim.scenario.tree import Faults, Place, Tree
from sim.scenario.yaml_core import core_loader, read_file, read_text

BASES = (yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
FILE = Place("x.yaml", folder=Path())
LOADERS = [core_loader(base) for base in dict.fromkeys(BASES)]
loaders = pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__mro__[1].__name__)


def read(text: str, loader: type = LOADERS[0]) -> Tree:
    """The value of *text*; its faults are raised."""
    faults = Faults()
    tree = read_text(text, FILE, faults, loader=loader)
    faults.raise_any()
    return tree


def fault(text: str, loader: type = LOADERS[0]) -> str:
    with pytest.raises(InputFault) as caught:
        read(text, loader)
    return str(caught.value)


@loaders
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9), ("8e-3", 0.008), ("1e+9", 1e9), ("1.0e9", 1e9), ("1.0e+9", 1e9), (".5", 0.5),
        ("-3", -3), ("0", 0), ("0x1F", 31), ("0o17", 15),
        ("true", True), ("FALSE", False), ("~", None), ("null", None),
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"),
        ("12:30", "12:30"), ("1:30:00", "1:30:00"), ("017", "017"), ("1_000", "1_000"), ("0b1", "0b1"),
        ("2026-01-01", "2026-01-01"), ("nan", "nan"), (".nan", ".nan"), (".inf", ".inf"), ("1e999", "1e999"),
        ("'5'", "5"), ("!!str 5", "5"), ("!!float 5", 5.0), ('"<<"', "<<"), ("=", "="),
    ],
)  # fmt: skip
def test_scalars_are_what_they_look_like(text: str, value: Any, loader: type) -> None:
    """Numbers by the core schema; what only YAML 1.1 takes for a number or a bool is text."""
    read_value = read(f"key: {text}", loader).value["key"]
    assert read_value == value
    assert type(read_value) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans() | st.none())
def test_every_json_scalar_reads_as_itself(value: Any) -> None:
    """JSON is YAML: what json writes is read back."""
    assert read(json.dumps({"key": value})).value == {"key": value}


def test_keys_are_text() -> None:
    """`on:` stays on, `2:` is "2", `null:` is "null"."""
    assert read("on: 1\n2: 1\nnull: 1\ntrue: 1").value == {"on": 1, "2": 1, "null": 1, "true": 1}


@loaders
def test_each_path_knows_its_line(loader: type) -> None:
    """Lines are those of the keys, in flow style too."""
    tree = read("a: 1\nb:\n  c: {d: 1,\n    e: [5,\n 6]}\n", loader)
    lines = {path: place.line for path, place in tree.places.items()}
    assert lines[("b",)] == 2
    assert lines[("b", "c", "e")] == 4
    assert lines[("b", "c", "e", "[1]")] == 5
    assert str(tree.place(("b", "c", "unknown"))) == "x.yaml:3"


@loaders
def test_a_key_twice_is_a_fault_with_both_lines(loader: type) -> None:
    """At the top, nested, and quoted against plain; all of them at once."""
    message = fault("a: 1\nb:\n  c: 1\n  'c': 2\na: 2\n", loader)
    assert message.split("\n") == [
        "x.yaml:4: b.c is written twice (first on line 3)",
        "x.yaml:5: a is written twice (first on line 1)",
    ]


def test_merge_keys_are_no_duplicates() -> None:
    """A key written out beats a merged one, and of several mappings the earlier wins."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n"
    tree = read(text)
    assert tree.value["c"] == {"x": 3, "y": 1, "z": 2}
    assert tree.place(("c", "y")).line == 1
    assert tree.place(("c", "x")).line == 5


@loaders
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a:\n\tb: 1", "x.yaml:2: a tab cannot indent YAML; write spaces"),
        ("a: 1\n\tb: 1", "x.yaml:2: "),
        ("a: b: c", "x.yaml:1: a second `: ` where one value is expected"),
        ("a: [1,\n  2\nb: 1", "(opened on line 1)"),
        ("a: 1\n---\nb: 2", "x.yaml:2: a second document"),
        ("a: @x", "x.yaml:1: a value cannot start with @"),
        ("a: *x", "x.yaml:1: is not YAML: found undefined alias"),
        ("a: 1\nb: \x01", "x.yaml:2: has a character that YAML does not allow (0x01)"),
        ("a: !!python/object:os.system 1", "x.yaml:1: a has the tag !!python/object:os.system"),
        ("a: !!set {b}", "x.yaml:1: a has the tag !!set"),
        ("a: !!int b", "x.yaml:1: a must be a value of its tag !!int (got b)"),
        ("? [1]\n: 2", "x.yaml:1: the value has a key that is not plain text"),
        ("?\n: 2", "has a key that is not plain text"),
        ("a:\n  <<: 3", "x.yaml:2: a.<< must be a mapping"),
        ("a: &a [*a]", "x.yaml:1: is nested too deeply"),
        ("[" * 1100, "x.yaml"),
    ],
)
def test_what_is_no_yaml_is_one_sentence_with_its_line(text: str, sentence: str, loader: type) -> None:
    """File, line, what is wrong; no line breaks and no parser's names."""
    message = fault(text, loader)
    assert sentence in message
    assert "\n" not in message


def test_aliases_cannot_unfold_without_end() -> None:
    """Nine lines of aliases of aliases are a fault, not a full memory."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "too many values" in fault("\n".join(lines))


def file_fault(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(InputFault) as caught:
        read_file(path, Faults())
    return str(caught.value)


def test_what_is_no_mapping_in_utf_8_is_one_sentence(tmp_path: Path) -> None:
    """Empty, a comment alone, a list, other encodings, a folder."""
    path = tmp_path / "x.yaml"
    assert file_fault(path, b"") == "x.yaml: is empty; it must be a mapping of keys to values"
    assert file_fault(path, b"# nothing\n").startswith("x.yaml: is empty")
    assert file_fault(path, b"- a\n").startswith("x.yaml:1: must be a mapping")
    assert file_fault(path, b"hello").startswith("x.yaml:1: must be a mapping")
    assert file_fault(path, b"a: 1\nb: \xe9\n") == "x.yaml:2: must be UTF-8 text (byte 0xe9)"
    assert file_fault(path, "a: 1".encode("utf-16")).startswith("x.yaml:1: must be UTF-8 text")
    with pytest.raises(InputFault, match="cannot be read"):
        read_file(tmp_path, Faults())


def test_a_byte_order_mark_and_other_line_ends_are_fine(tmp_path: Path) -> None:
    """As editors on Windows write them."""
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    tree = read_file(path, Faults())
    assert tree.value == {"a": 1, "b": 2}
    assert str(tree.place(("b",))) == "x.yaml:2"


@loaders
@given(text=st.text(alphabet="ab01:-?,[]{}#&*!|>'\"%@`<=~. \n\t\\", max_size=30) | st.text(max_size=20))
def test_any_text_is_read_or_is_a_fault(text: str, loader: type) -> None:
    """No text whatever raises anything but InputFault."""
    with contextlib.suppress(InputFault):
        read(text, loader)
