"""Points: what is to be measured, as a row of the kernel table without its time."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache

from sim.calibration.table import COLUMNS
from sim.model import WEIGHT_DTYPE_BYTES

_HALF_BYTES = 2  # activations are in 16 bits
_PREFIX = "kneesim"


@dataclass(frozen=True)
class Point:
    """One kernel, or one small sequence of kernels, at one size. Fields are columns of the kernel table.

    `variant` is what the columns cannot say and `source` therefore ends with: `ragged` (lengths differ,
    `kv_len` is their mean), `graph` and `eager` (how it is launched), `fused` and `summed` (a mixed batch in
    one go, or the sum of its parts alone), `rms_norm` and `silu_mul` (which elementwise operation), `burst`
    and `sustained` (after a rest, or after half a minute of the same).

    Ops beyond those of every kernel table: `copy` and `elementwise` (`bytes` read and written, `m` tokens of
    `n` values), `launch` (`m` empty kernels in a row), `attention_mixed` and `layer_mixed` (`batch` decodes
    of `kv_len` cached tokens and one chunk of `q_len` tokens after `kv_len` cached ones; a layer has hidden
    size `k` and intermediate size `n`, and `m` tokens in all).
    """

    op: str
    dtype: str
    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    q_len: int | None = None
    kv_len: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    kv_dtype: str | None = None
    bytes: int | None = None
    n_gpus: int = 1
    variant: str = ""

    @property
    def kind(self) -> tuple[str | None, ...]:
        """What points that differ in size alone have in common: op, types, variant."""
        return self.op, self.dtype, self.kv_dtype, self.variant

    def source(self, backend: str) -> str:
        """The table's `source`: `kneesim-BACKEND`, with `-VARIANT` where there is one."""
        return "-".join(part for part in (_PREFIX, backend, self.variant) if part)

    def cells(self) -> dict[str, str]:
        """The cells of this point's row that do not depend on where it is measured."""
        values = {name: getattr(self, name) for name in _FIELDS if name in COLUMNS}
        return {name: "" if value is None else str(value) for name, value in values.items()}

    def __str__(self) -> str:
        """How a person is told of it: `gemm bf16 m=1 n=4096 k=4096`."""
        sizes = [name for name in _FIELDS if name not in ("op", "dtype", "variant")]
        said = [f"{name}={getattr(self, name)}" for name in sizes if getattr(self, name) is not None]
        said = [text for text in said if text != "n_gpus=1"]
        return " ".join([self.op, self.dtype, *([self.variant] if self.variant else []), *said])


_FIELDS = tuple(field.name for field in fields(Point))


def small(point: Point) -> Point:
    """A point of *point*'s kind that any device is done with at once: to see whether it can, and how fast."""
    largest = {
        "m": 16, "n": 256, "k": 256, "batch": 4, "q_len": 16, "kv_len": 15,
        "heads": 4, "kv_heads": 2, "head_dim": 128, "bytes": 65536,
    }  # fmt: skip
    sizes = {name: size for name, size in largest.items() if getattr(point, name) is not None}
    if point.op == "attention_decode":
        sizes["q_len"] = 1
    return replace(point, **sizes)  # type: ignore[arg-type]


def backend_of(source: str) -> str:
    """BACKEND of `kneesim-BACKEND[-VARIANT]`, launched as it should be or, failing that, `_eager`."""
    return source.split("-")[1].removesuffix("_eager") if source.startswith(f"{_PREFIX}-") else source


@cache
def work(point: Point) -> tuple[float, float]:
    """(floating-point operations, bytes moved) of *point*; for an order and a guess, not for a fit."""
    if point.op == "gemm":
        return _linear(point.dtype, _int(point.m), _int(point.n), _int(point.k))
    if point.op == "layer_mixed":
        parts = [_linear(point.dtype, _int(point.m), n, k) for n, k in layer_shapes(point)]
        parts.append(_attention(point))
        return sum(flops for flops, _ in parts), sum(moved for _, moved in parts)
    if point.op.startswith("attention"):
        return _attention(point)
    return 0.0, float(point.bytes or 0)


def layer_shapes(point: Point) -> tuple[tuple[int, int], ...]:
    """(n, k) of a `layer_mixed` point's linear layers: qkv, output, gate and up, down."""
    hidden, inner, head_dim = _int(point.k), _int(point.n), _int(point.head_dim)
    heads, kv_heads = _int(point.heads), _int(point.kv_heads)
    qkv = (heads + 2 * kv_heads) * head_dim
    return (qkv, hidden), (hidden, heads * head_dim), (2 * inner, hidden), (hidden, inner)


def lengths(point: Point) -> tuple[list[int], list[int]]:
    """(new tokens, tokens in all) of each sequence of an attention point, prefill first.

    Ragged lengths follow an exponential law by its quantiles, shuffled by a fixed seed; their mean is
    `kv_len` exactly.
    """
    batch, cached = _int(point.batch), _int(point.kv_len)
    if point.op == "attention_prefill":
        new = _int(point.q_len)
        return [new] * batch, [cached + new] * batch
    decodes = _ragged(batch, cached) if point.variant == "ragged" else [cached] * batch
    total = [tokens + 1 for tokens in decodes]
    if point.op == "attention_decode":
        return [1] * batch, total
    new = _int(point.q_len)
    return [new] + [1] * batch, [cached + new, *total]


def _ragged(batch: int, mean: int) -> list[int]:
    import numpy as np

    shares = -np.log1p(-(np.arange(batch) + 0.5) / batch)
    whole = np.floor(shares / shares.sum() * mean * batch).astype(int)
    whole[: mean * batch - whole.sum()] += 1
    return [int(length) for length in np.random.default_rng(1).permutation(whole)]


def _linear(dtype: str, m: int, n: int, k: int) -> tuple[float, float]:
    return 2.0 * m * n * k, n * k * WEIGHT_DTYPE_BYTES[dtype] + m * (n + k) * _HALF_BYTES


def _attention(point: Point) -> tuple[float, float]:
    new, total = lengths(point)
    heads, kv_heads, head_dim = _int(point.heads), _int(point.kv_heads), _int(point.head_dim)
    pairs = sum(q * (kv - (q - 1) / 2) for q, kv in zip(new, total, strict=True))
    kv_bytes = sum(total) * 2 * kv_heads * head_dim * WEIGHT_DTYPE_BYTES[point.kv_dtype or point.dtype]
    return 4.0 * heads * head_dim * pairs, kv_bytes + 2 * sum(new) * heads * head_dim * _HALF_BYTES


def _int(value: int | None) -> int:
    assert value is not None
    return value
