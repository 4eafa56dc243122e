"""What `list` and `show` print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sim.faults import InputFault, did_you_mean

KINDS = ("hardware", "models", "workloads", "engines", "scenarios")


def names_of(kind: str) -> list[str]:
    """The names of *kind*, sorted; `InputFault` if there is no such kind."""
    if _plural(kind) == "engines":
        from sim.cli.engines import engine_names

        return engine_names()
    from sim.scenario import names

    return list(names(_plural(kind)))


def lines_of(kind: str) -> list[str]:
    """The names of *kind*, all but scenarios with a line on each; no names, no lines."""
    if _plural(kind) == "engines":
        from sim.cli.engines import engine_lines

        return engine_lines()
    names = names_of(kind)
    words = _SUMMARIES.get(_plural(kind))
    if words is None or not names:
        return names
    from sim.report.text import aligned

    return aligned([(name, _summary(_plural(kind), name, words)) for name in names])


def text_of(kind: str, name: str) -> str:
    """The YAML file behind *name*, or what the engine preset of that name does."""
    if _plural(kind) == "engines":
        from sim.cli.engines import engine_text, is_file

        if not is_file(name):
            return engine_text(name)
    from sim.scenario import find

    return find(_plural(kind), name).read_text(encoding="utf-8")


def document_of(kind: str, name: str) -> dict[str, Any]:
    """The same for a program: values in base units."""
    plural = _plural(kind)
    if plural == "engines":
        from sim.cli.engines import engine_document, is_file

        if not is_file(name):
            return engine_document(name)
    from sim.scenario import entry, load

    return load(name).resolved() if plural == "scenarios" else dict(entry(plural, name))


def _summary(kind: str, name: str, words: Callable[[Mapping[str, Any]], str]) -> str:
    """*words* on the file of that name; a broken file has its faults told when it is used."""
    from sim.scenario import entry

    try:
        return words(entry(kind, name))
    except InputFault:
        return "cannot be used as it is written"


def _hardware_words(value: Mapping[str, Any]) -> str:
    from sim.hardware import HardwareProfile

    profile = HardwareProfile.from_mapping(value)
    origins = {profile.provenance(f"kernels.gemm.{dtype}").kind for dtype in profile.kernels.gemm}
    return (
        f"{profile.memory_bytes / 2**30:.1f} GiB, "
        f"{profile.memory_bandwidth_bytes_per_s / 1e9:,.0f} GB/s, "
        f"{profile.peak_flops('bf16') / 1e12:,.0f} TFLOP/s in bf16; kernels {' and '.join(sorted(origins))}"
    )


def _model_words(value: Mapping[str, Any]) -> str:
    from sim.model import ModelSpec

    model = ModelSpec.from_mapping(value)
    return (
        f"{model.parameters / 1e9:.2f} billion parameters, {model.layers} layers, "
        f"{model.kv_bytes_per_token('auto', 1):,} B of KV cache a token"
    )


def _workload_words(value: Mapping[str, Any]) -> str:
    from sim.workload import mean_tokens

    prompt, output = mean_tokens(value)
    source = f"; {value['source']}" if value.get("source") else ""
    return f"prompt {prompt:,.0f}, output {output:,.0f} tokens in the mean{source}"


_SUMMARIES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "hardware": _hardware_words,
    "models": _model_words,
    "workloads": _workload_words,
}


def _plural(kind: str) -> str:
    plural = f"{kind}s" if f"{kind}s" in KINDS else kind
    if plural not in KINDS:
        raise InputFault(f"kind {kind} is unknown{did_you_mean(kind, KINDS)}")
    return plural
