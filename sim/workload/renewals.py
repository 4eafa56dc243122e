"""Renewal processes of unit rate: independent gaps of one distribution, by name.

Each but `constant` is in its stationary state from time 0 on: the first gap is what is left of one that had
begun before, so that the mean number of arrivals up to any time t is t (D. R. Cox, Renewal Theory, 1962,
ch. 2; that gap is a share, uniform, of one drawn in proportion to its length).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sim.faults import InputFault, did_you_mean
from sim.workload.streams import Streams, Take, led_by, numbered, running_sum

_POISSON = ("poisson", "mmpp", "on_off")


def renewal_times(arrivals: Mapping[str, Any], streams: Streams) -> Take:
    """The times of the process that `arrivals` names, at unit rate. Raises InputFault."""
    kind = arrivals["kind"]
    if kind not in _KINDS:
        raise InputFault(f"workload.arrivals.kind {kind} is unknown{did_you_mean(kind, [*_KINDS, 'trace'])}")
    return _KINDS[kind](arrivals, streams)


def weibull_shape(cv: float) -> float:
    """The shape k of a Weibull distribution with this coefficient of variation:
    1 + cv^2 = Gamma(1 + 2/k) / Gamma(1 + 1/k)^2, by bisection in 1/k to the last bit."""
    wanted = math.log1p(cv**2)
    low, high = 0.0, 64.0
    while low < (middle := (low + high) / 2) < high:
        below = math.lgamma(1 + 2 * middle) - 2 * math.lgamma(1 + middle) < wanted
        low, high = (middle, high) if below else (low, middle)
    return 1 / high


def _poisson(arrivals: Mapping[str, Any], streams: Streams) -> Take:
    return running_sum(streams.open("arrivals").standard_exponential)


def _constant(arrivals: Mapping[str, Any], streams: Streams) -> Take:
    """One a unit of time, the first at 0."""
    return numbered(lambda numbers: numbers.astype(np.float64))


def _gamma(arrivals: Mapping[str, Any], streams: Streams) -> Take:
    """Gamma gaps of shape `burstiness` (cv^-2), as load generators have them: 1 is a Poisson process."""
    burstiness = arrivals.get("burstiness")
    shape = arrivals["cv"] ** -2.0 if burstiness is None else burstiness
    gaps, first = streams.open("arrivals"), streams.open("arrivals.first")
    left = first.random() * first.standard_gamma(shape + 1) / shape
    return running_sum(led_by(left, lambda count: gaps.standard_gamma(shape, count) / shape))


def _weibull(arrivals: Mapping[str, Any], streams: Streams) -> Take:
    power = 1 / weibull_shape(arrivals["cv"])
    scale = math.exp(-math.lgamma(1 + power))
    gaps, first = streams.open("arrivals"), streams.open("arrivals.first")
    left = first.random() * scale * first.standard_gamma(1 + power) ** power
    return running_sum(led_by(left, lambda count: scale * gaps.standard_exponential(count) ** power))


_KINDS: dict[str, Callable[[Mapping[str, Any], Streams], Take]] = {
    **dict.fromkeys(_POISSON, _poisson),
    "constant": _constant,
    "gamma": _gamma,
    "weibull": _weibull,
}
