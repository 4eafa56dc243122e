"""What is no matrix product: norms and activations, copies, and launches of kernels that do nothing."""

from __future__ import annotations

from typing import Any

from sim.calibration.measure.bench import Bench, Call, Prepared
from sim.calibration.measure.points import Point


def elementwise(bench: Bench, point: Point) -> Prepared:
    """The norm before a layer, or the gated activation SiLU(a) x b, of `m` tokens of `n` values."""
    m, n = point.m or 0, point.n or 0
    copies = bench.copies(float(point.bytes or 6 * m * n))
    make = _rms_norm if point.variant == "rms_norm" else _silu_mul
    return Prepared(make(bench, point, m, n, copies))


def _rms_norm(bench: Bench, point: Point, m: int, n: int, copies: int) -> list[Call]:
    norm = bench.torch.nn.functional.rms_norm
    weight = bench.randn(n, dtype=point.dtype)
    inputs = [bench.randn(m, n, dtype=point.dtype) for _ in range(copies)]
    function = bench.fused("rms_norm", lambda x, w: norm(x, (x.shape[-1],), w, 1e-6), inputs[0], weight)
    return [lambda x=x: function(x, weight) for x in inputs]  # type: ignore[misc]


def _silu_mul(bench: Bench, point: Point, m: int, n: int, copies: int) -> list[Call]:
    silu = bench.torch.nn.functional.silu
    inputs = [bench.randn(m, 2 * n, dtype=point.dtype) for _ in range(copies)]
    function = bench.fused("silu_mul", lambda x: silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], inputs[0])
    return [lambda x=x: function(x) for x in inputs]  # type: ignore[misc]


def copy(bench: Bench, point: Point) -> Prepared:
    """A copy within the device's memory; half of `bytes` are read, half written."""
    torch, size = bench.torch, (point.bytes or 0) // 2
    copies = bench.copies(float(2 * size))

    def buffer() -> Any:
        return torch.randint(0, 256, (size,), dtype=torch.uint8, device=bench.device)

    pairs = [(buffer(), buffer()) for _ in range(copies)]
    return Prepared([lambda to=to, of=of: to.copy_(of) for to, of in pairs])  # type: ignore[misc]


def empty_kernels(bench: Bench, count: int) -> Call:
    """*count* launches in a row of a kernel with next to nothing to do."""
    one = bench.torch.ones(1, device=bench.device)

    def launch() -> None:
        for _ in range(count):
            one.add_(1)

    return launch
