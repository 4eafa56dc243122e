"""A comparison in words and cells: what its table in a terminal, its Markdown and its page have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sim.planning.compare import Compared, Comparison
from sim.planning.differing import Changed
from sim.planning.grid import word_of
from sim.planning.paired import Difference, Number, mean_of
from sim.planning.wording import duration, joined, number

OVERVIEW = (
    "ttft_s.p99",
    "tpot_s.p99",
    "goodput_fraction",
    "useful_output_throughput",
    "prefix_cache_hit_rate",
    "cost.usd_per_1m_output_tokens",
)
HOW = (
    "Means over {count} seeds; {where} their difference to the first scenario. ~ says that none is seen: "
    "the {percent} % interval of the paired differences holds zero; = that it is zero in every seed."
)
LONGEST_VALUE = 40


@dataclass(frozen=True)
class Row:
    """One number of one scenario beside the first's: its cells, and the difference that they tell."""

    number: Number
    first: float | None
    here: float | None
    difference: Difference

    @property
    def relative(self) -> float | None:
        """The mean difference over the first's value; None where that is zero or absent."""
        return _over(self.difference.mean, self.first)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval, relative to the first's value."""
        low, high = _over(self.difference.low, self.first), _over(self.difference.high, self.first)
        return None if low is None or high is None else (low, high)

    @property
    def verdict(self) -> str:
        """`better` or `worse` where a difference is seen that is either."""
        if not self.difference.seen or not self.number.better or self.difference.mean is None:
            return ""
        return "better" if self.difference.mean * self.number.better > 0 else "worse"

    def cells(self) -> list[str]:
        """Name, both values, the difference, the relative one, its interval, the verdict."""
        values = [value_words(self.number, value) for value in (self.first, self.here)]
        found, ends = self.difference, "-"
        if found.low is not None and found.high is not None:
            ends = f"{signed(self.number, found.low)} to {signed(self.number, found.high)}"
        told = [signed(self.number, found.mean), percent_words(self.relative), ends]
        return [self.number.name, *values, *told, self.verdict]


def rows_of(comparison: Comparison, other: Compared) -> list[Row]:
    """All numbers that anything can be said of, in their order."""
    return [
        Row(
            number,
            mean_of(comparison.first.values(number)),
            mean_of(other.values(number)),
            comparison.difference(other, number),
        )
        for number in comparison.numbers_of(other)
    ]


def told_apart(rows: list[Row]) -> tuple[list[Row], list[str], list[str]]:
    """The rows to show, the names of those without a difference that is seen, and of those that are equal."""
    shown = [row for row in rows if row.difference.seen or row.difference.seen is None]
    same = [row.number.name for row in rows if row.difference.same]
    unseen = [row.number.name for row in rows if row not in shown and not row.difference.same]
    return shown, unseen, same


def overview(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a line a scenario, the numbers of `OVERVIEW` with the difference in brackets."""
    numbers = [number for number in comparison.numbers if number.path in OVERVIEW]
    header = ["scenario", *(number.name for number in numbers), "queue"]
    return header, [
        [one.name, *(_overview_cells(comparison, one, numbers)), queue_words(comparison, one)]
        for one in comparison.scenarios
    ]


def _overview_cells(comparison: Comparison, one: Compared, numbers: list[Number]) -> Iterator[str]:
    for found in numbers:
        if one.fault is not None:
            yield "-"
            continue
        value = value_words(found, mean_of(one.values(found)))
        mark = "" if one is comparison.first else f" ({_mark(comparison, one, found)})"
        yield f"{value}{mark}"


def _mark(comparison: Comparison, one: Compared, found: Number) -> str:
    difference = comparison.difference(one, found)
    if difference.same:
        return "="
    if difference.seen is False:
        return "~"
    relative = _over(difference.mean, mean_of(comparison.first.values(found)))
    return signed(found, difference.mean) if relative is None else percent_words(relative)


def queue_words(comparison: Comparison, one: Compared) -> str:
    """Whether the queue is steady in every seed."""
    if one.fault is not None:
        return "cannot run"
    if not one.unstable:
        return "steady"
    return "grows" if one.unstable == len(comparison.seeds) else f"grows in {one.unstable}"


def headline(comparison: Comparison) -> str:
    """One sentence: for two scenarios what matters most of their difference, for more how many are worse."""
    first, others = comparison.first, comparison.others
    seeds = f"{len(comparison.seeds)} seed{'s' if len(comparison.seeds) != 1 else ''}"
    if len(others) > 1:
        return f"{len(others)} scenarios against {first.name}, on the same random numbers, {seeds} each"
    other = others[0]
    if other.fault is not None:
        return f"{other.name} cannot run: {other.fault}"
    rows = [row for row in rows_of(comparison, other) if row.number.path in OVERVIEW]
    seen = [f"{row.number.name} {_change(row)}" for row in rows if row.difference.seen]
    if not seen:
        return f"{other.name} against {first.name}: no difference is seen in what matters most, with {seeds}"
    return f"{other.name} against {first.name}, with {seeds}: {joined(seen)}"


def _change(row: Row) -> str:
    if row.number.kind == "share" or row.relative is None:
        return signed(row.number, row.difference.mean)
    return percent_words(row.relative)


def changed_words(found: Changed) -> str:
    """`load.rate_per_s: 13 → 14 (bursts.yaml:3)`."""
    return f"{found.key}: {key_words(found.first)} \N{RIGHTWARDS ARROW} {key_words(found.here)}"


def key_words(value: Any) -> str:
    """A key's value, cut where it is long."""
    if value is None:
        return "-"
    text = word_of(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 4]} ..."


def binding_words(comparison: Comparison, one: Compared) -> str:
    """What the queue waits for, of the first scenario and of this one."""
    names = [str(x.binding["resource"] or "nothing") for x in (comparison.first, one)]
    return names[0] if names[0] == names[1] else f"{names[0]} \N{RIGHTWARDS ARROW} {names[1]}"


def value_words(found: Number, value: float | None) -> str:
    """*value* with its unit."""
    if value is None:
        return "-"
    if found.kind == "time":
        return duration(value, padded=True)
    if found.kind == "share":
        return f"{100 * value:.1f} %"
    return number(value, padded=found.kind != "count")


def signed(found: Number, value: float | None) -> str:
    """A difference with its sign; of shares in points."""
    if value is None:
        return "-"
    size = abs(value)
    words = f"{100 * size:.1f} points" if found.kind == "share" else value_words(found, size)
    return words if value == 0 else f"{'+' if value > 0 else '-'}{words}"


def percent_words(relative: float | None) -> str:
    """`+45 %`, `-0.3 %`; from ten times on, `12 x`."""
    if relative is None:
        return "-"
    if relative >= 9:
        return f"{number(1 + relative)} x"
    return f"{'+' if relative > 0 else '-' if relative < 0 else ''}{number(100 * abs(relative), 2)} %"


def how(comparison: Comparison, where: str = "in brackets") -> str:
    """How to read the differences of the overview, which stand *where*."""
    return HOW.format(where=where, count=len(comparison.seeds), percent=f"{100 * comparison.confidence:g}")


def _over(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None
