"""Ctrl-C during a search for a knee: what was finished until then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.planning.search import Point

if TYPE_CHECKING:
    from sim.scenario import Scenario


class KneeInterrupted(KeyboardInterrupt):
    """Ctrl-C before a search had an answer; *points* are the loads whose runs were finished, sorted."""

    def __init__(self, scenario: Scenario, points: tuple[Point, ...]) -> None:
        self.scenario, self.points = scenario, points
        super().__init__(f"{len(points)} loads are finished, and there is no answer yet")

    def as_dict(self) -> dict[str, Any]:
        """The finished loads, each as in `kneesim knee --json`."""
        points = [
            {
                "rate_per_s": point.rate_per_s,
                "passes": point.passes,
                "broken_limits": [limit.name for limit in point.broken],
                **point.summary,
            }
            for point in self.points
        ]
        return {"scenario_sha256": self.scenario.sha256, "feasible": None, "points": points}
