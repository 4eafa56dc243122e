"""How uneven arrivals are, seen through windows of many lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WINDOWS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LEAST_WINDOWS = 5


@dataclass(frozen=True, eq=False)
class Dispersion:
    """Counts of arrivals in windows of equal length, for each length of `windows_s` (float64, seconds).

    index: variance over mean of the counts, 1 for a Poisson process at any length (Fano 1947; Sriram and
    Whitt 1986). quiet: share of the windows without arrivals. windows: how many there are. Where the times
    are cut into bins, the variance is that within bins.
    """

    windows_s: np.ndarray
    index: np.ndarray
    quiet: np.ndarray
    windows: np.ndarray

    def at(self, window_s: float) -> float:
        """The index at the length *window_s*; nan where it was not measured."""
        found = np.flatnonzero(self.windows_s == window_s)
        return float(self.index[found[0]]) if len(found) else float("nan")


def dispersion(
    times_s: np.ndarray, span_s: float, lengths_s: Sequence[float] = WINDOWS_S, bin_s: float | None = None
) -> Dispersion:
    """Of arrivals at *times_s* (never falling) in [0, *span_s*]; within bins of *bin_s*, or in all of it.

    Only lengths of which a bin has five windows at least.
    """
    bin_s = span_s if bin_s is None else bin_s
    bins = max(int(span_s / bin_s + 1e-9), 1)
    kept = [length_s for length_s in lengths_s if length_s * LEAST_WINDOWS <= bin_s]
    index, quiet, windows = [], [], []
    for length_s in kept:
        each = int(bin_s / length_s + 1e-9)
        number, within_s = np.divmod(times_s, bin_s)
        inside = (number < bins) & (within_s < each * length_s)
        place = number[inside] * each + np.minimum(within_s[inside] // length_s, each - 1)
        counts = np.bincount(place.astype(np.int64), minlength=bins * each).reshape(bins, each)
        index.append(counts.var(axis=1).mean() / counts.mean() if counts.any() else 0.0)
        quiet.append(float((counts == 0).mean()))
        windows.append(bins * each)
    return Dispersion(*(np.array(column, dtype=np.float64) for column in (kept, index, quiet, windows)))
