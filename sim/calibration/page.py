"""The page of residuals that goes with a fitted profile: fitted over measured, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.calibration.fit import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_PANEL_INCHES = (4.2, 2.7)
_SHOWN = 4000
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by everyone
_BAND = 0.1


def page_png(fits: Sequence[Fit], card: str) -> bytes:
    """One panel for each class of each backend; no point was predicted by a fit that had seen its shape."""
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str], list[Fit]] = {}
    for fit in fits:
        panels.setdefault((fit.backend, fit.fitted.key.partition(".")[0]), []).append(fit)
    rows = -(-len(panels) // _COLUMNS)
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * _COLUMNS, _PANEL_INCHES[1] * rows + 0.6), layout="constrained"
    )
    figure.suptitle(f"{card}: fitted over measured time, on shapes that the fit had not seen")
    axes: Any = figure.subplots(rows, _COLUMNS, squeeze=False)
    for place, ((backend, kind), members) in zip(axes.flat, panels.items(), strict=False):
        _panel(place, f"{backend} {kind.replace('_', ' ')}", members)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _panel(axes: Axes, title: str, members: Sequence[Fit]) -> None:
    draw = np.random.default_rng(1)
    axes.axhspan(1 / (1 + _BAND), 1 + _BAND, color="0.9", zorder=0)
    for colour, fit in zip(_COLOURS * len(members), members, strict=False):
        measured_s, predicted_s = fit.fitted.measured_s, fit.fitted.predicted_s
        some = draw.permutation(len(measured_s))[:_SHOWN]
        errors = fit.fitted.errors
        name = fit.fitted.key.partition(".")[2] or "all"
        label = f"{name}: {errors.median_pct:.1f} %, 90th {errors.p90_pct:.0f} %"
        ratio = predicted_s[some] / measured_s[some]
        axes.plot(measured_s[some] * 1e6, ratio, ".", ms=2, alpha=0.4, color=colour, label=label)
    axes.set(xscale="log", yscale="log", ylim=(0.4, 2.5), title=title, xlabel="measured (us)")
    axes.set_yticks([0.5, 0.8, 1.0, 1.25, 2.0], ["0.5", "0.8", "1", "1.25", "2"])
    axes.minorticks_off()
    axes.legend(fontsize=7, markerscale=4, loc="upper right")
