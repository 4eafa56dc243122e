"""The notebooks run from top to bottom, as they are stored: without outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def cells(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell in one namespace, in its own folder and without a display; it draws and it prints."""
    monkeypatch.chdir(FOLDER)
    matplotlib.use("Agg")
    from matplotlib import pyplot

    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(name), start=1):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), namespace)
    drawn = [axis for figure in map(pyplot.figure, pyplot.get_fignums()) for axis in figure.axes]
    pyplot.close("all")
    assert drawn
    assert all(axis.has_data() for axis in drawn)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_what_a_run_leaves(name: str) -> None:
    """No outputs and no counters, so that a change of a notebook is a change of its text."""
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_asks_runs_draws_and_concludes(name: str) -> None:
    """Question first, key points last; no number in them that no cell prints."""
    texts = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "markdown"]
    assert "**Question.**" in texts[0]
    assert any(text.startswith("## Run") for text in texts)
    assert any(text.startswith("## Figure") for text in texts)
    assert texts[-1].startswith("## Key points")


def test_the_notebooks_are_there() -> None:
    """In the order in which they are read."""
    assert NOTEBOOKS == [
        "01-first-knee.ipynb",
        "02-static-against-continuous.ipynb",
        "03-memory-levers.ipynb",
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_many_runs_are_a_sweep(name: str) -> None:
    """A row of loads or a table of levers is `sim.sweep`, as a user would write it, and no loop of runs."""
    code = "\n".join("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code")
    loops = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.For | ast.comprehension)]
    assert "sim.sweep(" in code
    assert not [loop for loop in loops if "simulate" in ast.unparse(loop)]
    assert code.count("sim.simulate(") <= 1
