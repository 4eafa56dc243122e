"""A folder of ServeGen's clients (Xiang et al., 2025) as a workload: a class for each client of weight.

`chunk-I-trace.csv` has a row for each window of a client: its start (s), rate (per s), CV of the gaps, their
distribution (Gamma or Weibull) and its parameters. `chunk-I-dataset.json` has for some windows the shares of
each length. A client's windows become a series of rates and one table of lengths; clients beyond 90 % of the
rate are left out, and so are those without lengths.
"""

from __future__ import annotations

import ast
import csv
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sim.faults import InputFault
from sim.workload.readers.cells import looks_numeric

COVERED = 0.9
_WINDOW_S = 600.0
_POINTS = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1)


def servegen_workload(folder: Path) -> dict[str, Any]:
    """The workload of the clients in *folder*; its mean rate is `mean_rate_per_s` of the description.

    Raises InputFault where there are none, or a file is not as ServeGen writes it.
    """
    paths = sorted(folder.glob("chunk-*-trace.csv"), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise InputFault(f"{folder} has no chunk-*-trace.csv, as a folder of ServeGen's clients has")
    clients = {path.name.split("-")[1]: _windows(path) for path in paths}
    means = {name: float(np.mean([rate for _, rate, *_ in windows])) for name, windows in clients.items()}
    total, told = sum(means.values()), 0.0
    classes: dict[str, Any] = {}
    for name in sorted(means, key=lambda each: -means[each]):
        lengths = _lengths(folder / f"chunk-{name}-dataset.json")
        if lengths is None or means[name] <= 0:
            continue
        classes[f"client-{name}"] = {
            "share": round(means[name], 6),
            "lengths": lengths,
            **_arrivals(clients[name]),
        }
        told += means[name]
        if told >= COVERED * total:
            break
    if not classes:
        raise InputFault(f"{folder} has no chunk-*-dataset.json with input_tokens and output_tokens")
    kept = f"{len(classes)} of {len(clients)} clients, with {told / total:.1%} of {total:.4g} requests/s"
    return {"description": f"ServeGen's clients in {folder.name}: {kept}", "classes": classes}


def _windows(path: Path) -> list[tuple[float, float, float, str]]:
    """(start in s, rate per s, CV, distribution) of each window."""
    windows = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        for line, row in enumerate(csv.reader(file), start=1):
            if line == 1 and row and not looks_numeric(row[0]):
                continue  # a header
            try:
                start, rate, cv = (float(cell or 0) for cell in row[:3])
                windows.append((start, max(rate, 0.0), cv, row[3].strip().lower()))
            except (ValueError, IndexError):
                raise InputFault(
                    f"{path}:{line}: must have start, rate, CV and distribution (got {row})"
                ) from None
    if not windows:
        raise InputFault(f"{path} has no windows")
    return windows


def _arrivals(windows: list[tuple[float, float, float, str]]) -> dict[str, Any]:
    """The shape with the mean CV of the windows, weighted by their rates, and the rates as steps."""
    rates = np.array([rate for _, rate, *_ in windows])
    known = [(rate, cv, kind) for _, rate, cv, kind in windows if rate > 0 and math.isfinite(cv) and cv > 0]
    cv = sum(rate * cv for rate, cv, _ in known) / sum(rate for rate, *_ in known) if known else 1.0
    weight: Counter[str] = Counter()
    for rate, _, kind in known:
        weight[kind] += rate  # type: ignore[assignment]
    arrivals: dict[str, Any] = {"kind": "weibull" if weight["weibull"] > weight["gamma"] else "gamma",
                                "cv": round(cv, 4)}  # fmt: skip
    if len(windows) > 1 and rates.min() < rates.max():
        begin = windows[0][0]
        arrivals["series"] = {
            "times_s": [start - begin for start, *_ in windows],
            "rates": np.round(rates / rates.mean(), 5).tolist(),
            "period_s": windows[-1][0] - begin + _WINDOW_S,
            "interpolation": "step",
        }
    return {"arrivals": arrivals}


def _lengths(path: Path) -> dict[str, Any] | None:
    """The tables of prompts and outputs over all windows; None where the client has none."""
    if not path.is_file():
        return None
    try:
        windows = json.loads(path.read_text(encoding="utf-8-sig")).values()
        prompt, output = (_shares(windows, f"{side}_tokens") for side in ("input", "output"))
    except (ValueError, SyntaxError, AttributeError, TypeError) as error:
        raise InputFault(f"{path}: must have the shares of each length by window ({error})") from None
    if not prompt or not output:
        return None
    return {"kind": "table", "prompt": _table(prompt), "output": _table(output)}


def _shares(windows: Any, field: str) -> Counter[int]:
    """How often each length comes, over *windows*."""
    shares: Counter[int] = Counter()
    for window in windows:
        told = (window or {}).get(field) or {}
        pairs: Mapping[Any, Any] = ast.literal_eval(told) if isinstance(told, str) else told
        for tokens, share in pairs.items():
            shares[max(round(float(tokens)), 1)] += float(share)  # type: ignore[assignment]
    return shares


def _table(shares: Mapping[int, float]) -> dict[str, list[float]]:
    """The quantile table through some points: edges half-way between whole numbers, as rounding cuts."""
    values = np.array(sorted(shares))
    upto = np.concatenate([[0.0], np.cumsum([shares[value] for value in values.tolist()])])
    upto /= upto[-1]
    edges = np.concatenate([[values[0] - 0.5], values + 0.5])
    chosen = sorted({int(np.argmin(np.abs(upto - point))) for point in _POINTS} | {0, len(edges) - 1})
    return {"quantiles": np.round(upto[chosen], 9).tolist(), "tokens": edges[chosen].tolist()}
