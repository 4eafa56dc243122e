"""From a point to the calls that are timed for it."""

from __future__ import annotations

from dataclasses import replace

from sim.calibration.measure.attention import attention
from sim.calibration.measure.bench import Bench, Call, Prepared
from sim.calibration.measure.linear import gemm
from sim.calibration.measure.points import Point, layer_shapes
from sim.calibration.measure.simple import copy, elementwise


def prepare(bench: Bench, point: Point, attention_backend: str) -> list[Prepared]:
    """The parts of *point* that are timed alone and added up: one, but for a `summed` point.

    Raises `OutOfMemory` and `CannotRun`, and what torch raises.
    """
    if point.op.endswith("_mixed"):
        parts = _parts(bench, point, attention_backend)
        return parts if point.variant == "summed" else [_in_a_row(parts)]
    if point.op.startswith("attention"):
        return [attention(bench, point, attention_backend)]
    return [{"gemm": gemm, "elementwise": elementwise, "copy": copy}[point.op](bench, point)]


def _parts(bench: Bench, point: Point, backend: str) -> list[Prepared]:
    mixed = [attention(bench, part, backend) for part in _attention_points(point)]
    if point.op == "attention_mixed":
        return mixed
    tokens, hidden, inner = point.m or 0, point.k or 0, point.n or 0
    qkv, output, gate_up, down = (
        gemm(bench, Point("gemm", point.dtype, m=tokens, n=n, k=k)) for n, k in layer_shapes(point)
    )
    norm = elementwise(bench, Point("elementwise", point.dtype, m=tokens, n=hidden, variant="rms_norm"))
    activation = elementwise(bench, Point("elementwise", point.dtype, m=tokens, n=inner, variant="silu_mul"))
    return [norm, qkv, *mixed, output, norm, gate_up, activation, down]


def _attention_points(point: Point) -> list[Point]:
    """A mixed batch's attention: in one go, or the chunk's and the decodes' each alone."""
    whole = replace(point, op="attention_mixed")
    if point.variant == "fused":
        return [whole]
    return [replace(whole, op="attention_prefill", batch=1), replace(whole, op="attention_decode", q_len=1)]


def _in_a_row(parts: list[Prepared]) -> Prepared:
    """Each part once, one after the other, as the one thing to time."""
    if len(parts) == 1:
        return parts[0]
    rounds = max(len(part.calls) for part in parts)

    def once(index: int) -> Call:
        calls = [part.calls[index % len(part.calls)] for part in parts]
        return lambda: [call() for call in calls]

    return Prepared([once(index) for index in range(rounds)])
