"""Attention by PyTorch's own kernels, which know no pages: each sequence's cache lies in one piece."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from sim.calibration.measure.bench import Bench, Call
from sim.calibration.measure.points import Point, lengths
from sim.model import WEIGHT_DTYPE_BYTES


def sdpa_calls(bench: Bench, point: Point) -> list[Call]:
    """Calls of *point*, one for each copy of its caches; a mixed batch takes a kernel for each kind.

    Query heads that share a KV head are given to decode as that many queries: it reads the cache once then.
    """
    kv_heads, head_dim = point.kv_heads or 0, point.head_dim or 0
    new, total = lengths(point)
    cache_bytes = 2 * sum(total) * kv_heads * head_dim * WEIGHT_DTYPE_BYTES[point.kv_dtype or point.dtype]
    copies = bench.copies(cache_bytes, fixed_bytes=4.0 * sum(new) * (point.heads or 0) * head_dim)
    sequences = list(zip(new, total, strict=True))
    return [_together([_kernel(bench, point, part) for part in _parts(sequences)]) for _ in range(copies)]


def _parts(sequences: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Prompts of one length together, all decodes together."""
    return [list(part) for _, part in groupby(sequences, key=lambda one: one if one[0] > 1 else 1)]


def _together(calls: list[Call]) -> Call:
    return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]


def _kernel(bench: Bench, point: Point, sequences: list[tuple[int, int]]) -> Call:
    new, totals = sequences[0][0], [total for _, total in sequences]
    if new > 1:
        return _prefill(bench, point, len(sequences), new, totals[0])
    if len(set(totals)) == 1:
        return _decode(bench, point, len(sequences), totals[0])
    return _ragged_decode(bench, point, totals)


def _prefill(bench: Bench, point: Point, batch: int, new: int, total: int) -> Call:
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    heads, kv_heads, head_dim = point.heads or 0, point.kv_heads or 0, point.head_dim or 0
    queries = bench.randn(batch, heads, new, head_dim, dtype=point.dtype)
    keys, values = (bench.randn(batch, kv_heads, total, head_dim, dtype=point.dtype) for _ in range(2))
    if new == total:
        return lambda: attend(queries, keys, values, is_causal=True, enable_gqa=True)
    mask = _lower_right(bench, new, total)
    return lambda: attend(queries, keys, values, attn_mask=mask, enable_gqa=True)


def _lower_right(bench: Bench, new: int, total: int) -> Any:
    """Each new token sees the cached ones, those before it, and itself."""
    if bench.device.type == "cpu":
        return bench.torch.ones(new, total, dtype=bench.torch.bool).tril(total - new)
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(new, total)  # a mark that a fused kernel understands, and no matrix


def _decode(bench: Bench, point: Point, batch: int, total: int) -> Call:
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    kv_heads, head_dim = point.kv_heads or 0, point.head_dim or 0
    queries = bench.randn(batch, kv_heads, (point.heads or 0) // kv_heads, head_dim, dtype=point.dtype)
    keys, values = (bench.randn(batch, kv_heads, total, head_dim, dtype=point.dtype) for _ in range(2))
    return lambda: attend(queries, keys, values)


def _ragged_decode(bench: Bench, point: Point, totals: list[int]) -> Call:
    if bench.device.type == "cpu":  # no kernel of its own there, and a loop costs nothing that a launch would
        return _together([_decode(bench, point, 1, total) for total in totals])
    return jagged_decode(bench, point, totals)


def jagged_decode(bench: Bench, point: Point, totals: list[int]) -> Call:
    """Decode over caches of *totals* tokens, without padding: torch's nested tensors do it in one kernel."""
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    group = (point.heads or 0) // (point.kv_heads or 1)
    queries = _jagged(bench, point, [group] * len(totals))
    keys, values = _jagged(bench, point, totals), _jagged(bench, point, totals)
    return lambda: attend(queries, keys, values)


def _jagged(bench: Bench, point: Point, tokens: list[int]) -> Any:
    """Random numbers [sequences, kv_heads, tokens of each, head_dim], without padding."""
    torch = bench.torch
    values = bench.randn(sum(tokens), point.kv_heads or 0, point.head_dim or 0, dtype=point.dtype)
    offsets = torch.tensor([0, *tokens], device=bench.device).cumsum(0)
    sizes = {"min_seqlen": min(tokens), "max_seqlen": max(tokens)}
    return torch.nested.nested_tensor_from_jagged(values, offsets, **sizes).transpose(1, 2)
