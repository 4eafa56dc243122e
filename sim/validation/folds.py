"""How well constants hold where they were not fitted: on other set-ups, another card, another model.

Constants are fitted per engine version, on one part of its set-ups, and tested on the rest; every row that
is compared is so predicted by constants that have not seen it, nor any row of its set-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from sim.calibration.constants import Constants, constants_of
from sim.calibration.server import Fit, Observation, fit_constants
from sim.validation.points import Point
from sim.validation.predict import Advance, Case, Metrics, Predictor, shortened
from sim.validation.score import HEADLINE_GRADES, Row, case_measured, offline_rates, rows_of

TWO_FOLD, OTHER_CARD, OTHER_MODEL = "two-fold by set-up", "cards left out", "models left out"
LEAST_SETUPS = 4
"""Set-ups that an engine version needs to be tested so: from fewer its constants are not told apart."""
MOST_POINTS, MORE_A_CARD = 8, 3
"""Rows that a fit takes at most, of one card and of each further one; more say little and cost time."""
_SERIES_TAIL = re.compile(r"-(?:qps\*|int|off\d*)$")


@dataclass(frozen=True)
class Split:
    """Cases of one engine version: fit on *train*, test on *test*."""

    kind: str
    version: str
    left_out: str
    train: tuple[Case, ...]
    test: tuple[Case, ...]


@dataclass
class Folded:
    """Out-of-fold comparisons of one kind, with the fits that they rest on."""

    rows: list[Row] = field(default_factory=list)
    fits: dict[str, Fit] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Constants in all fits together."""
        return sum(fit.count for fit in self.fits.values())


def splits_of(cases: Iterable[Case], kind: str) -> Iterator[Split]:
    """The splits of *kind* of all engine versions that have `LEAST_SETUPS` set-ups, or two cards or models.

    Halves are every second set-up, card or model in the order of the alphabet, so that both see the range.
    """
    for version, members in _by_version(cases).items():
        parts: dict[str, list[Case]] = {}
        for case in members:
            parts.setdefault(_part(case, kind), []).append(case)
        names = sorted(parts)
        if len(names) < 2 or len({stem(case.point) for case in members}) < LEAST_SETUPS:
            continue
        for group in (names[0::2], names[1::2]):
            test = tuple(case for name in group for case in parts[name])
            train = tuple(case for name in names if name not in group for case in parts[name])
            left_out = f"half of {len(names)} set-ups" if kind == TWO_FOLD else ", ".join(group)
            yield Split(kind, version, left_out, train, test)


def folded(
    cases: Sequence[Case],
    kind: str,
    predictor: Predictor,
    points: Sequence[Point] = (),
    progress: Advance | None = None,
    workers: int = 1,
) -> Folded:
    """Fit and test every split of *kind* over those of *cases* whose rows count, some side by side."""
    best = offline_rates(points or [case.point for case in cases])
    known = [case for case in cases if case.point.grade in HEADLINE_GRADES and observed(case, best)]
    predictions: dict[str, Metrics] = {}
    answer = Folded()
    splits = list(splits_of(known, kind))
    for number, (split, (fit, found)) in enumerate(
        zip(splits, _each(splits, best, predictor, workers), strict=True)
    ):
        answer.fits[f"{split.version} without {split.left_out}, {number}"] = fit
        predictions |= found
        if progress:
            progress(number + 1, len(splits), f"{split.version}, {kind}")
    tested = [case for case in known if case.point.id in predictions]
    answer.rows = [row for row in rows_of(tested, predictions, points or None) if row.counts]
    return answer


def _each(
    splits: Sequence[Split], best: Mapping[tuple[str, ...], float], predictor: Predictor, workers: int
) -> Iterator[tuple[Fit, dict[str, Metrics]]]:
    """Fit and predictions of each split, in their order whoever is done first."""
    if workers == 1:
        yield from (_tested(split, best, predictor) for split in splits)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(_tested, splits, repeat(best), repeat(predictor))


def _tested(
    split: Split, best: Mapping[tuple[str, ...], float], predictor: Predictor
) -> tuple[Fit, dict[str, Metrics]]:
    fit = fitted(split.train, best)
    found = {case.point.id: predictor(case, fit.constants(card_of(case))) for case in split.test}
    return fit, {name: metrics for name, metrics in found.items() if not isinstance(metrics, str)}


def fitted(cases: Sequence[Case], best: Mapping[tuple[str, ...], float]) -> Fit:
    """The constants that *cases*, of one engine version, speak for; those of the first are the start.

    Simulations of the fit are shorter than those of the test, and held to them where they start.
    """
    start = constants_of(cases[0].setup.scenario)
    most = MOST_POINTS + MORE_A_CARD * (len({card_of(case) for case in cases}) - 1)
    observations = [
        Observation(case, stem(case.point), card_of(case), observed(case, best))
        for case in spread_out(cases, most)
    ]
    return fit_constants(
        observations, Shortened(start), start, overlapped=bool(start.overlapped), most_points=most
    )


def spread_out(cases: Sequence[Case], most: int) -> list[Case]:
    """At most *most* of *cases*, over set-ups and loads alike: of one its first, of the next its last, of the
    third its middle load, and on from there in the next round."""
    parts: dict[tuple[str, str], list[Case]] = {}
    for case in sorted(cases, key=lambda case: (case.point.load_value or 0.0, case.point.id)):
        parts.setdefault((card_of(case), stem(case.point)), []).append(case)
    names = sorted(parts)
    chosen: list[Case] = []
    for turn in range(3):
        share = min(len(names), most - len(chosen))
        for number in (np.arange(share) * len(names) // max(share, 1)).tolist():
            mine = parts[names[number]]
            case = mine[(0, len(mine) - 1, len(mine) // 2)[(number + turn) % 3]]
            if case not in chosen:
                chosen.append(case)
    return chosen


def card_of(case: Case) -> str:
    """Whose efficiencies the case takes: its card's."""
    return str(case.setup.scenario.hardware["name"])


class Shortened:
    """Predictions of a shorter run, times what the whole run and the shorter one differ by at the start."""

    def __init__(self, start: Constants) -> None:
        self._start, self._predict = start, Predictor()
        self._ratio: dict[str, dict[str, float] | str] = {}

    def __call__(self, case: Case, constants: Constants) -> Metrics | str:
        short = shortened(case)
        ratio = self._ratio.setdefault(case.key, {}) or self._compared(case, short)
        metrics = self._predict(short, constants)
        if isinstance(ratio, str) or isinstance(metrics, str):
            return ratio if isinstance(ratio, str) else metrics
        return {name: value * ratio.get(name, 1.0) for name, value in metrics.items()}

    def _compared(self, case: Case, short: Case) -> dict[str, float] | str:
        whole, part = self._predict(case, self._start), self._predict(short, self._start)
        if isinstance(whole, str) or isinstance(part, str):
            found: dict[str, float] | str = whole if isinstance(whole, str) else str(part)
        else:
            found = {name: whole[name] / value for name, value in part.items() if value and name in whole}
        self._ratio[case.key] = found
        return found


def observed(case: Case, best: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    """The row's fit values by column, those that only follow from others left out."""
    measured = case_measured(case, best)
    return {one.column: one.value for one in measured if not one.unfit and not one.derived}


def _by_version(cases: Iterable[Case]) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases:
        if case.point.version:
            version = ".".join(str(part) for part in case.point.version[:3])
            found.setdefault(f"{case.point.engine.partition(' ')[0]} {version}", []).append(case)
    return dict(sorted(found.items()))


def _part(case: Case, kind: str) -> str:
    if kind == TWO_FOLD:
        return stem(case.point)
    return card_of(case) if kind == OTHER_CARD else str(case.setup.scenario.model["name"])


def stem(point: Point) -> str:
    """The set-up without what tells its load series apart: one server is on one side of a split."""
    return _SERIES_TAIL.sub("", point.setup)
