"""What a search for a knee comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sim.planning.elasticities import Elasticities
from sim.planning.error_bar import Interval, Part, total_of
from sim.planning.limits import Limit
from sim.planning.resources import SIZES, SPEEDS
from sim.planning.search import Point


@dataclass(frozen=True)
class Judgement:
    """*at*: the run at the knee; *beyond*: the first load tried that does not pass; *breaking*: why not."""

    at: Point | None
    beyond: Point | None
    breaking: Limit | None
    interval: Interval | None = None
    interval_reason: str | None = None
    binding: Mapping[str, Any] | None = None
    capacity_elasticities: Mapping[str, float] | None = None
    hardware_knees: Mapping[str, Any] = field(default_factory=dict)
    replications: int = 1
    reached: bool = True


def with_parts(
    found: Judgement, load: float, elasticities: Elasticities, parts: Mapping[str, Part]
) -> Judgement:
    """*found*, a knee at *load* with an interval, with what binds and its total interval."""
    assert found.interval is not None
    total = total_of(load, found.interval.sampling, parts)
    interval = replace(found.interval, total=total, parts=parts)
    return replace(found, interval=interval, binding=_binding(elasticities))


def _binding(elasticities: Elasticities) -> dict[str, Any]:
    """The most binding resource, all elasticities, and who is next."""
    ranked = elasticities.ranked()
    resources = {name: elasticities.of[name] for name in (*SPEEDS, *SIZES) if name in elasticities.of}
    first, second = (ranked[i] if len(ranked) > i else None for i in (0, 1))
    return {"resource": first, "elasticities": resources, "next": second}
