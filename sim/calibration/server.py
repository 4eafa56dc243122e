"""Constants of servers from what they were measured to do.

`fit_constants` minimises the distance between the logarithms of measured and predicted metrics, weighed by
`spread`, plus that between constants and what was believed of them (`constants.KINDS`). Derivatives are
differences between simulations with the same random numbers (`descent`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sim.calibration.constants import Constants
from sim.calibration.descent import Fitting
from sim.calibration.observation import Observation, Predict, thinned
from sim.calibration.server_fit import Fit

__all__ = ["MOST_POINTS", "Fit", "Observation", "Predict", "fit_constants"]

Progress = Callable[[int, int, str], None]
MOST_POINTS = 40
_ALIKE = 2.0  # difference of -2 log evidence that tells nothing


def fit_constants(
    points: Sequence[Observation],
    predict: Predict,
    start: Constants,
    *,
    overlapped: bool | None = None,
    most_points: int = MOST_POINTS,
    profiles: bool = False,
    held: Collection[str] = (),
    progress: Progress | None = None,
) -> Fit:
    """The constants that the *points* speak for, beginning at *start* (all set).

    Host times are summed with the GPU's or overlapped with them, whichever fits better (start's where both
    fit alike), or as *overlapped* says. More than *most_points* are thinned out, evenly over set-ups. With
    *profiles* the ends of the host times' intervals are simulated, too, and not taken from derivatives alone.
    Constants named in *held* stay at *start*.
    Points that cannot be predicted are left out; raises ValueError where none is left.
    """
    chosen = thinned(points, most_points)
    ways = (bool(start.overlapped), not start.overlapped) if overlapped is None else (overlapped,)
    fits = []
    for number, way in enumerate(ways):
        done = number * len(chosen) * 60

        def told(count: int, done: int = done) -> None:
            if progress:
                progress(done + count, len(ways) * len(chosen) * 60, "simulations")

        fits.append(Fitting(chosen, predict, start, way, profiles, held, told).run())
    if len(fits) == 1:
        return fits[0][1]
    (first, one), (second, other) = fits
    better, worse = (other, second - first) if second < first - _ALIKE else (one, second - first)
    return replace(better, told_apart=abs(worse))
