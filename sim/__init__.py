"""Kneesim: how much of this traffic can these GPUs serve within these latency limits?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.faults import InputFault
from sim.version import __version__

if TYPE_CHECKING:
    from sim.planning.compare import Comparison
    from sim.planning.knee import Knee
    from sim.planning.search import Progress
    from sim.planning.sweep import Sweep
    from sim.results import Result
    from sim.scenario import Scenario, load

__all__ = ["InputFault", "Scenario", "__version__", "compare", "find_knee", "load", "simulate", "sweep"]


def simulate(scenario: Scenario | str | Path, max_leap: int | None = None) -> Result:
    """Run *scenario* (or load it by name or path) to the end of its last request."""
    from sim.results import run_of

    return run_of(_loaded(scenario), max_leap)


def find_knee(
    scenario: Scenario | str | Path, *, precision: float | None = None, progress: Progress | None = None
) -> Knee:
    """The highest load at which every limit of *scenario* holds, to +-*precision* (default: run.precision).

    See `sim.planning.knee.find_knee`; the answer can `plot()` itself.
    """
    from sim.planning import knee
    from sim.report.figures import knee_figure

    scenario = _loaded(scenario)
    return knee.find_knee(scenario, precision=precision, progress=progress, draw=knee_figure)


def sweep(
    scenario: Scenario | str | Path,
    over: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 1,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run *scenario* at every combination of the values that *over* gives for its keys, on all cores.

    `sim.sweep(chat, {"load.rate_per_s": [2, 4, 8]}, seeds=3).table` is a DataFrame, one row a point. See
    `sim.planning.sweep.sweep`.
    """
    from sim.planning import sweep as planning

    scenario = _loaded(scenario)
    return planning.sweep(scenario, over, seeds=seeds, workers=workers, out=out, progress=progress)


def compare(
    scenarios: Sequence[Scenario | str | Path],
    *,
    seeds: int | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run *scenarios* on the same random numbers, with several *seeds*: what is different from the first.

    See `sim.planning.compare.compare`.
    """
    from sim.planning import compare as planning

    chosen = [_loaded(scenario) for scenario in scenarios]
    count = planning.SEEDS if seeds is None else seeds
    return planning.compare(chosen, seeds=count, workers=workers, out=out, progress=progress)


def _loaded(scenario: Scenario | str | Path) -> Scenario:
    from sim import scenario as values

    return scenario if isinstance(scenario, values.Scenario) else values.load(scenario)


def __getattr__(name: str) -> Any:
    """`Scenario` and `load`, imported when asked for: whoever starts a command must not wait for numpy."""
    if name in ("Scenario", "load"):
        from sim import scenario

        return getattr(scenario, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
