"""What a simulated request costs, in timeouts of a bare SimPy loop.

Seconds depend on the machine and its mood; the ratio to the loop that every SimPy user knows does
not. Timed is a whole answer: from a resolved scenario to a complete summary, workload and records
included, in one process after imports.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from sim.results import Result
from sim.scenario import Scenario, load
from sim.simulation import simulate
from sim.simulation.bare_loop import bare_loop
from sim.workload import generate_chunks

_ROUNDS = 5
_REQUESTS = 10_000
_DRAWN_REQUESTS = 500_000
_BARE_TIMEOUTS = 200_000
AZURE_KNEE_PER_S = 6.0  # azure-2023-conv on one A100, rounded from `kneesim knee chat-8b-a100`
_PREFIX = {
    "engine.enable_prefix_caching": True,
    "workload": {  # about as long, as much shared and as often continued as Mooncake's conversations
        "lengths": {"kind": "lognormal", "prompt_mean": 8000, "output_mean": 350, "cv": 1.2},
        "prefixes": {"kind": "groups", "groups": 20, "tokens": 500, "zipf": 1.0},
        "sessions": {
            "turns": {"kind": "geometric", "mean": 2.0},
            "gap": {"kind": "lognormal", "mean_s": 60.0, "cv": 1.0},
        },
    },
    "load.rate_per_s": 0.8,
    "run.requests": _REQUESTS,
}
_PREEMPTING = {
    "engine.enable_prefix_caching": True,
    "engine.num_gpu_blocks_override": 4001,
    "engine.max_model_len": 16384,
    "workload": {"lengths": {"kind": "lognormal", "prompt_mean": 500, "output_mean": 500, "cv": 1.0}},
    "load.rate_per_s": 12.0,
    "run.requests": _REQUESTS,
}
_TENANTS = {  # the requests of `steady`, by many
    "workload.classes": {"chat": {"share": 0.8, "tenants": 40, "tenant_zipf": 1.1}, "batch": {"share": 0.2}},
    "load.rate_per_s": 8.0,
}
_RATES_PER_S = {"light": 4.0, "steady": 8.0, "overload": 12.0}


def scenarios() -> dict[str, Scenario]:
    """The scenarios that are timed: light, steady, overload, azure, prefix, preempting, tenants.

    In *prefix* conversations of long prompts come back and share heads, in *preempting* the blocks run
    short all the time, in *tenants* two classes and forty tenants are told apart; that and the first three
    have the prefix cache switched off.
    """
    h100 = load(
        {
            "name": "bench",
            "hardware": "h100-80gb-sxm",
            "model": "llama-3.1-8b",
            "engine": {"enable_prefix_caching": False},
            "workload": {
                "arrivals": {"kind": "poisson"},
                "lengths": {"kind": "fixed", "prompt_tokens": 2000, "output_tokens": 300},
            },
            "load": {"rate_per_s": 1.0},
            "run": {"requests": _REQUESTS},
        }
    )
    timed = {name: h100.replace({"load.rate_per_s": rate}) for name, rate in _RATES_PER_S.items()}
    azure = {"load.rate_per_s": AZURE_KNEE_PER_S, "run.requests": _REQUESTS}
    timed["azure"] = load("chat-8b-a100").replace(azure)
    others = {"prefix": _PREFIX, "preempting": _PREEMPTING, "tenants": _TENANTS}
    return timed | {name: h100.replace(changes) for name, changes in others.items()}


def run(progress: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """The document of ``kneesim bench --json``: medians of `_ROUNDS`, interleaved with the bare loop."""
    timed = scenarios()
    drawn = timed["azure"].replace({"run.requests": _DRAWN_REQUESTS})
    timed["azure's requests alone"] = drawn  # no simulation: what drawing the traffic costs
    bare_s: list[float] = []
    request_s: dict[str, list[float]] = {name: [] for name in timed}
    ratios: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(_ROUNDS):
        for name, scenario in timed.items():
            if progress:
                made = number * len(timed) + list(timed).index(name)
                progress(made, _ROUNDS * len(timed), name)
            before_s = _seconds(bare_loop, _BARE_TIMEOUTS) / _BARE_TIMEOUTS
            work = _draw if scenario is drawn else _answer
            each_s = _seconds(work, scenario) / scenario.run["requests"]
            after_s = _seconds(bare_loop, _BARE_TIMEOUTS) / _BARE_TIMEOUTS
            bare_s += [before_s, after_s]
            request_s[name].append(each_s)
            ratios[name].append(2.0 * each_s / (before_s + after_s))
    return {
        "bare_timeouts_per_s": 1.0 / median(bare_s),
        "scenarios": {
            name: {
                "requests": timed[name].run["requests"],
                "seconds_per_request": median(request_s[name]),
                "timeouts_per_request": median(ratios[name]),
            }
            for name in timed
        },
    }


def _answer(scenario: Scenario) -> None:
    Result(simulate(scenario)).summary()


def _draw(scenario: Scenario) -> None:
    for _ in generate_chunks(scenario.workload, scenario.load, scenario.run):
        pass


def _seconds(work: Callable[[Any], None], argument: Any) -> float:
    began = perf_counter()
    work(argument)
    return perf_counter() - began
