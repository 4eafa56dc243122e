"""The grid that every time lies on.

Sums of floating-point seconds drift, and a leap would then end elsewhere than the steps it stands
for. Times and durations are multiples of 2**-32 s (0.23 ns), whose sums are exact in a double up to
`HORIZON_S`, so leaping and stepping add the same numbers.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

TICK_S = 2.0**-32
HORIZON_S = 2.0**20  # twelve days; a longer run is refused

# A double between 2**20 and 2**21 has a spacing of exactly one tick, so adding this rounds to the grid
# and subtracting it is exact, of what is not negative.
GRID_SHIFT = 2.0**20

Seconds = TypeVar("Seconds", float, np.ndarray)


def on_grid(seconds: Seconds) -> Seconds:
    """*seconds* (scalar or array, from 0 to `HORIZON_S`) rounded to the nearest multiple of `TICK_S`."""
    return (seconds + GRID_SHIFT) - GRID_SHIFT
