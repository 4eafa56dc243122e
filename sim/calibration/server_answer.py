"""What a calibration of a server answers: constants, how sure they are, and the files that keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from sim.calibration.measured_load import MeasuredLoad
from sim.calibration.served import Served, calibrate, observed
from sim.calibration.server import Progress
from sim.calibration.server_fit import Fit
from sim.calibration.space import Coordinate
from sim.calibration.spread import CLASSES
from sim.scenario import Scenario

CONFIDENCE = 0.90
_MOST_RUNS = 1000.0  # times as many loads
_ADVICE = {
    "host_step_s": "a load of one to four users, where iterations are short",
    "host_sequence_s": "a load with as many users as run at once",
    "front_end_s": "one user with short prompts",
    "eager_layer_s": "one user with prompts of a few hundred tokens",
    "compute": "long prompts with short answers",
    "memory_bandwidth": "many users with long contexts",
    "link": "many users on several GPUs (with one there is no link)",
}


@dataclass(frozen=True)
class ServerCalibration:
    """A fit to the loads of one server."""

    scenario: Scenario
    fit: Fit
    served: Sequence[Served]

    @property
    def card(self) -> str:
        """The card's name."""
        return str(self.scenario.hardware["name"])

    @property
    def source(self) -> str:
        """Where the constants come from, in words."""
        tools = ", ".join(dict.fromkeys(one.load.tool for one in self.served))
        return (
            f"{len(self.served)} loads of {self.scenario.model['name']} on {self.card}, measured with "
            f"{tools}, fitted by kneesim calibrate server"
        )

    def constants(self) -> list[dict[str, Any]]:
        """One document a constant, in base units; intervals are of 90 %."""
        return [
            self._constant(i, coordinate)
            for i, coordinate in enumerate(self.fit.space.coordinates)
            if coordinate.card in (None, self.card)
        ]

    def _constant(self, index: int, coordinate: Coordinate) -> dict[str, Any]:
        kind, fit = coordinate.kind, self.fit
        low, high = fit.interval(index, CONFIDENCE)
        identified = bool(fit.identified[index])
        runs = self._runs_for_half(index)
        words = {} if identified else {"would_show_it": _ADVICE[kind.name]}
        return {
            "key": kind.key,
            "words": kind.words,
            "belongs_to": "card" if kind.of_card else "engine",
            "value": kind.value_of(float(fit.u[index])),
            "interval": [low, high],
            "identified": identified,
            "start": kind.value_of(float(fit.space.start[index])),
            "believed": list(fit.believed(index, CONFIDENCE)),
            "loads_for_half_the_interval": runs if identified else None,
            **words,
        }

    def _runs_for_half(self, index: int) -> int | None:
        """How many loads such as these halve the interval; None where no number does."""
        wanted = self.fit.sd_u(index) / 2.0
        if self.fit.sd_u(index, _MOST_RUNS) > wanted:
            return None
        low, high = 1.0, _MOST_RUNS
        while high / low > 1.001:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.fit.sd_u(index, middle) > wanted else (low, middle)
        return ceil(high * len(self.served) - 1e-6)

    @cached_property
    def loads(self) -> list[dict[str, Any]]:
        """One document a load: what was measured, and what is predicted before and after."""
        after = self.fit.constants(self.card)
        return [_load(one, one.predicted(), one.predicted(after)) for one in self.served]

    def as_dict(self) -> dict[str, Any]:
        """The document of ``kneesim calibrate server --json``."""
        spread = self.fit.spread
        return {
            "source": self.source,
            "card": self.card,
            "engine": self.scenario.engine.get("name") or self.scenario.engine["preset"],
            "host_times": {
                "overlapped": self.fit.overlapped,
                "started_overlapped": bool(self.scenario.engine["async_scheduling"]),
                "minus_two_log_evidence_gained": self.fit.told_apart,
            },
            "constants": self.constants(),
            "apart_pct": {name: 100.0 * float(spread.point_sd[i]) for i, name in enumerate(CLASSES)},
            "loads": self.loads,
            "engine_file": self.engine_file(),
            "hardware": self.hardware_patch(),
        }

    def engine_file(self) -> dict[str, Any]:
        """The engine file: settings that came from an engine file before, and what the loads identify."""
        engine, sources = self.scenario.engine, self.scenario.sources
        kept = {
            key: value
            for key, value in engine.items()
            if value is not None and str(sources.get(f"engine.{key}")).startswith("engine ")
        }
        origins = dict(engine.get("provenance") or {})
        values: dict[str, Any] = {"preset": engine["preset"], **_no_name(kept)}
        values["async_scheduling"] = self.fit.overlapped
        origins["async_scheduling"] = self._origin()
        for key, constant in self._moved("engine").items():
            values[key] = _rounded(constant["value"])
            ends = [_rounded(end) for end in constant["interval"]]
            origins[key] = {**self._origin(constant), "interval": ends}
        told = {key: origin for key, origin in origins.items() if key in values}
        return {**values, "provenance": told}

    def hardware_patch(self) -> dict[str, Any]:
        """What to write under a scenario's `hardware`: the card, with the efficiencies that were found."""
        found = self._moved("card")
        if not found:
            return {"base": self.card}
        origins = {}
        for key, constant in found.items():
            low, high = map(_rounded, constant["interval"])
            origin = self._origin(constant)
            origin["source"] += f"; 90 % interval {low:g} to {high:g}"
            origins[f"efficiency.{key}"] = origin
        shares = {key: _rounded(constant["value"]) for key, constant in found.items()}
        return {"base": self.card, "efficiency": shares, "provenance": origins}

    def _moved(self, owner: str) -> dict[str, dict[str, Any]]:
        """By key, the constants of *owner* that are identified, or have moved with those that are."""
        return {
            constant["key"].rpartition(".")[2]: constant
            for constant in self.constants()
            if constant["belongs_to"] == owner
            and (constant["identified"] or _rounded(constant["value"]) != _rounded(constant["start"]))
        }

    def _origin(self, constant: Mapping[str, Any] | None = None) -> dict[str, Any]:
        sure = constant is None or constant["identified"]
        source = self.source if sure else f"{self.source}, which do not identify it"
        kind = "measured" if sure else "estimated"
        return {"kind": kind, "source": source, "points": len(self.served)}


def calibrate_server(
    loads: Sequence[MeasuredLoad],
    scenario: Scenario,
    overlapped: bool | None = None,
    progress: Progress | None = None,
) -> ServerCalibration:
    """Fit the constants of *scenario*'s server to what it did under *loads*; see `served.calibrate`."""
    fit, served = calibrate(loads, scenario, overlapped, progress)
    return ServerCalibration(scenario, fit, served)


def _load(one: Served, before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    fitted = observed(one.load)
    metrics = {
        name: {
            "measured": value,
            "before": before.get(name),
            "after": after.get(name),
            "error_pct": 100.0 * (after[name] / value - 1.0) if name in after else None,
            "fitted": name in fitted,
        }
        for name, value in one.load.metrics.items()
    }
    return {
        "place": one.load.place,
        "tool": one.load.tool,
        "load": one.load.load_words(),
        "requests": len(one.requests),
        "lengths": "of each request" if one.load.sent is not None else "of the scenario's workload, scaled",
        "metrics": metrics,
    }


def _no_name(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("name", "provenance", "preset")}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
