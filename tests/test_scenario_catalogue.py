"""Finding files by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_inputs import Catalogue

from sim.faults import InputFault
from sim.scenario import aliases, entry, find, find_preset, names, preset_names


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path)


@pytest.mark.parametrize("name", ["tiny-1b", "TINY-1B", "Org/Tiny-1B-Instruct", "org/tiny-1b-instruct"])
def test_a_name_or_an_alias_finds_the_file(catalogue: Catalogue, name: str) -> None:
    """Hugging Face ids are aliases, and case does not matter."""
    assert find("models", name, catalogue.folders) == catalogue.root / "models" / "tiny-1b.yaml"


def test_names_are_in_order(catalogue: Catalogue) -> None:
    """Those of the files; a kind without a folder has none."""
    catalogue.write("models/a.yaml", "layers: 1")
    assert names("models", catalogue.folders) == ("a", "tiny-1b")
    assert names("models", {}) == ()
    assert aliases("models", "tiny-1b", catalogue.folders) == ("Org/Tiny-1B-Instruct",)


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        ("models", "tiny-1c", "model tiny-1c is unknown; did you mean tiny-1b?"),
        ("models", "Org/Tiny-1B-Instruc", "did you mean Org/Tiny-1B-Instruct?"),
        ("models", "zzz", "model zzz is unknown; possible: tiny-1b"),
        ("gpus", "x", "kind gpus is unknown"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(
    catalogue: Catalogue, kind: str, name: str, sentence: str
) -> None:
    """Of names first, then of aliases, else all there are."""
    with pytest.raises(InputFault) as caught:
        find(kind, name, catalogue.folders)
    assert sentence in str(caught.value)


def test_a_broken_file_does_not_hide_the_others(catalogue: Catalogue) -> None:
    """Its faults are told when it is named."""
    catalogue.write("models/broken.yaml", "aliases: [Org/Tiny-1B-Instruct\n")
    (catalogue.root / "models" / "latin.yaml").write_bytes(b"aliases: [\xe9]")
    assert find("models", "org/tiny-1b-instruct", catalogue.folders).stem == "tiny-1b"


def test_an_entry_is_in_base_units_or_tells_its_faults() -> None:
    """By name or alias; what is not there is told with the nearest."""
    assert entry("hardware", "A100 40GB")["memory_bytes"] == pytest.approx(39.5 * 2**30, rel=1e-6)
    assert entry("models", "Qwen/Qwen3-8B")["layers"] == 36
    with pytest.raises(InputFault, match=r"model phi-5 is unknown; did you mean phi-4\?"):
        entry("models", "phi-5")


def test_a_broken_entry_tells_its_faults(catalogue: Catalogue) -> None:
    """All of them, with file and line."""
    catalogue.write("models/broken.yaml", "layers: none\nheads: 0\n")
    with pytest.raises(InputFault) as caught:
        entry("models", "broken", catalogue.folders)
    assert "broken.yaml:1" in str(caught.value)
    assert "broken.yaml:2" in str(caught.value)


def test_presets_have_names() -> None:
    """Each is found by its own."""
    assert [find_preset(name) for name in preset_names()] == list(preset_names())
