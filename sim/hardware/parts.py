"""The parts of a hardware profile, each with the reader of its section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sim.hardware.efficiency import EFFICIENCIES
from sim.hardware.roofline import AllReduce, DecodeAttention, Elementwise, PrefillAttention, Roofline
from sim.model.fields import Fields

GEMM_DTYPES = ("bf16", "fp16", "fp8", "int8")
_KINDS = ("measured", "datasheet", "estimated")
Part = TypeVar("Part")


@dataclass(frozen=True)
class Provenance:
    """Where numbers come from: measured (with points and held-out errors in %), datasheet or estimated."""

    kind: str
    source: str
    points: int | None = None
    error_median_pct: float | None = None
    error_p90_pct: float | None = None


@dataclass(frozen=True)
class Link:
    """Between the GPUs of a node; bandwidth is the datasheet's, both directions together."""

    kind: str
    bandwidth_bytes_per_s: float


@dataclass(frozen=True)
class Price:
    """On demand, per GPU, on a date, from a source named in words."""

    usd_per_gpu_hour: float
    date: str
    source: str


@dataclass(frozen=True)
class Kernels:
    """Fitted coefficients of each operation class; the fp8 attention ones are for an 8-bit KV cache."""

    gemm: Mapping[str, Roofline]
    attention_prefill: PrefillAttention
    attention_decode: DecodeAttention
    all_reduce: Mapping[int, AllReduce]
    elementwise: Elementwise
    attention_prefill_fp8: PrefillAttention | None = None
    attention_decode_fp8: DecodeAttention | None = None


def read_peaks(fields: Fields) -> dict[str, float]:
    """Dense peaks by dtype."""
    peaks = {dtype: fields.number(dtype) for dtype in GEMM_DTYPES if fields.has(dtype)}
    fields.end()
    return peaks


def read_link(fields: Fields) -> Link:
    """The link between GPUs."""
    link = Link(fields.choice("kind", ("nvlink", "pcie")), fields.number("bandwidth_bytes_per_s"))
    fields.end()
    return link


def read_price(fields: Fields) -> Price:
    """The price of an hour."""
    price = Price(fields.number("usd_per_gpu_hour", at_least=0), fields.text("date"), fields.text("source"))
    fields.end()
    return price


def read_efficiency(fields: Fields) -> dict[str, float]:
    """The share of its kernels' rates that a card reaches in a server; what is not said is 1."""
    if not fields.has("efficiency"):
        return dict.fromkeys(EFFICIENCIES, 1.0)
    section = fields.section("efficiency")
    said = {name: section.number(name) if section.has(name) else 1.0 for name in EFFICIENCIES}
    section.end()
    return said


def read_kernels(fields: Fields) -> Kernels:
    """The fitted kernels."""
    gemm = fields.section("gemm")
    rooflines = {dtype: _roofline(gemm.section(dtype)) for dtype in GEMM_DTYPES if gemm.has(dtype)}
    gemm.end()
    kernels = Kernels(
        gemm=rooflines,
        attention_prefill=_prefill(fields.section("attention_prefill")),
        attention_decode=_decode(fields.section("attention_decode")),
        all_reduce=_all_reduce(fields.section("all_reduce")) if fields.has("all_reduce") else {},
        elementwise=_elementwise(fields.section("elementwise")),
        attention_prefill_fp8=_optional(fields, "attention_prefill_fp8", _prefill),
        attention_decode_fp8=_optional(fields, "attention_decode_fp8", _decode),
    )
    fields.end()
    return kernels


def read_provenances(fields: Fields) -> dict[str, Provenance]:
    """Where numbers come from, by dotted key or prefix; sections of the profile are named, not nested."""
    entries = {key: _provenance(fields.section(key)) for key in fields.names_of_keys()}
    fields.end()
    return entries


def _provenance(fields: Fields) -> Provenance:
    entry = Provenance(
        kind=fields.choice("kind", _KINDS),
        source=fields.text("source"),
        points=fields.integer("points") if fields.has("points") else None,
        error_median_pct=_error(fields, "error_median_pct"),
        error_p90_pct=_error(fields, "error_p90_pct"),
    )
    fields.end()
    return entry


def _error(fields: Fields, key: str) -> float | None:
    return fields.number(key, at_least=0) if fields.has(key) else None


def _exponent(fields: Fields) -> float:
    """A p-norm's exponent; above 20 it is the hard maximum, and powers of microseconds underflow."""
    return fields.number("exponent", at_most=20)


def _roofline(fields: Fields) -> Roofline:
    roofline = Roofline(
        flops_per_s=fields.number("flops_per_s"),
        bytes_per_s=fields.number("bytes_per_s"),
        exponent=_exponent(fields),
        overhead_s=fields.number("overhead_s", at_least=0),
    )
    fields.end()
    return roofline


def _prefill(fields: Fields) -> PrefillAttention:
    kernel = PrefillAttention(
        flops_per_s=fields.number("flops_per_s"),
        head_token_s=fields.number("head_token_s", at_least=0),
        exponent=_exponent(fields),
        overhead_s=fields.number("overhead_s", at_least=0),
        causal_weight=fields.number("causal_weight") if fields.has("causal_weight") else 0.5,
    )
    fields.end()
    return kernel


def _decode(fields: Fields) -> DecodeAttention:
    kernel = DecodeAttention(
        bytes_per_s=fields.number("bytes_per_s"),
        head_sequence_s=fields.number("head_sequence_s", at_least=0),
        exponent=_exponent(fields),
        overhead_s=fields.number("overhead_s", at_least=0),
    )
    fields.end()
    return kernel


def _all_reduce(fields: Fields) -> dict[int, AllReduce]:
    """By number of GPUs; YAML's keys may be texts or whole numbers."""
    kernels = {}
    for key in fields.names_of_keys():
        if not key.isdigit() or int(key) < 2:
            fields.fault(key, "must be a number of GPUs, 2 or more")
            continue
        section = fields.section(key)
        kernels[int(key)] = AllReduce(
            latency_s=section.number("latency_s", at_least=0),
            bytes_per_s=section.number("bytes_per_s"),
            exponent=_exponent(section),
        )
        section.end()
    return kernels


def _elementwise(fields: Fields) -> Elementwise:
    kernel = Elementwise(fields.number("bytes_per_s"), fields.number("overhead_s", at_least=0))
    fields.end()
    return kernel


def _optional(fields: Fields, key: str, read: Callable[[Fields], Part]) -> Part | None:
    return read(fields.section(key)) if fields.has(key) else None
