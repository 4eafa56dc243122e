"""Writes docs/workloads.md: profiles beside the traces that they were fitted to, drawn and simulated.

`python docs/workloads.py` fits public traces, which lie beside the checkout in ../shared/data/traces; what is
not there has no rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from worked_example import table

import sim
from sim.planning.knee import find_knee
from sim.workload import read_trace
from sim.workload.fitting import Fit, fit_trace
from sim.workload.fitting.arrivals import gamma_shape

PAGE = Path(__file__).with_name("workloads.md")
TRACES = PAGE.parents[2] / "shared" / "data" / "traces"
FILES = {
    "Azure code": "azure2023/AzureLLMInferenceTrace_code.csv",
    "Azure conv": "azure2023/AzureLLMInferenceTrace_conv.csv",
    "Mooncake conversation": "mooncake/conversation_trace.jsonl.gz",
    "Mooncake synthetic": "mooncake/synthetic_trace.jsonl.gz",
}
SCENARIO, SIMULATED, LOADS, SEEDS = "chat-8b-a100", ("Azure conv", "Azure code"), (0.5, 0.85), 10
QUANTITIES = (
    "prompt tokens, distance", "output tokens, distance", "linear correlation", "rank correlation",
    "dispersion in 1 s", "dispersion in 10 s", "dispersion in 60 s", "hit ratio, cache without limit",
    "hit ratio, cache of 1,000 blocks", "hit ratio, cache of 10,000 blocks",
    "hit ratio, cache of 100,000 blocks",
)  # fmt: skip
_LIMIT = {"ttft_p99_s": 5.0}
METRICS = (("ttft_s", "p50"), ("ttft_s", "p99"), ("tpot_s", "p50"), ("tpot_s", "p99"), ("queue_s", "mean"))
_INTRODUCTION = """# Workloads from traces

Written by `docs/workloads.py`. `kneesim workload fit TRACE --out FILE.yaml` writes a profile, numbers only,
and a page of pictures beside it; `kneesim workload show` draws any workload. Here each profile stands beside
its trace.
"""
_SAYS = """
What the table says. The plain profile is any hour like the recorded one: for Azure code its tails and
decode times are the trace's, and its medians are within what another such hour would differ by. The profile
with `--drift` is that hour: its rate step by step, and, where the mix of lengths moves with time, that of
each kind of requests. In Azure's conversations it does, and the plain profile with its one mix has none of
the tail that the busy, long-prompt part of the hour has near capacity. A renewal process has the queue of
Azure code only with the coefficient of variation that the silences give its gaps; with the shape that fits
the gaps best, as load generators are given it, little of the queue is left."""


def fits() -> dict[str, Fit]:
    """The profile of each trace that is there."""
    there = {name: TRACES / path for name, path in FILES.items() if (TRACES / path).is_file()}
    return {name: fit_trace(read_trace(path), name) for name, path in there.items()}


def drawn(fitted: Mapping[str, Fit]) -> str:
    """What was recorded and what is drawn, quantity by quantity."""
    rows = []
    for name, fit in fitted.items():
        for quantity in QUANTITIES:
            if both := fit.differences.get(quantity):
                rows.append([name, quantity, _number(both["recorded"]), _number(both["drawn"])])
    missed = "\n".join(f"* {name}: {sentence}." for name, fit in fitted.items() for sentence in fit.missed)
    return f"""## Fit, then draw

The distance is that of Kolmogorov and Smirnov; dispersion is the variance over the mean of counts in windows,
1 for a Poisson process. Drawn are means over {len(next(iter(fitted.values())).drawn)} seeds of runs
as long as the trace.

{table(["trace", "quantity", "recorded", "drawn"], rows)}

What the profiles do not have:

{missed}"""


def simulated(fitted: Mapping[str, Fit]) -> str:
    """Latencies of the trace, of its profile, and of renewal processes of the same rate."""
    rows = []
    for name in SIMULATED:
        if name in fitted:
            rows += _simulated(name, fitted[name])
    header = [
        "traffic",
        "load",
        "arrivals",
        *(f"{metric.removesuffix('_s')} {how} (s)" for metric, how in METRICS),
    ]
    return f"""## Fit, then simulate

The trace sent at 50 % and 85 % of what `{SCENARIO}` can serve of its lengths, arrivals being Poisson
(`load.rate_per_s`, which stretches its times), and workloads in its place, as many requests each; the
profile's stays are stretched alike. Cells have the mean over {SEEDS} seeds, what that is off the trace, and
the standard deviation of one run, both in percent of the trace. One hour of bursts is one draw: where a run's
deviation is large, the trace too is one of many that could have been recorded.

{table(header, rows)}
{_SAYS}"""


def _simulated(name: str, fit: Fit) -> list[list[str]]:
    path, traffic = TRACES / FILES[name], {key: fit.workload[key] for key in ("arrivals", "lengths")}
    kept = fit_trace(read_trace(path), name, drift=True).workload
    drifting = {key: kept[key] for key in ("classes", "arrivals", "lengths") if key in kept}
    assert fit.recorded.times_s is not None
    gaps = np.diff(fit.recorded.times_s)
    cv = float(gaps.std() / gaps.mean())
    shape, _ = gamma_shape(gaps[gaps > 0])
    renewals = {
        "poisson": {"kind": "poisson"},
        f"gamma, CV of the trace, {cv:.3g}": {"kind": "gamma", "cv": cv},
        f"gamma, most likely shape, {shape:.3g}": {"kind": "gamma", "burstiness": shape},
    }
    workloads = {"profile": traffic, "profile with --drift": drifting}
    workloads |= {kind: traffic | {"arrivals": arrivals} for kind, arrivals in renewals.items()}
    lengths = {"arrivals": {"kind": "poisson"}, "lengths": {"kind": "trace", "path": str(path)}}
    capacity = find_knee(_scenario(lengths, 1.0, len(gaps), 1, _LIMIT)).capacity_rate_per_s
    assert capacity is not None
    assert fit.recorded.rate_per_s is not None
    rows = []
    for load in LOADS:
        rate_per_s = load * capacity
        own = _run(str(path), rate_per_s, len(gaps) + 1, 1)
        at = f"{100 * load:.0f} %, {rate_per_s:.3g}/s"
        rows.append([name, at, "trace", *map(_number, own)])
        for kind, workload in workloads.items():
            told = _stretched(workload, fit.recorded.rate_per_s / rate_per_s)
            runs = np.array([_run(told, rate_per_s, len(gaps) + 1, seed) for seed in range(1, SEEDS + 1)])
            rows.append([name, at, kind, *_cells(runs, own)])
    return rows


def _cells(runs: np.ndarray, own: Sequence[float]) -> list[str]:
    means, deviations = runs.mean(axis=0), runs.std(axis=0, ddof=1)
    return [
        f"{_number(mean)} ({100 * (mean / value - 1):+.0f}, sd {100 * deviation / value:.0f})"
        for mean, deviation, value in zip(means, deviations, own, strict=True)
    ]


def _stretched(workload: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """*workload* with the times of its arrivals *factor* as long."""
    if classes := workload.get("classes"):
        return {"classes": {name: _stretched(own, factor) for name, own in classes.items()}}
    arrivals = dict(workload["arrivals"])
    for key in ("on_s", "off_s", "sojourn_s"):
        if key in arrivals:
            arrivals[key] = (np.array(arrivals[key]) * factor).tolist()
    if series := arrivals.get("series"):
        arrivals["series"] = {**series, "times_s": (np.array(series["times_s"]) * factor).tolist()}
    return {**workload, "arrivals": arrivals}


def _scenario(
    workload: Any, rate_per_s: float, requests: int, seed: int, slo: Mapping[str, float]
) -> sim.Scenario:
    changes = {"workload": workload, "load": {"rate_per_s": rate_per_s}, "slo": slo}
    changes["run"] = {"requests": requests, "seed": seed}
    return sim.load(SCENARIO, [f"{key}={json.dumps(value)}" for key, value in changes.items()])


def _run(workload: Any, rate_per_s: float, requests: int, seed: int) -> list[float]:
    summary = sim.simulate(_scenario(workload, rate_per_s, requests, seed, {})).summary()
    return [summary[metric][how] for metric, how in METRICS]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    fitted = fits()
    parts = [_INTRODUCTION, drawn(fitted), simulated(fitted)] if fitted else []
    if parts:
        PAGE.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
