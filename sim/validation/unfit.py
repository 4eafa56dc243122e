"""Public rows that measure something else than the engine on the card, and why; found before any fit.

They are shown with their errors, but neither constants nor headline scores rest on them. A table may say
more in its column `unfit`: a reason, or `ttft: reason` for one metric; `bounds` finds what no card can do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sim.validation.points import LATENCIES, Point

ALL = ("out_tok_s", *LATENCIES)


@dataclass(frozen=True)
class Rule:
    """Rows whose id fits *ids* (shell pattern) and whose engine contains *engine*: *metrics* are unfit."""

    ids: str
    reason: str
    metrics: tuple[str, ...] = ALL
    engine: str = ""

    def holds(self, point: Point) -> bool:
        """Whether the rule is about *point*."""
        return fnmatchcase(point.id, self.ids) and self.engine in point.engine.casefold()


_TTFT = ("ttft", "e2e")
_PCIE = "tensor parallelism over PCIe: the topology of that machine is not told"
_HIDDEN = "near or beyond the card's peak with a 16-bit KV cache: something is undisclosed"
_API_ANSWER = 4.0
_API = "four tokens an answer: the API server is the limit"

RULES: tuple[Rule, ...] = (
    Rule("den-t1-*", "two nodes over Ethernet"),
    *(Rule(f"den-t{name}-*", "two GPUs without NVLink: it measures PCIe") for name in ("3", "6", "8")),
    Rule("aic-qwen3-32b-h100-vllm0.12.0-fp8-*-4000x1000*", _HIDDEN),
    Rule("aic-qwen3-32b-h100-trtllm1.2.0rc6.post1-*", _HIDDEN),
    Rule("trt011-*-l40sfp8x[48]-*", _PCIE),
    *(Rule(f"acc-?-{card}x[248]*", _PCIE) for card in ("rtx4090", "rtx4090d", "rtx3090", "rtxa6000")),
    Rule("trt011-llama-2-70b-*fp16*", "the batch limit that was built in is not told"),
    Rule("gps-qwen3-14b-h100*", "1.3 to 2.1 times slower than its kernels, cause unknown", engine="sglang"),
    Rule("gps-qwen3-32b-a100*", "a tenth of a GiB of the KV cache decides, and it is not told"),
    Rule(
        "aic-llama-3.1-8b-instruct-h100-trtllm1.0.0rc3-unq-*",
        "TTFT rises with the answer's length: requests queue outside the engine",
        _TTFT,
    ),
    Rule("aic-*-sglang0.5.8.post1-*", "limited by a KV cache of unknown size"),
    Rule("iss-vllm17788-*", "half as fast as its kernels, cause unknown"),
    Rule("r2r-l4-*", "no CUDA graphs, and lengths of prompts are assumed"),
    Rule("sgl060-*-vllm-*", "ten decode steps at a time, which is not simulated"),
    Rule("mlpv41-*", "lengths are assumed, and a server run is near its saturation"),
    Rule("lmd-static-7b-2048-*", "the whole batch's prefill ends before anybody's first token", ("ttft",)),
)


def unfit_of(point: Point) -> dict[str, str]:
    """By metric (out_tok_s, ttft, tpot, e2e): why the row's is not used; those that are fit are absent."""
    found: dict[str, str] = {}
    for rule in (*_own(point), *RULES):
        if rule.holds(point):
            for metric in rule.metrics:
                found.setdefault(metric, rule.reason)
    if point.osl_mean == _API_ANSWER and "vllm bench" in point.isl_dist:
        found.update({metric: _API for metric in ALL if metric not in found})
    return found


def told_unfit(point: Point) -> str:
    """The cell of a table's column `unfit` for *point*."""
    found = unfit_of(point)
    reasons: dict[str, list[str]] = {}
    for metric, reason in found.items():
        reasons.setdefault(reason, []).append(metric)
    return "; ".join(
        reason if len(metrics) == len(ALL) else f"{' '.join(metrics)}: {reason}"
        for reason, metrics in reasons.items()
    )


def _own(point: Point) -> Iterable[Rule]:
    """The rules that the table itself has for this row."""
    for part in filter(None, (part.strip() for part in point.unfit.split("; "))):
        head, colon, reason = part.partition(": ")
        metrics = tuple(head.split())
        if colon and metrics and all(metric in ALL for metric in metrics):
            yield Rule(_literal(point.id), reason, metrics)
        else:
            yield Rule(_literal(point.id), part)


def _literal(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
