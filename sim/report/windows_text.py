"""Windows in words: what a run or a knee is judged by where traffic has no steady state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.planning.knee import Knee
from sim.planning.limits import limits_of
from sim.planning.wording import duration, joined, number
from sim.results.windows import TURNED_AWAY


def window_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How a run's windows fared, and the worst of them; nothing where a run has none."""
    found = summary.get("windows")
    if found is None:
        return []
    length = duration(found["length_s"])
    facts = [(f"windows of {length}", f"{missed_words(summary)} miss a limit")]
    if worst := found["worst"]:
        facts.append((f"worst {length}", worst_words(worst)))
    return facts


def missed_words(summary: Mapping[str, Any]) -> str:
    """How many of a run's windows miss a limit: `1 of 12`."""
    found = summary.get("windows")
    return (
        "-" if found is None else f"{round(found['share_in_violation'] * found['count'])} of {found['count']}"
    )


def worst_words(worst: Mapping[str, Any]) -> str:
    """`TTFT p99 is 3.1 s, from 1,200 s to 1,500 s`."""
    name, value = worst["limit"], worst["value"]
    if name == TURNED_AWAY:
        what = f"{number(100 * value)} % are turned away"
    else:
        what = f"{limits_of({name: 1.0})[0].label} is {duration(value)}"
    return f"{what}, from {duration(worst['start_s'])} to {duration(worst['end_s'])}"


def served_words(knee: Knee, interval: str) -> str:
    """`3.04 requests/s`, or `this trace 1.43 times as fast`; and in the busiest window, where there are."""
    rate = f"{number(knee.rate_per_s)} requests/s"
    if knee.peak_rate_per_s is not None and knee.windows is not None:
        length = duration(knee.windows["length_s"])
        rate += f" on average and {number(knee.peak_rate_per_s)} in the busiest {length}"
    if knee.time_scale is None:
        return f"{rate}{interval}"
    return f"this trace {number(knee.time_scale)} times as fast{interval}, {rate},"


def within_words(knee: Knee) -> str:
    """The limits, and in which windows they hold."""
    asked = joined([str(limit) for limit in knee.asked])
    if knee.windows is None:
        return f"within {asked}"
    spared, length = knee.windows["may_miss"], duration(knee.windows["length_s"])
    where = f"all but {number(100 * spared)} % of the windows of" if spared else "every window of"
    return f"within {asked} in {where} {length}"


def judged_words(knee: Knee) -> str:
    """What a limit's value is where windows decide."""
    if knee.windows is None:
        return ""
    length = duration(knee.windows["length_s"])
    return (
        f"Limits are judged in each window of {length}; a limit's value is that of the worst one that may "
        "not miss it, and of a whole run where that is shorter than two windows."
    )


def drawn_words(samples: int, drawn: Mapping[str, Any]) -> str:
    """`16, each of 8 blocks of 300 s (the trace has 21; what arrives is correlated for 120 s)`."""
    return (
        f"{samples}, each of {drawn['blocks']} blocks of {duration(drawn['block_s'])} (the trace has "
        f"{drawn['blocks_of_trace']}; what arrives is correlated for {duration(drawn['correlation_s'])})"
    )
