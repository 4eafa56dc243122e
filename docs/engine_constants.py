"""Print the host times that the public table has of an engine file's version: what `measured` in it rests on.

    python docs/engine_constants.py vllm-0.12 vllm-0.7

Efficiencies of the cards stay at the profiles' own, so that the printed times go with them; intervals hold
90 %. Minutes a file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sim.calibration.constants import constants_of
from sim.calibration.left_out import leave_out
from sim.calibration.server import Observation, fit_constants
from sim.calibration.server_fit import Fit
from sim.hardware.efficiency import EFFICIENCIES
from sim.validation.folds import Shortened, card_of, observed, stem
from sim.validation.points import read_points
from sim.validation.predict import cases_of
from sim.validation.score import offline_rates

TABLE = Path(__file__).parents[1] / "tests" / "data" / "points.csv"
MOST_POINTS = 14


def fit_of(name: str) -> Fit:
    """The constants of the rows of the version that the engine file *name* is called by."""
    points = read_points(TABLE).rows
    best = offline_rates(points)
    cases = [
        case
        for case in cases_of(points)[0]
        if case.setup.scenario.engine.get("name") == name and case.point.version
    ]
    observations = [
        Observation(case, stem(case.point), card_of(case), observed(case, best))
        for case in cases
        if observed(case, best)
    ]
    start = constants_of(observations[0].case.setup.scenario)
    return fit_constants(
        observations,
        Shortened(start),
        start,
        overlapped=bool(start.overlapped),
        most_points=MOST_POINTS,
        held=EFFICIENCIES,
    )


def told(name: str) -> str:
    """Each host time with its interval, and how often left-out set-ups are inside theirs."""
    fit = fit_of(name)
    lines = [f"{name}: {fit.points} rows of {fit.setups} set-ups"]
    for index, coordinate in enumerate(fit.space.coordinates):
        if coordinate.kind.scale is not None:
            low, high = fit.interval(index)
            value = coordinate.kind.value_of(float(fit.u[index]))
            sure = "" if fit.identified[index] else " (not identified)"
            lines.append(f"  {coordinate.name}: {value:.3g} s, {low:.3g} to {high:.3g}{sure}")
    if fit.setups > 1:
        lines.append(f"  set-ups left out inside their 90 % interval: {100 * leave_out(fit).coverage:.0f} %")
    return "\n".join(lines)


if __name__ == "__main__":
    for engine in sys.argv[1:]:
        print(told(engine), flush=True)
