"""What kernels cannot show of a server: host times of an engine version, efficiencies of a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import expm1, log, log1p
from typing import Any

from sim.hardware.efficiency import EFFICIENCIES
from sim.scenario import Scenario


@dataclass(frozen=True)
class Kind:
    """One constant: where it stands in a scenario, and what is believed of it before anything is measured.

    It is fitted as ``u = log(1 + value / scale)``, or as ``log(value)`` without a scale: linear while it is
    small, in ratios where it is large, never negative. The belief is normal in u: about the start with
    standard deviation *prior_sd*. Cards share a part of theirs, *common_sd* (kernels of one engine version
    that are better or worse than the table's).
    """

    name: str
    key: str
    words: str
    prior_sd: float
    scale: float | None = None
    common_sd: float = 0.0

    @property
    def of_card(self) -> bool:
        """Whether it belongs to a card, not to an engine version."""
        return self.scale is None

    def u_of(self, value: float) -> float:
        """The fitted coordinate of *value*."""
        return log(value) if self.scale is None else log1p(value / self.scale)

    def value_of(self, u: float) -> float:
        """The value (s, or a share) at the coordinate *u*."""
        return expm1(u) * self.scale if self.scale is not None else expm1(u) + 1.0


def _host(name: str, key: str, words: str, scale: float, prior_sd: float) -> Kind:
    return Kind(name, f"engine.{key}", words, prior_sd, scale)


KINDS = (
    _host("host_step_s", "host_step_s", "host time of an iteration", 300e-6, 1.5),
    _host("host_sequence_s", "host_sequence_s", "host time of a sequence and iteration", 5e-6, 1.5),
    _host("front_end_s", "front_end_latency_s", "front-end time of a request", 5e-3, 0.8),
    _host("eager_layer_s", "eager_layer_s", "launch of a layer of eager prefill", 100e-6, 1.0),
    *(
        Kind(name, f"hardware.efficiency.{name}", f"efficiency of {name.replace('_', ' ')}", 0.12, None, 0.10)
        for name in EFFICIENCIES
    ),
)
"""The constants, in the order in which they are told. Host times of published servers spread over factors,
which prior_sd allows for; kernels were measured, so efficiencies are held near 1."""

BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}


_TRIED = {"kind": "estimated", "source": "tried in a calibration"}


@dataclass(frozen=True)
class Constants:
    """Host times belong to an engine version, efficiencies to a card under it. None leaves the scenario's.

    host_step_s and host_sequence_s are CPU time of a step, and of a sequence in it, *overlapped* with the
    GPU's or added to it; eager_layer_s that of launching one layer of a step without a CUDA graph;
    front_end_s the front end's time a request; compute, memory_bandwidth and link are the shares of the
    fitted kernels' rates that the server reaches.
    """

    host_step_s: float | None = None
    host_sequence_s: float | None = None
    front_end_s: float | None = None
    eager_layer_s: float | None = None
    compute: float | None = None
    memory_bandwidth: float | None = None
    link: float | None = None
    overlapped: bool | None = None

    def as_dict(self) -> dict[str, float]:
        """The numbers that are set, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name in BY_NAME}
        return {name: value for name, value in values.items() if value is not None}

    def with_values(self, values: Mapping[str, Any]) -> Constants:
        """These constants with some replaced."""
        return replace(self, **values)

    def applied(self, scenario: Scenario) -> Scenario:
        """*scenario* with these constants in place of its own: no file is read, nothing is checked again."""
        sections: dict[str, dict[str, Any]] = {"engine": {**scenario.engine}, "efficiency": {}}
        for name, value in self.as_dict().items():
            section, _, key = BY_NAME[name].key.rpartition(".")
            sections[section.removeprefix("hardware.")][key] = value
        if self.overlapped is not None:
            sections["engine"]["async_scheduling"] = self.overlapped
        hardware = scenario.hardware
        if sections["efficiency"]:
            efficiency = {**hardware.get("efficiency", {}), **sections["efficiency"]}
            origins = {**hardware["provenance"], "efficiency": _TRIED}
            hardware = {**hardware, "efficiency": efficiency, "provenance": origins}
        return replace(scenario, engine=sections["engine"], hardware=hardware)


def constants_of(scenario: Scenario) -> Constants:
    """The constants that *scenario* has."""
    engine, efficiency = scenario.engine, scenario.hardware.get("efficiency", {})
    values: dict[str, float] = {}
    for kind in KINDS:
        key = kind.key.rpartition(".")[2]
        values[kind.name] = float(efficiency.get(key, 1.0) if kind.of_card else engine[key])
    return Constants(**values, overlapped=bool(engine["async_scheduling"]))
