"""A GPU as it was measured: peaks, memory, link, price, fitted kernels, and where every number comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sim.faults import InputFault, did_you_mean
from sim.hardware.efficiency import efficient
from sim.hardware.parts import (
    Kernels,
    Link,
    Price,
    Provenance,
    read_efficiency,
    read_kernels,
    read_link,
    read_peaks,
    read_price,
    read_provenances,
    read_source,
)
from sim.hardware.roofline import AllReduce, DecodeAttention, Gemm, PrefillAttention
from sim.model import KV_DTYPE_BYTES, WEIGHT_DTYPE_BYTES
from sim.model.fields import Fields

_TWINS = {"bf16": "fp16", "fp16": "bf16"}  # the same tensor-core rate on every card here


@dataclass(frozen=True)
class HardwareProfile:
    """One GPU of a kind. `memory_bytes` is what the driver reports, not the marketing figure.

    `kernels` run at the card's `efficiency`; they are those of the backend `kernel_source`. `kernel_sources`
    has sections of other backends, by name; `sources.as_measured_with` puts one's in place.
    """

    name: str
    aliases: tuple[str, ...]
    memory_bytes: float
    peak_flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    l2_bytes: float
    link: Link
    power_w: float
    price: Price
    efficiency: Mapping[str, float]
    kernels: Kernels
    kernel_sources: Mapping[str, Mapping[str, Any]]
    kernel_source: str
    provenances: Mapping[str, Provenance]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> HardwareProfile:
        """Read a profile's mapping (base units). Raises InputFault with every fault found.

        Each number must be covered by a provenance entry: its own dotted key or a prefix of it.
        """
        place = f"hardware profile {mapping.get('name', '(no name)')}"
        own = {key: value for key, value in mapping.items() if key != "scaled"}
        fields = Fields({**own, **efficient(mapping)}, place)
        profile = cls(
            name=fields.text("name"),
            aliases=fields.names("aliases"),
            memory_bytes=fields.number("memory_bytes"),
            peak_flops_per_s=read_peaks(fields.section("peak_flops_per_s")),
            memory_bandwidth_bytes_per_s=fields.number("memory_bandwidth_bytes_per_s"),
            l2_bytes=fields.number("l2_bytes"),
            link=read_link(fields.section("link")),
            power_w=fields.number("power_w"),
            price=read_price(fields.section("price")),
            efficiency=read_efficiency(fields),
            kernels=read_kernels(fields.section("kernels")),
            kernel_sources=_sources(fields),
            kernel_source=fields.text("kernel_source") if fields.has("kernel_source") else "vllm",
            provenances=read_provenances(fields.section("provenance")),
        )
        for key in _numbers(mapping):
            if _longest_prefix(key, profile.provenances) is None:
                fields.fault("provenance", f"does not say where {key} comes from")
        fields.close()
        return profile

    def peak_flops(self, dtype: str) -> float:
        """Dense peak of *dtype* in flops/s; the 16-bit one for dtypes this GPU computes in 16 bits."""
        native = dtype if dtype in self.kernels.gemm else "bf16"
        for name in (native, _TWINS.get(native, "bf16")):
            if name in self.peak_flops_per_s:
                return self.peak_flops_per_s[name]
        raise InputFault(f"hardware profile {self.name}: peak_flops_per_s.{native} is missing")

    def gemm(self, dtype: str) -> Gemm:
        """The linear layers whose weights are in *dtype* (bf16, fp16, fp8, int8 or int4).

        bf16 and fp16 stand in for each other. A quantised dtype without kernels here is weight-only: it moves
        its own bytes and computes at the 16-bit rate (an estimate: dequantisation is taken to be free).
        Raises InputFault for an unknown dtype and for a profile without a 16-bit kernel.
        """
        if dtype not in WEIGHT_DTYPE_BYTES:
            nearest = did_you_mean(dtype, WEIGHT_DTYPE_BYTES)
            raise InputFault(f"engine.weight_dtype {dtype} is unknown{nearest}")
        width = WEIGHT_DTYPE_BYTES[dtype]
        for name in (dtype, _TWINS.get(dtype, "bf16"), "fp16"):
            if name in self.kernels.gemm:
                return replace(self.kernels.gemm[name], weight_bytes=width)
        known = ", ".join(self.kernels.gemm)
        raise InputFault(f"hardware profile {self.name}: kernels.gemm knows no {dtype}; it knows {known}")

    def is_weight_only(self, dtype: str) -> bool:
        """Whether weights in *dtype* are only stored so here, and the time rests on `gemm`'s estimate."""
        return WEIGHT_DTYPE_BYTES.get(dtype, 2) < 2 and dtype not in self.kernels.gemm

    def decode_attention(self, kv_dtype: str) -> DecodeAttention:
        """Decode attention over a KV cache in *kv_dtype*; without own 8-bit kernels the 16-bit ones."""
        eight_bit = self.kernels.attention_decode_fp8 if KV_DTYPE_BYTES[kv_dtype] == 1 else None
        return eight_bit or self.kernels.attention_decode

    def prefill_attention(self, kv_dtype: str, compute_dtype: str = "bf16") -> PrefillAttention:
        """Prefill attention over a KV cache in *kv_dtype*, computed in *compute_dtype*.

        Without own kernels for 8-bit products these are 16-bit ones, and without 8-bit caches 16-bit ones.
        """
        if KV_DTYPE_BYTES[kv_dtype] > 1:
            return self.kernels.attention_prefill
        computed = self.kernels.attention_prefill_fp8_compute if compute_dtype == "fp8" else None
        return computed or self.kernels.attention_prefill_fp8 or self.kernels.attention_prefill

    def all_reduce(self, n_gpus: int, *, eager: bool = False) -> AllReduce:
        """The all-reduce over *n_gpus* (two and more), in a CUDA graph or launched by itself (*eager*).

        Without a measured eager one it is that of the graph. Raises InputFault listing the numbers known.
        """
        if eager and n_gpus in self.kernels.all_reduce_eager:
            return self.kernels.all_reduce_eager[n_gpus]
        if n_gpus in self.kernels.all_reduce:
            return self.kernels.all_reduce[n_gpus]
        known = ", ".join(str(n) for n in sorted(self.kernels.all_reduce)) or "none"
        raise InputFault(
            f"hardware profile {self.name}: kernels.all_reduce knows no group of {n_gpus} GPUs; "
            f"it knows {known}"
        )

    def provenance(self, key: str) -> Provenance:
        """Where the number under the dotted *key* comes from: its longest prefix that has an entry."""
        prefix = _longest_prefix(key, self.provenances)
        if prefix is None:
            known = ", ".join(self.provenances)
            raise InputFault(f"hardware profile {self.name}: no provenance covers {key}; entries: {known}")
        return self.provenances[prefix]

    def estimated_keys(self) -> tuple[str, ...]:
        """The provenance entries that are estimates, in the order of the profile."""
        return tuple(key for key, origin in self.provenances.items() if origin.kind == "estimated")


def _sources(fields: Fields) -> dict[str, dict[str, Any]]:
    """The sections of each further backend."""
    if not fields.has("kernel_sources"):
        return {}
    sections = fields.section("kernel_sources")
    return {name: read_source(sections.section(name)) for name in sections.names_of_keys()}


def _longest_prefix(key: str, provenances: Mapping[str, Provenance]) -> str | None:
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in provenances:
            return prefix
    return None


def _numbers(mapping: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The dotted key of every number of a profile, its provenance aside."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            if path or key != "provenance":
                yield from _numbers(value, f"{path}{key}.")
        elif isinstance(value, int | float):
            yield f"{path}{key}"
