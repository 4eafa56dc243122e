"""Linear layers Y[m, n] = X[m, k] W[n, k]^T in each dtype. In 8 bits X is quantised first, as in engines."""

from __future__ import annotations

from typing import Any

from sim.calibration.measure.bench import Bench, Call, Prepared
from sim.calibration.measure.points import Point
from sim.model import WEIGHT_DTYPE_BYTES

_FP8_MAX, _INT8_MAX = 448.0, 127.0
_INT8_ROWS = 17  # torch._int_mm takes no fewer on CUDA: smaller batches are padded
_INT4_GROUP = 128
_INT4_TILES = 8


def gemm(bench: Bench, point: Point) -> Prepared:
    """Calls of one linear layer, weights rotated. Output and activations stay, as they do in an engine."""
    m, n, k = point.m or 0, point.n or 0, point.k or 0
    weight_bytes = n * k * max(WEIGHT_DTYPE_BYTES[point.dtype], 0.5)
    copies = bench.copies(weight_bytes, fixed_bytes=2.0 * m * (k + n) + 2.0 * n * k)
    make = {"fp8": _fp8, "int8": _int8, "int4": _int4}.get(point.dtype, _half)
    return Prepared(make(bench, point, m, n, k, copies))


def _half(bench: Bench, point: Point, m: int, n: int, k: int, copies: int) -> list[Call]:
    linear = bench.torch.nn.functional.linear
    x = bench.randn(m, k, dtype=point.dtype)
    weights = [bench.randn(n, k, dtype=point.dtype) for _ in range(copies)]
    return [lambda w=w: linear(x, w) for w in weights]  # type: ignore[misc]


def _fp8(bench: Bench, point: Point, m: int, n: int, k: int, copies: int) -> list[Call]:
    """`torch._scaled_mm` with one scale a token and one an output channel; one a tensor where it must be."""
    torch = bench.torch
    x = bench.randn(m, k, dtype="bf16")
    weights = [bench.randn(n, k, dtype="fp8").t() for _ in range(copies)]
    rows = _scaled_by_rows(bench)
    scale = torch.rand((1, n) if rows else (), dtype=torch.float32, device=bench.device) + 0.5
    quantise = bench.fused(
        f"fp8 {rows}", lambda values: _quantised(torch, values, rows, _FP8_MAX, torch.float8_e4m3fn), x
    )

    def layer(weight: Any) -> object:
        values, scales = quantise(x)
        return torch._scaled_mm(values, weight, scale_a=scales, scale_b=scale, out_dtype=torch.bfloat16)

    return [lambda w=w: layer(w) for w in weights]  # type: ignore[misc]


def _scaled_by_rows(bench: Bench) -> bool:
    torch = bench.torch
    x = bench.randn(16, 32, dtype="fp8")
    scales = torch.ones(16, 1, dtype=torch.float32, device=bench.device)
    try:
        torch._scaled_mm(x, x.t(), scale_a=scales, scale_b=scales.t(), out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def _int8(bench: Bench, point: Point, m: int, n: int, k: int, copies: int) -> list[Call]:
    torch = bench.torch
    x = bench.randn(max(m, _INT8_ROWS) if bench.device.type == "cuda" else m, k, dtype="bf16")
    weights = [bench.randn(n, k, dtype="int8").t() for _ in range(copies)]
    scale = torch.rand((1, n), dtype=torch.float32, device=bench.device)
    quantise = bench.fused("int8", lambda values: _quantised(torch, values, True, _INT8_MAX, torch.int8), x)
    values, scales = quantise(x)
    rescale = bench.fused(
        "int32", lambda sums, rows, columns: (sums * (rows * columns)).to(torch.bfloat16),
        torch._int_mm(values, weights[0]), scales, scale,
    )  # fmt: skip

    def layer(weight: Any) -> object:
        values, scales = quantise(x)
        return rescale(torch._int_mm(values, weight), scales, scale)

    return [lambda w=w: layer(w) for w in weights]  # type: ignore[misc]


def _quantised(torch: Any, values: Any, rows: bool, most: float, dtype: Any) -> tuple[Any, Any]:
    """*values* over one scale a row (or one in all), in *dtype*, and the scales [rows, 1] (or none)."""
    largest = values.abs().amax(dim=-1, keepdim=True) if rows else values.abs().amax()
    scales = largest.float().clamp(min=1e-12) / most
    scaled = (values / scales).clamp(-most, most)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scales


def _int4(bench: Bench, point: Point, m: int, n: int, k: int, copies: int) -> list[Call]:
    """Weights in 4 bits, a scale and a zero point for 128 inputs, activations in 16: torch's own kernel."""
    torch = bench.torch
    cuda = bench.device.type == "cuda"
    multiply = torch._weight_int4pack_mm if cuda else torch._weight_int4pack_mm_for_cpu
    x = bench.randn(m, k, dtype="bf16")
    scales = bench.randn(k // _INT4_GROUP, n, 2, dtype="bf16")
    weights = [_packed(bench, n, k) for _ in range(copies)]
    return [lambda w=w: multiply(x, w, _INT4_GROUP, scales) for w in weights]  # type: ignore[misc]


def _packed(bench: Bench, n: int, k: int) -> Any:
    torch = bench.torch
    if bench.device.type == "cuda":
        pairs = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=bench.device)
        return torch._convert_weight_to_int4pack(pairs, _INT4_TILES)
    values = torch.randint(0, 16, (n, k), dtype=torch.int32)
    return torch._convert_weight_to_int4pack_for_cpu(values, 1)
