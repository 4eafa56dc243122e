"""The curves that show what traffic is like, for the page and for the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.workload.portrait import QUANTILES, Portrait

Curve = list[tuple[float, float]]
_POINTS = 160


@dataclass(frozen=True)
class Panel:
    """One diagram. lines: what is drawn over what, by the name of the traffic. marks: values of x with their
    words. level: a value of y with its words. ends: of y, where they are given; else by the curves."""

    title: str
    x_name: str
    y_name: str
    lines: dict[str, list[Curve]]
    log_x: bool = False
    log_y: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    level: tuple[float, str] | None = None
    ends: tuple[float, float] | None = None


def panels_of(traffic: dict[str, Sequence[Portrait]]) -> list[Panel]:
    """The diagrams of *traffic*: portraits of runs, by name; the marks are those of the first."""
    first = next(iter(traffic.values()))[0]
    drawn = [_lengths(traffic, first, side) for side in ("prompt", "output")]
    if first.times_s is not None:
        drawn += [
            Panel("Arrivals over time", "time (s)", "requests/s", _curves(traffic, _over_time, most=1),
                  ends=(0.0, 0.0)),
            Panel("Burstiness by window", "length of the window (s)", "variance / mean of counts",
                  _curves(traffic, _dispersion), log_x=True, log_y=True, level=(1.0, "Poisson")),
        ]  # fmt: skip
    if first.contents is not None:
        drawn.append(_sharing(traffic, first))
    return drawn


def _lengths(traffic: dict[str, Sequence[Portrait]], first: Portrait, side: str) -> Panel:
    def tokens(portrait: Portrait) -> np.ndarray:
        return np.asarray(getattr(portrait, f"{side}_tokens"))

    def curve(portrait: Portrait) -> Curve:
        ordered = np.sort(tokens(portrait))
        at = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _POINTS)).astype(int))
        return [(float(ordered[i]), float((i + 1) / len(ordered))) for i in at]

    values = np.quantile(tokens(first), QUANTILES)
    marks = tuple(
        (float(value), f"p{100 * quantile:g} {value:,.0f}")
        for quantile, value in zip(QUANTILES, values, strict=True)
    )
    return Panel(f"{side.capitalize()} tokens", "tokens", "share of the requests that have no more",
                 _curves(traffic, curve, most=1), log_x=True, marks=marks, ends=(0.0, 1.0))  # fmt: skip


def _curves(
    traffic: dict[str, Sequence[Portrait]], curve: Callable[[Portrait], Curve], most: int = 5
) -> dict[str, list[Curve]]:
    return {name: [curve(portrait) for portrait in runs[:most]] for name, runs in traffic.items()}


def _over_time(portrait: Portrait) -> Curve:
    at_s, rates = portrait.over_time()
    return list(zip(at_s.tolist(), rates.tolist(), strict=True))


def _dispersion(portrait: Portrait) -> Curve:
    measured = portrait.dispersion()
    pairs = zip(measured.windows_s.tolist(), measured.index.tolist(), strict=True)
    return [(window_s, index) for window_s, index in pairs if index > 0]


def _sharing(traffic: dict[str, Sequence[Portrait]], first: Portrait) -> Panel:
    def curve(portrait: Portrait) -> Curve:
        return [(float(blocks), ratio) for blocks, ratio in portrait.lru_hit_ratios.items()]

    unlimited = first.hit_ratio() or 0.0
    return Panel("Prefixes that a cache finds", "blocks of 512 tokens in the cache",
                 "share of the prompts' blocks", _curves(traffic, curve, most=1), log_x=True, ends=(0.0, 1.0),
                 level=(unlimited, f"without limit {100 * unlimited:.1f} %"))  # fmt: skip
