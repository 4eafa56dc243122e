"""Kernels of several backends in one profile, and the profile as one of them has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "kernel_sources."


def as_measured_with(mapping: Mapping[str, Any], source: str | None) -> dict[str, Any]:
    """A profile's *mapping* with the kernels of the backend *source*, without those of others.

    What was not measured with it, of one type or number of GPUs too, stays as `kernels` has it.
    """
    others = mapping.get("kernel_sources")
    if not isinstance(others, Mapping):
        return dict(mapping)
    own = others.get(source, {})
    kernels = dict(mapping["kernels"])
    for name, section in own.items():
        by_key = name == "gemm" or name.startswith("all_reduce")
        kernels[name] = {**kernels.get(name, {}), **section} if by_key else section
    kept = {key: value for key, value in mapping.items() if key != "kernel_sources"}
    named = {"kernel_source": source} if own else {}
    return {**kept, **named, "kernels": kernels, "provenance": _origins(mapping["provenance"], source)}


def _origins(provenance: Mapping[str, Any], source: str | None) -> dict[str, Any]:
    own = f"{_PREFIX}{source}."
    moved = {
        f"kernels.{key.removeprefix(own)}": origin
        for key, origin in provenance.items()
        if key.startswith(own)
    }
    return {key: origin for key, origin in provenance.items() if not key.startswith(_PREFIX)} | moved
