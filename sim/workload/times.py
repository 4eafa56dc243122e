"""Times that people take, by the name of their distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.clock import HORIZON_S, on_grid
from sim.faults import InputFault
from sim.workload.streams import Streams, Take

KINDS = ("fixed", "exponential", "weibull", "lognormal")


def unit_mean(section: Mapping[str, Any], streams: Streams, name: str) -> Take:
    """Values of mean 1 of the kind that *section* names, from the stream *name*: the next so many a call.

    weibull: of `shape` k, with the mean Gamma(1 + 1/k) divided out; lognormal: of coefficient of variation
    `cv`, sigma^2 = ln(1 + cv^2) and mu = -sigma^2 / 2 (Johnson, Kotz and Balakrishnan, Continuous
    Univariate Distributions 1, 1994, ch. 14 and 21). Raises InputFault.
    """
    kind, draws = section["kind"], streams.open(name)
    if kind == "fixed":
        return np.ones
    if kind == "exponential":
        return draws.standard_exponential
    if kind == "weibull":
        shape = float(section["shape"])
        mean = math.gamma(1 + 1 / shape)
        return lambda count: draws.weibull(shape, count) / mean
    if kind == "lognormal":
        sigma = math.sqrt(math.log1p(float(section["cv"]) ** 2))
        return lambda count: np.exp(sigma * draws.standard_normal(count) - sigma**2 / 2)
    raise InputFault(f"{name}.kind must be one of {', '.join(KINDS)} (got {kind})")


def seconds(section: Mapping[str, Any], streams: Streams, name: str) -> Take:
    """Times as *section* has them (`kind`, `mean_s`, ..), on the clock's grid; beyond it, infinity."""
    units, mean_s = unit_mean(section, streams, name), float(section["mean_s"])

    def take(count: int) -> np.ndarray:
        times_s = mean_s * units(count)
        return np.where(times_s > HORIZON_S, np.inf, on_grid(times_s))

    return take
