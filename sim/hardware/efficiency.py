"""Which resource each fitted coefficient belongs to, and profiles with one of them faster or slower.

F of linear layers and prefill attention is compute; B of linear layers, of decode attention (its time a
sequence included) and of elementwise work is memory bandwidth; collectives are the link; every kernel's
overhead, its launch, is the host's. Kernel classes cut the same seconds the other way, by operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLASSES = ("gemm", "attention_prefill", "attention_decode", "all_reduce", "elementwise")
EFFICIENCIES = ("compute", "memory_bandwidth", "link")
"""A card's efficiencies: the share of its kernels' rates that it reaches in a server. They belong to a card
(its cooling, power limit, memory clock, topology), not to an engine."""

# Of each class of kernels: which resource a coefficient belongs to, and whether it is a speed or a time.
_COEFFICIENTS: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "gemm": {
        "flops_per_s": ("compute", 1),
        "bytes_per_s": ("memory_bandwidth", 1),
        "quantise_bytes_per_s": ("memory_bandwidth", 1),
        "overhead_s": ("host", -1),
    },
    "attention_prefill": {
        "flops_per_s": ("compute", 1),
        "head_token_s": ("compute", -1),
        "overhead_s": ("host", -1),
    },
    "attention_decode": {
        "bytes_per_s": ("memory_bandwidth", 1),
        "head_sequence_s": ("memory_bandwidth", -1),
        "overhead_s": ("host", -1),
        "regroup_s": ("host", -1),
    },
    "all_reduce": {"bytes_per_s": ("link", 1), "latency_s": ("link", -1)},
    "elementwise": {"bytes_per_s": ("memory_bandwidth", 1), "overhead_s": ("host", -1)},
}


def faster(kernels: Mapping[str, Any], resource: str, factor: float) -> dict[str, Any]:
    """A profile's `kernels` with one speed, or one class of kernels, *factor* times as fast."""
    changed: dict[str, Any] = _copied(kernels)
    for name, section in changed.items():
        kind = next((known for known in CLASSES if name.startswith(known)), None)
        if kind is not None and isinstance(section, dict):
            nested = section.values() if kind in ("gemm", "all_reduce") else (section,)
            for coefficients in nested:
                _scale(coefficients, kind, resource, factor)
    return changed


def _copied(value: Any) -> Any:
    """Sections copied, what stands in them shared: coefficients are replaced, long tables never are."""
    return {name: _copied(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value


def efficient(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """`kernels` and `kernel_sources` of a profile's *mapping* at its `efficiency`.

    What is no number is left to its reader.
    """
    efficiency = mapping.get("efficiency")
    found = {name: mapping[name] for name in ("kernels", "kernel_sources") if name in mapping}
    if not isinstance(efficiency, Mapping):
        return found
    for resource in EFFICIENCIES:
        share = efficiency.get(resource)
        if isinstance(share, int | float) and share > 0:
            found = {name: _all_faster(name, value, resource, share) for name, value in found.items()}
    return found


def _all_faster(name: str, value: Any, resource: str, share: float) -> Any:
    if not isinstance(value, Mapping):
        return value
    if name == "kernels":
        return faster(value, resource, share)
    return {source: _all_faster("kernels", kernels, resource, share) for source, kernels in value.items()}


def _scale(coefficients: Any, kind: str, resource: str, factor: float) -> None:
    for name, (owner, direction) in _COEFFICIENTS[kind].items():
        if resource in (owner, kind) and isinstance(coefficients, dict):
            value = coefficients.get(name)
            if isinstance(value, int | float):
                coefficients[name] = value * factor**direction
