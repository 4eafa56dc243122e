"""The answer as figures and pages put it: who serves what, in one sentence, and what it was judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.planning.knee import Knee
from sim.planning.wording import number
from sim.report.assumptions import deployment
from sim.report.text import headline, interval_words
from sim.report.windows_text import judged_words


def answer(knee: Knee) -> str:
    """Model, GPUs and the headline in one sentence; of the interval, the total ends alone.

    `interval_sentence` says what the two numbers in brackets are.
    """
    words, long = headline(knee), interval_words(knee)
    if long and (interval := knee.load_interval) is not None:
        low, high = interval.total or interval.sampling
        words = words.replace(long, f" ({number(low)}\N{EN DASH}{number(high)})")
    return f"{deployment(knee.scenario)}: {words[:1].lower()}{words[1:]}"


def interval_sentence(interval: Mapping[str, Any], unit: str = "requests/s") -> str:
    """The ends of a knee's *interval* (as `Interval.as_dict` gives it), in *unit*, and what is in them."""
    confidence = interval.get("confidence")
    sure = f" ({100 * confidence:.3g} % confidence)" if confidence else ""
    total, sampling = interval.get("total"), interval.get("sampling")
    if total:
        alone = f"; from the sampling of requests alone, between {_ends(sampling)}" if sampling else ""
        return f"Between {_ends(total)} {unit}{sure}, all known errors included{alone}."
    if sampling:
        left_open = "what the model leaves open is not in it"
        return f"Between {_ends(sampling)} {unit}{sure} from the sampling of requests alone; {left_open}."
    return ""


def _ends(interval: Sequence[float]) -> str:
    return f"{number(interval[0])} and {number(interval[1])}"


def how_judged(knee: Knee) -> str:
    """Which random numbers the loads had, how long their runs were, and how many of them."""
    size = _from_to([int(point.summary["requests"]["offered"]) for point in knee.points])
    windows = f" {judged_words(knee)}" if knee.windows else ""
    if _is_one_trace(knee):
        return f"All loads have the same trace, faster or slower; {size} requests a run.{windows}"
    if knee.windows:
        return (
            f"One run at each load, those next to the knee of a typical day; {size} requests a run.{windows}"
        )
    seed = f"seed {knee.scenario.run.get('seed')}"
    pooled = [p.summary["replications"] for p in knee.points if p.summary.get("replications", 1) > 1]
    if not pooled:
        return f"One run at each load, all on the same random numbers ({seed}); {size} requests a run."
    return (
        f"All loads have the same random numbers: {seed} first, and one seed more for each replication. "
        f"Limits near the knee are judged by {_from_to(pooled)} replications, pooled; the rest is one run; "
        f"{size} requests a run."
    )


def _from_to(counts: Sequence[int]) -> str:
    """`4 to 30`, or `4` where all are."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _is_one_trace(knee: Knee) -> bool:
    workload = knee.scenario.workload
    kinds = {workload.get(part, {}).get("kind") for part in ("arrivals", "lengths")}
    moved = workload.get("arrivals", {}).get("jitter_s") is not None
    return knee.axis == "load.time_scale" or (kinds == {"trace"} and not moved)
