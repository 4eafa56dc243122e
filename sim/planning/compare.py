"""Scenarios side by side on the same random numbers, and what is different for certain."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.faults import InputFault
from sim.planning.differing import Changed, changed_keys, not_shared
from sim.planning.grid import SEED, Point, fingerprint
from sim.planning.journal import opened
from sim.planning.paired import Difference, Number, Values, difference, mean_of
from sim.planning.runs import Runs, check_workers
from sim.planning.search import Progress
from sim.planning.wording import joined
from sim.version import __version__

if TYPE_CHECKING:
    from sim.scenario import Scenario

SEEDS = 5
CONFIDENCE = 0.95
MOST_RUNS = 10_000
NUMBERS = (
    *(
        Number(f"{metric}_s.{statistic}", f"{metric.upper()} {statistic}", "time", -1)
        for metric in ("ttft", "tpot", "itl", "e2e")
        for statistic in ("p50", "p99")
    ),
    Number("goodput_fraction", "goodput", "share", 1),
    Number("windows.share_in_violation", "windows in violation", "share", -1),
    Number("request_goodput", "good requests/s", "rate", 1),
    Number("request_throughput", "requests/s", "rate", 1),
    Number("output_throughput", "output tokens/s", "rate", 1),
    Number("useful_output_throughput", "useful tokens/s", "rate", 1),
    Number("kv_cache.usage_mean", "KV cache mean", "share", 0),
    Number("kv_cache.usage_max", "KV cache max", "share", 0),
    Number("preemptions", "preemptions", "count", -1),
    Number("prefix_cache_hit_rate", "prefix cache hits", "share", 1),
    Number("requests.rejected", "rejected", "count", -1),
    Number("requests.timed_out", "timed out", "count", -1),
    Number("requests.cancelled", "cancelled", "count", -1),
    Number("requests.retries", "retries", "count", -1),
    Number("cost.usd_per_1m_output_tokens", "$ per 1M output tokens", "usd", -1),
)
"""What is compared, in the order in which it is told; then, where classes stand side by side, for each:"""
OF_A_CLASS = ("ttft_s.p50", "ttft_s.p99", "tpot_s.p50", "tpot_s.p99", "goodput_fraction")


@dataclass(frozen=True)
class Compared:
    """One scenario of a comparison: its runs, one a seed, what differs from the first and which draws do."""

    name: str
    scenario: Scenario
    points: tuple[Point, ...]
    changed: tuple[Changed, ...]
    not_shared: tuple[str, ...]

    @property
    def fault(self) -> str | None:
        """Why it cannot run."""
        return next((point.fault for point in self.points if point.fault is not None), None)

    @property
    def summaries(self) -> list[dict[str, Any]]:
        return [point.summary for point in self.points if point.summary is not None]

    def values(self, number: Number) -> Values:
        """One a seed; None where it is undefined."""
        return [_at(summary, number.path) for summary in self.summaries]

    @property
    def classes(self) -> list[str]:
        """The traffic classes of its requests."""
        return list(dict.fromkeys(name for summary in self.summaries for name in summary["by_class"]))

    @property
    def warnings(self) -> list[str]:
        """What its first run warns of, but for its stability."""
        found = [text for summary in self.summaries[:1] for text in summary["warnings"]]
        return [text for text in found if not text.startswith("unstable")]

    @property
    def unstable(self) -> int:
        """In how many runs the queue grows."""
        return sum(1 for summary in self.summaries if not summary["stable"])

    @cached_property
    def binding(self) -> dict[str, Any]:
        """What held up the queue in most seeds, and the mean shares of busy time."""
        found = [summary.get("binding") or {} for summary in self.summaries]
        names = list(dict.fromkeys(name for one in found for name in one.get("shares", {})))
        most = Counter(one.get("resource") for one in found).most_common(1)
        shares = {name: mean_of([one.get("shares", {}).get(name, 0.0) for one in found]) for name in names}
        return {"resource": most[0][0] if most else None, "shares": shares}


@dataclass(frozen=True)
class Comparison:
    """The answer of `compare`. *scenarios* are in the order asked for; differences are to the first of them.

    *files* are where it lies; *missing* counts the runs that an interrupt left out.
    """

    scenarios: tuple[Compared, ...]
    seeds: tuple[int, ...]
    confidence: float = CONFIDENCE
    missing: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)
    files: tuple[Path, ...] = field(default=(), compare=False)

    @property
    def first(self) -> Compared:
        return self.scenarios[0]

    @property
    def others(self) -> tuple[Compared, ...]:
        return self.scenarios[1:]

    def difference(self, other: Compared, number: Number) -> Difference:
        """Of *other*'s *number* to the first scenario's."""
        return difference(self.first.values(number), other.values(number), self.confidence)

    @cached_property
    def compared(self) -> tuple[Number, ...]:
        """`NUMBERS`, and those of the first scenario's classes where they stand beside others."""
        mixed = any(len(one.classes) > 1 for one in self.scenarios)
        names = self.first.classes if mixed else []
        of_a_class = [number for number in NUMBERS if number.path in OF_A_CLASS]
        return (*NUMBERS, *(_of_class(name, number) for name in names for number in of_a_class))

    @cached_property
    def numbers(self) -> tuple[Number, ...]:
        """Those that are defined and not zero in some run."""
        return tuple(n for n in self.compared if any(any(one.values(n)) for one in self.scenarios))

    def numbers_of(self, other: Compared) -> tuple[Number, ...]:
        """Those to tell of *other*: of the classes only where it has more than one, or the first does."""
        mixed = len(other.classes) > 1 or len(self.first.classes) > 1
        return tuple(n for n in self.numbers if mixed or not n.path.startswith("by_class."))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What to know before believing a difference."""
        return tuple(_warnings(self))

    def as_dict(self) -> dict[str, Any]:
        """What `kneesim compare --json` prints; the same for any number of workers."""
        return {
            "kneesim": {"version": __version__},
            "seeds": list(self.seeds),
            "confidence": self.confidence,
            "scenarios": [self._entry(one) for one in self.scenarios],
            "missing": self.missing,
            "warnings": list(self.warnings),
        }

    def _entry(self, one: Compared) -> dict[str, Any]:
        head = {
            "name": one.name,
            "scenario": one.scenario.resolved(),
            "scenario_sha256": one.scenario.sha256,
            "differs": {found.key: found.as_dict() for found in one.changed},
            "not_shared": list(one.not_shared),
            "fault": one.fault,
        }
        if one.fault is not None:
            return head
        numbers = {number.path: self._number(one, number) for number in self.compared}
        told = {"unstable_runs": one.unstable, "warnings": one.warnings, "binding": one.binding}
        return {**head, **told, "numbers": numbers}

    def _number(self, one: Compared, number: Number) -> dict[str, Any]:
        values = one.values(number)
        entry = {"value": mean_of(values), "values": list(values)}
        if one is self.first:
            return entry
        found, of_first = self.difference(one, number), mean_of(self.first.values(number))
        relative = found.mean / of_first if found.mean is not None and of_first else None
        return {**entry, "difference": {**found.as_dict(), "relative": relative}}


class CompareInterrupted(KeyboardInterrupt):
    """Ctrl-C during a comparison; *comparison* holds the seeds that every scenario has finished."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        super().__init__(f"{len(comparison.seeds)} seeds are finished, {comparison.missing} runs are missing")


def compare(
    scenarios: Sequence[Scenario],
    *,
    seeds: int = SEEDS,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run *scenarios* with the same *seeds* and tell how each differs from the first.

    The seeds go on from the first scenario's own. A difference is paired: each seed's runs have the same
    arrivals, lengths and other draws as far as the scenarios say the same of them. *workers* are processes
    (default: one for each usable core); the answer does not depend on them. With *out* each run is kept
    there as soon as it is finished: the same call goes on after a kill, and one with more seeds has them
    already. *progress* is told after each run.

    Raises `InputFault` for fewer than two scenarios and where the first cannot run; `CompareInterrupted`
    on Ctrl-C. Another one that cannot run has a `fault`.
    """
    _check(scenarios, seeds)
    check_workers(workers)
    chosen = range(scenarios[0].run["seed"], scenarios[0].run["seed"] + seeds)
    names = _distinct([scenario.name for scenario in scenarios])
    rows = [[_point(one, name, seed) for seed in chosen] for one, name in zip(scenarios, names, strict=True)]
    with ExitStack() as stack:
        journal = None
        if out is not None:
            prints = hashlib.sha256(json.dumps([row[0].key for row in rows]).encode()).hexdigest()
            path = Path(out) / "journal.jsonl"
            journal = stack.enter_context(opened(path, ", ".join(names), prints))
        # Seed by seed, so that an interrupt leaves whole seeds.
        points = [point for column in zip(*rows, strict=True) for point in column]
        runs = Runs(list(scenarios) * seeds, points, journal, progress)
        interrupted = runs.finish(workers)
    answer = _comparison(scenarios, runs.done(), tuple(chosen), runs.notes())
    if interrupted:
        raise CompareInterrupted(answer) from None
    if (fault := answer.first.fault) is not None:
        raise InputFault(f"{names[0]}, to which the others are compared, cannot run: {fault}")
    return answer


def _check(scenarios: Sequence[Scenario], seeds: int) -> None:
    if len(scenarios) < 2:
        came = scenarios[0].name if scenarios else "none"
        raise InputFault(
            f"compare needs two scenarios or more (got {came}); a file with `base: {came}` and some keys is "
            "another one"
        )
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise InputFault(f"seeds must be a whole number >= 1 (got {seeds!r})")
    if (count := seeds * len(scenarios)) > MOST_RUNS:
        raise InputFault(f"a comparison may have {MOST_RUNS:,} runs (these are {count:,})")


def _distinct(names: Sequence[str]) -> list[str]:
    """`chat`, `chat (2)` where two have one name."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def _point(scenario: Scenario, name: str, seed: int) -> Point:
    seeded = replace(scenario, run={**scenario.run, "seed": seed})
    return Point({"scenario": name}, seed, {SEED: seed}, seeded.sha256, fingerprint(seeded))


def _comparison(
    scenarios: Sequence[Scenario], points: Sequence[Point], seeds: tuple[int, ...], notes: tuple[str, ...]
) -> Comparison:
    """Of the seeds that all have finished."""
    count = len(scenarios)
    by_seed = {seed: points[i * count : (i + 1) * count] for i, seed in enumerate(seeds)}
    ready = {seed: row for seed, row in by_seed.items() if not any(map(_is_missing, row))}
    compared = tuple(
        Compared(
            points[i].values["scenario"],
            scenario,
            tuple(row[i] for row in ready.values()),
            changed_keys(scenarios[0], scenario),
            not_shared(scenarios[0], scenario),
        )
        for i, scenario in enumerate(scenarios)
    )
    return Comparison(compared, tuple(ready), CONFIDENCE, sum(map(_is_missing, points)), notes)


def _of_class(name: str, number: Number) -> Number:
    return replace(number, path=f"by_class.{name}.{number.path}", name=f"{name}: {number.name}")


def _at(summary: dict[str, Any], path: str) -> Any:
    value: Any = summary
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _is_missing(point: Point) -> bool:
    return point.summary is None and point.fault is None


def _warnings(comparison: Comparison) -> Iterator[str]:
    first, runs = comparison.first, len(comparison.seeds)
    for one in comparison.scenarios:
        if one.unstable:
            yield (
                f"{one.name}: the queue grows in {one.unstable} of {runs} runs; its numbers depend on how "
                "long the runs are"
            )
        if one.not_shared:
            yield (
                f"{first.name} and {one.name} do not share {joined(list(one.not_shared))}: that part of "
                "chance does not cancel in their differences"
            )
    if runs == 1:
        yield "one seed has no interval; with --seeds 5 there is one"
