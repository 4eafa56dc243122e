"""The parts of a hardware profile, each with the reader of its section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.hardware.efficiency import EFFICIENCIES
from sim.hardware.residuals import read_residuals
from sim.hardware.roofline import AllReduce, DecodeAttention, Elementwise, Gemm, PrefillAttention, Roofline
from sim.model import WEIGHT_DTYPE_BYTES
from sim.model.fields import Fields

GEMM_DTYPES = ("bf16", "fp16", "fp8", "int8", "int4")
_KINDS = ("measured", "datasheet", "estimated")


@dataclass(frozen=True)
class Provenance:
    """Where numbers come from: measured (with points and held-out errors in %), datasheet or estimated.

    `covariance` is that of the logarithms of fitted coefficients, a row for each by its name, in the order of
    the names.
    """

    kind: str
    source: str
    points: int | None = None
    error_median_pct: float | None = None
    error_p90_pct: float | None = None
    covariance: Mapping[str, tuple[float, ...]] | None = None


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
    """Fitted coefficients of each operation class; the fp8 attention ones are for an 8-bit KV cache.

    `all_reduce_eager` is the collective outside of CUDA graphs, launch included.
    """

    gemm: Mapping[str, Gemm]
    attention_prefill: PrefillAttention
    attention_decode: DecodeAttention
    all_reduce: Mapping[int, AllReduce]
    elementwise: Elementwise
    attention_prefill_fp8: PrefillAttention | None = None
    attention_prefill_fp8_compute: PrefillAttention | None = None
    attention_decode_fp8: DecodeAttention | None = None
    all_reduce_eager: Mapping[int, AllReduce] = field(default_factory=dict)


def read_peaks(fields: Fields) -> dict[str, float]:
    """Dense peaks by dtype."""
    peaks = {dtype: fields.number(dtype) for dtype in GEMM_DTYPES if fields.has(dtype)}
    fields.end()
    return peaks


def read_link(fields: Fields) -> Link:
    """The link between GPUs."""
    link = Link(fields.choice("kind", ("nvlink", "xgmi", "pcie")), fields.number("bandwidth_bytes_per_s"))
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
    for needed in ("gemm", "attention_prefill", "attention_decode", "elementwise"):
        if not fields.has(needed):
            fields.section(needed)
    sections = read_source(fields)
    return Kernels(**{"all_reduce": {}, **_STAND_INS, **sections})


def read_source(fields: Fields) -> dict[str, Any]:
    """Those sections of the kernels that are there, by their names in `Kernels`."""
    sections = {name: read(fields.section(name)) for name, read in _SECTIONS.items() if fields.has(name)}
    fields.end()
    return sections


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
        covariance=_covariance(fields.section("covariance")) if fields.has("covariance") else None,
    )
    fields.end()
    return entry


def _covariance(fields: Fields) -> dict[str, tuple[float, ...]]:
    rows = {name: fields.numbers(name) for name in fields.names_of_keys()}
    if any(len(row) != len(rows) for row in rows.values()):
        fields.fault("", f"must have {len(rows)} numbers in each row, one for each of its names")
    return rows


def _error(fields: Fields, key: str) -> float | None:
    return fields.number(key, at_least=0) if fields.has(key) else None


def _if_there(fields: Fields, key: str) -> float | None:
    return fields.number(key) if fields.has(key) else None


def _exponent(fields: Fields) -> float:
    """A p-norm's exponent; above 20 it is the hard maximum, and powers of microseconds underflow."""
    return fields.number("exponent", at_most=20)


def _gemms(fields: Fields) -> dict[str, Gemm]:
    """By dtype of the weights."""
    kernels = {dtype: _gemm(fields.section(dtype), dtype) for dtype in GEMM_DTYPES if fields.has(dtype)}
    fields.end()
    return kernels


def _gemm(fields: Fields, dtype: str) -> Gemm:
    roofline = Roofline(
        flops_per_s=fields.number("flops_per_s"),
        bytes_per_s=fields.number("bytes_per_s"),
        exponent=_exponent(fields),
        overhead_s=fields.number("overhead_s", at_least=0),
    )
    apart = fields.has("quantise_bytes_per_s")
    width = WEIGHT_DTYPE_BYTES[dtype]
    kernel = Gemm(
        roofline,
        weight_bytes=width,
        activation_bytes=(1.0 if apart else 4.0) if width == 1 else 2.0,
        quantise_bytes_per_s=fields.number("quantise_bytes_per_s") if apart else None,
        cached_below_bytes=fields.number("cached_below_bytes") if fields.has("cached_below_bytes") else 0.0,
        residual=read_residuals(fields, "m", "n", "k"),
    )
    fields.end()
    return kernel


def _prefill(fields: Fields) -> PrefillAttention:
    kernel = PrefillAttention(
        flops_per_s=fields.number("flops_per_s"),
        head_token_s=fields.number("head_token_s", at_least=0),
        exponent=_exponent(fields),
        overhead_s=fields.number("overhead_s", at_least=0),
        causal_weight=fields.number("causal_weight") if fields.has("causal_weight") else 0.5,
        residual=read_residuals(fields, "head_tokens", "span_tokens", "heads_per_kv_head"),
        kv_residual=read_residuals(fields, "new_tokens", "kv_heads", key="kv_residual"),
    )
    fields.end()
    return kernel


def _decode(fields: Fields) -> DecodeAttention:
    kernel = DecodeAttention(
        bytes_per_s=fields.number("bytes_per_s"),
        head_sequence_s=fields.number("head_sequence_s", at_least=0),
        exponent=_exponent(fields),
        overhead_s=fields.number("overhead_s", at_least=0),
        regroup_s=fields.number("regroup_s", at_least=0) if fields.has("regroup_s") else 0.0,
        cached_below_bytes=_if_there(fields, "cached_below_bytes"),
        cached_bytes_per_s=_if_there(fields, "cached_bytes_per_s"),
        residual=read_residuals(fields, "head_sequences", "context_tokens", "heads_per_kv_head"),
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
            residual=read_residuals(section, "bytes"),
        )
        section.end()
    return kernels


def _elementwise(fields: Fields) -> Elementwise:
    kernel = Elementwise(fields.number("bytes_per_s"), fields.number("overhead_s", at_least=0))
    fields.end()
    return kernel


_SECTIONS: Mapping[str, Callable[[Fields], Any]] = {
    "gemm": _gemms,
    "attention_prefill": _prefill,
    "attention_prefill_fp8": _prefill,
    "attention_prefill_fp8_compute": _prefill,
    "attention_decode": _decode,
    "attention_decode_fp8": _decode,
    "all_reduce": _all_reduce,
    "all_reduce_eager": _all_reduce,
    "elementwise": _elementwise,
}
# Where a needed section is missing, which is a fault by then: so that the other faults are found too.
_STAND_INS: Mapping[str, Any] = {
    "gemm": {},
    "attention_prefill": PrefillAttention(1.0, 1.0, 1.0, 1.0),
    "attention_decode": DecodeAttention(1.0, 1.0, 1.0, 1.0),
    "elementwise": Elementwise(1.0, 1.0),
}
