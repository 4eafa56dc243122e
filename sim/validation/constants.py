"""The numbers of a server that kernels do not show: what `calibrate server` fits and `validate` tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sim.scenario import Scenario

ENGINE_KEYS = {
    "host_step_s": "host_step_s",
    "host_sequence_s": "host_sequence_s",
    "eager_layer_s": "eager_layer_s",
    "front_end_s": "front_end_latency_s",
}
CARD_KEYS = {"compute": "compute", "memory_bandwidth": "memory_bandwidth", "link": "link"}


@dataclass(frozen=True)
class Constants:
    """Host times belong to an engine version, efficiencies to a card under it. None leaves the scenario's.

    host_step_s and host_sequence_s are CPU time of a step, and of a sequence in it; eager_layer_s that of
    launching one layer of a step without a CUDA graph; front_end_s the front end's time a request; compute,
    memory_bandwidth and link are the shares of the fitted kernels' rates that the server reaches.
    """

    host_step_s: float | None = None
    host_sequence_s: float | None = None
    eager_layer_s: float | None = None
    front_end_s: float | None = None
    compute: float | None = None
    memory_bandwidth: float | None = None
    link: float | None = None

    def as_dict(self) -> dict[str, float]:
        """Those that are set, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def with_values(self, values: Mapping[str, float]) -> Constants:
        """These constants with some replaced."""
        return replace(self, **values)

    def applied(self, scenario: Scenario) -> Scenario:
        """*scenario* with these constants in place of its own: no file is read, nothing is checked again."""
        given = self.as_dict()
        engine: dict[str, Any] = {**scenario.engine}
        engine.update({key: given[name] for name, key in ENGINE_KEYS.items() if name in given})
        hardware: dict[str, Any] = {**scenario.hardware}
        shares = {key: given[name] for name, key in CARD_KEYS.items() if name in given}
        if shares:
            hardware["efficiency"] = {**hardware.get("efficiency", {}), **shares}
        return replace(scenario, engine=engine, hardware=hardware)
