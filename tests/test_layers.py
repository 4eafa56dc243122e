"""Imports go one way, and heavy libraries are imported where they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sim"

BASE = {"faults", "files", "clock", "version"}
VALUES = BASE | {"scenario", "hardware", "model"}
MAY_IMPORT = {
    "faults": set(),
    "clock": set(),
    "version": set(),
    "files": {"faults"},
    "model": BASE,
    "hardware": BASE | {"model"},
    "scenario": BASE | {"hardware", "model"},
    "workload": VALUES,
    "serving": BASE | {"hardware", "model"},
    "simulation": VALUES | {"workload", "serving"},
    "results": VALUES | {"workload", "serving", "simulation"},
    "planning": VALUES | {"workload", "serving", "simulation", "results"},
    "report": VALUES | {"workload", "serving", "simulation", "results", "planning"},
    "calibration": VALUES | {"workload", "serving", "simulation", "results"},
    "validation": VALUES
    | {"workload", "serving", "simulation", "results", "planning", "report", "calibration"},
    "cli": VALUES
    | {"workload", "serving", "simulation", "results", "planning", "report", "calibration", "validation"},
}
ROOT = {"__init__.py", "__main__.py"}  # of the package: they put the parts together
HEAVY = {"pandas", "matplotlib", "scipy", "pyarrow", "rich"}


def package_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ROOT or path.parent != PACKAGE)


def imported(node: ast.AST, path: Path) -> Iterator[str]:
    """Full names of what an import statement imports, relative ones resolved from the file's place."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = ("sim", *path.relative_to(PACKAGE).parts[:-1])
        base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
        module = ".".join(part for part in (base, node.module) if part)
        # `from sim import planning` and `from . import knee` name modules after the import.
        yield from (f"{module}.{alias.name}" for alias in node.names)


def faults_of(source: str, path: Path) -> list[str]:
    """What *source*, standing at *path*, imports against the rules: at any depth, in functions too."""
    tree = ast.parse(source)
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    found = []
    for node in ast.walk(tree):
        for name in imported(node, path):
            top, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if top == "sim" and target != part and target not in MAY_IMPORT[part]:
                found.append(f"{part} imports {name}")
            if top == "simpy" and part != "simulation":
                found.append(f"{part} imports simpy")
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found.append(f"{part} imports by name: {ast.unparse(node)}")
    return found + [f"{part} imports {name} at its top" for name in heavy_at_the_top(tree, path)]


def heavy_at_the_top(tree: ast.AST, path: Path) -> list[str]:
    """Heavy libraries imported when the module is: not in a function, not for type checkers alone."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        found += [name for name in imported(node, path) if name.partition(".")[0] in HEAVY]
        found += heavy_at_the_top(node, path)
    return found


@pytest.mark.parametrize("path", package_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_direction(path: Path) -> None:
    """values <- workload, serving <- simulation <- results <- planning <- report, validation, cli."""
    assert faults_of(path.read_text(encoding="utf-8"), path) == []


def test_every_part_has_its_place() -> None:
    """A new package must be given its place in the order, and the order has no circles."""
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in package_files()}
    assert parts <= set(MAY_IMPORT)
    for part, below in MAY_IMPORT.items():
        assert all(part not in MAY_IMPORT[other] for other in below)


@pytest.mark.parametrize(
    ("place", "source", "fault"),
    [
        (
            "planning/knee.py",
            "def plot():\n    from sim.report import figures",
            "planning imports sim.report",
        ),
        ("planning/knee.py", "from ..report.figures import draw", "planning imports sim.report"),
        ("planning/knee.py", "from .. import cli", "planning imports sim.cli"),
        ("serving/scheduler.py", "from sim.scenario import load", "serving imports sim.scenario"),
        ("serving/scheduler.py", "import sim.workload.lengths", "serving imports sim.workload"),
        ("results/metrics.py", "from sim import planning", "results imports sim.planning"),
        ("results/metrics.py", "import sim", "results imports sim"),
        ("model/spec.py", "from sim.hardware import HardwareProfile", "model imports sim.hardware"),
        ("serving/block_pool.py", "def f():\n    import simpy", "serving imports simpy"),
        ("results/metrics.py", "class A:\n    import pandas as pd", "results imports pandas at its top"),
        ("report/figures.py", "try:\n    from matplotlib import cm\nexcept E: pass", "at its top"),
        ("planning/knee.py", "import_module('sim.report')", "planning imports by name"),
    ],
)
def test_the_rule_sees(place: str, source: str, fault: str) -> None:
    """Upward imports are found in functions, relative or by the package's name; so are heavy ones on top."""
    assert any(fault in found for found in faults_of(source, PACKAGE / place))


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("report/figures.py", "def draw():\n    from matplotlib.figure import Figure"),
        ("report/figures.py", "if TYPE_CHECKING:\n    from matplotlib.figure import Figure"),
        ("simulation/replica.py", "import simpy"),
        ("planning/knee.py", "from .search import Search"),
        ("scenario/load.py", "from sim.hardware import HardwareProfile"),
    ],
)
def test_the_rule_allows(place: str, source: str) -> None:
    """Downward imports, a package's own modules, and heavy libraries inside functions are fine."""
    assert faults_of(source, PACKAGE / place) == []
