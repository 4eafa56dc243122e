"""A server's calibration as plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.planning.wording import duration, number
from sim.report.text import table

_TOLD = ("output_throughput", "ttft_mean_s", "tpot_mean_s", "itl_mean_s", "e2e_mean_s")
_SHORT = {"output_throughput": "output tokens/s", "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}


def server_text(document: Mapping[str, Any]) -> str:
    """*document* (`ServerCalibration.as_dict`) for a person."""
    constants = document["constants"]
    found = [constant for constant in constants if constant["identified"]]
    lost = [constant for constant in constants if not constant["identified"]]
    header = ["constant", "key", "value", "90 % interval", "was", "loads to halve it"]
    blocks = [[f"{document['source']}."], [_host_words(document["host_times"])]]
    if found:
        blocks.append(table(header, [_constant(constant) for constant in found]))
    if lost:
        words = [f"  {one['key']}, {_unsure(one)}: {one['would_show_it']}" for one in lost]
        blocks.append(["not identified by these loads; what would show them:", *words])
    rows = [row for load in document["loads"] for row in _rows(load)]
    blocks.append(table(["load", "metric", "measured", "before", "after", "error"], rows))
    apart = ", ".join(f"{name} {number(pct, 2)} %" for name, pct in document["apart_pct"].items())
    blocks.append([f"still apart, one standard deviation: {apart}"])
    return "\n\n".join("\n".join(block) for block in blocks)


def _host_words(host: Mapping[str, Any]) -> str:
    way = "overlap with the GPU's" if host["overlapped"] else "are added to the GPU's"
    gain = host["minus_two_log_evidence_gained"]
    how = "fits better than the other way" if gain > 0 else "fits worse, but not so that it tells"
    changed = "" if host["overlapped"] == host["started_overlapped"] else ", unlike in the scenario"
    return f"Host times {way}{changed} ({how}, by {number(abs(gain), 2)} of -2 log evidence)."


def _constant(constant: Mapping[str, Any]) -> list[str]:
    low, high = (_value(constant, end) for end in constant["interval"])
    loads = constant["loads_for_half_the_interval"]
    return [
        constant["words"],
        constant["key"],
        _value(constant, constant["value"]),
        f"{low} to {high}",
        _value(constant, constant["start"]),
        "no number of these" if loads is None else str(loads),
    ]


def _unsure(constant: Mapping[str, Any]) -> str:
    """The value of a constant that is not identified: the files have it where the others moved it."""
    value, start = (_value(constant, constant[key]) for key in ("value", "start"))
    return f"kept at {start}" if value == start else f"moved by the others from {start} to {value}"


def _value(constant: Mapping[str, Any], value: float) -> str:
    return number(value) if constant["belongs_to"] == "card" else duration(value)


def _rows(load: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name in _TOLD:
        metric = load["metrics"].get(name)
        if metric is None or metric["after"] is None:
            continue
        show = duration if name.endswith("_s") else number
        word = _SHORT.get(name.removesuffix("_mean_s"), name)
        cells = [show(metric[key]) for key in ("measured", "before", "after")]
        rows.append([load["load"], word, *cells, f"{metric['error_pct']:+.1f} %"])
    return rows
