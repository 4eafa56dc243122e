"""The profile of a trace: each part fitted by itself, then all drawn together and held against the trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.faults import InputFault
from sim.workload.fitting.arrivals import fit_arrivals, require_arrivals, spread_over_grid
from sim.workload.fitting.drift import fit_drift
from sim.workload.fitting.lengths import Lengths, fit_lengths
from sim.workload.fitting.sharing import fit_sharing
from sim.workload.fitting.users import sessions_of, tenants_of
from sim.workload.portrait import Portrait, differences
from sim.workload.prefixes import recorded_contents
from sim.workload.requests import generate
from sim.workload.trace import Trace

SEEDS = (1, 2, 3, 4, 5)
_DRAWN_REQUESTS = 50_000


@dataclass(frozen=True)
class Fit:
    """workload: the profile, as it stands in a file. recorded, drawn: portraits of the trace and of runs of
    the profile at its rate. differences: of the two, by quantity. missed: what the profile does not have, in
    sentences. found: what else the trace shows."""

    workload: Mapping[str, Any]
    recorded: Portrait
    drawn: tuple[Portrait, ...]
    differences: Mapping[str, Mapping[str, float | None]]
    missed: tuple[str, ...]
    found: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For a program."""
        return {
            "workload": dict(self.workload),
            "recorded": self.recorded.as_dict(),
            "differences": {name: dict(both) for name, both in self.differences.items()},
            "missed": list(self.missed),
            "found": list(self.found),
        }


def fit_trace(
    trace: Trace,
    name: str,
    source: str | None = None,
    licence: str | None = None,
    drift: bool = False,
    other: Mapping[str, Any] | None = None,
) -> Fit:
    """A profile called *name* of *trace*; with *drift* it has the kinds of requests of the trace, each with
    its recorded rate. Where the trace has times alone, lengths are those of the workload *other*.

    Raises InputFault where the trace is too short or has no times, and for a *drift* of shared prompts.
    """
    times_s, step_s = spread_over_grid(trace.require_times() / 1e9)
    require_arrivals(times_s, trace.path)
    recorded = recorded_portrait(trace, times_s) if other is None else _with_lengths_of(other, times_s)
    keys, origins, missed = _traffic(trace, times_s, drift, other)
    found = list[str]()
    if step_s:
        missed.append(
            f"times lie on a grid of {step_s:g} s and are spread evenly over it: what happens within it is "
            "assumed"
        )
    if trace.chains is not None and recorded.contents is not None:
        block_tokens = trace.chains.block_tokens or 512
        sharing = fit_sharing(trace.chains, trace.prompt_tokens, times_s, block_tokens)
        keys["prefixes"] = dict(sharing.keys)
        origins["prefixes"] = _origin(sharing.says, len(trace))
        found += sharing.found
    found += [*sessions_of(trace, times_s), *tenants_of(trace)]
    drawn = tuple(_drawn(keys, recorded, seed) for seed in SEEDS)
    compared = differences(recorded, drawn)
    origins["arrivals"]["source"] += _held(compared)
    workload = {
        "name": name,
        "description": _description(recorded, found),
        "source": source or Path(trace.path).name,
        **({"licence": licence} if licence else {}),
        **keys,
        "provenance": origins,
    }
    return Fit(workload, recorded, drawn, compared, tuple(missed), tuple(found))


def _traffic(
    trace: Trace, times_s: np.ndarray, drift: bool, other: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], list[str]]:
    """Arrivals and lengths, or classes of both; their provenance; and what they do not have."""
    count, keys, origins = len(trace), dict[str, Any](), dict[str, dict[str, Any]]()
    lengths = _taken(other) if other is not None else None
    if drift and trace.chains is not None:
        raise InputFault(
            f"{trace.path}: --drift does not go with prompts that share tokens (hash_ids): classes share "
            "none with one another; leave it out"
        )
    if drift:
        sides = (trace.prompt_tokens, trace.output_tokens) if other is None else ()
        kinds = fit_drift(times_s, *sides)
        keys |= kinds.keys
        origins |= {key: _origin(says, count) for key, says in kinds.says.items()}
        missed = [*kinds.missed]
    else:
        arrivals = fit_arrivals(times_s)
        keys["arrivals"], origins["arrivals"] = dict(arrivals.keys), _origin(arrivals.says, count)
        missed = [*arrivals.missed]
    if lengths is None and "classes" not in keys:
        lengths = fit_lengths(trace.prompt_tokens, trace.output_tokens)
    if lengths is not None:
        keys["lengths"] = dict(lengths.keys)
        origins |= lengths.origins(count)
        missed += lengths.missed
    if other is not None:
        origins["lengths"]["kind"] = "estimated"
    return keys, origins, missed


def recorded_portrait(trace: Trace, times_s: np.ndarray | None) -> Portrait:
    """That of a trace, whose requests come at *times_s*."""
    contents = None
    if trace.chains is not None:
        prefixes = {"kind": "trace", "block_tokens": trace.chains.block_tokens or 512}
        lengths = {"kind": "trace", "path": trace.path}
        contents = recorded_contents({"lengths": lengths, "prefixes": prefixes}, len(trace))
    classes, names = getattr(trace, "classes", None), getattr(trace, "class_names", ())
    return Portrait(times_s, trace.prompt_tokens, trace.output_tokens, contents, classes, names)


def _taken(other: Mapping[str, Any]) -> Lengths:
    """The lengths of the workload *other*."""
    says = f"those of {other.get('name', 'another workload')}; the file has times alone"
    return Lengths(other["lengths"], {"lengths": says}, (f"lengths of its own: they are {says}",))


def _with_lengths_of(other: Mapping[str, Any], times_s: np.ndarray) -> Portrait:
    lengths = {"lengths": other["lengths"]}
    sent = generate(lengths, {"rate_per_s": 1.0}, {"requests": len(times_s), "seed": 0})
    return Portrait(times_s, sent.prompt_tokens, sent.output_tokens)


def _drawn(keys: Mapping[str, Any], recorded: Portrait, seed: int) -> Portrait:
    """A run of the profile as long as the trace, or as is enough."""
    requests = min(len(recorded.prompt_tokens), _DRAWN_REQUESTS)
    run = {"requests": requests, "seed": seed}
    return Portrait.of(generate(keys, {"rate_per_s": recorded.rate_per_s}, run))


def _origin(says: str, points: int) -> dict[str, Any]:
    return {"kind": "measured", "source": says, "points": points}


def _held(compared: Mapping[str, Mapping[str, float | None]]) -> str:
    """The index of dispersion, drawn and recorded, in words."""
    pairs = []
    for window in ("1", "10", "60"):
        both = compared.get(f"dispersion in {window} s")
        if both and both["drawn"] is not None and both["recorded"] is not None:
            pairs.append(f"{both['drawn']:.3g} in {window} s ({both['recorded']:.3g} recorded)")
    return f". Index of dispersion as drawn: {', '.join(pairs)}" if pairs else ""


def _description(recorded: Portrait, found: list[str]) -> str:
    prompt, output = recorded.prompt_tokens.mean(), recorded.output_tokens.mean()
    words = (
        f"Fitted to {len(recorded.prompt_tokens):,} requests recorded over {recorded.span_s:,.0f} s "
        f"({recorded.rate_per_s:.3g} a second), with {prompt:,.0f} prompt and {output:,.0f} output tokens on "
        "average."
    )
    return " ".join([words, *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in found)])
