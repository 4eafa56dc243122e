"""Attention over a KV cache in pages, by FlashInfer or vLLM; without pages, by PyTorch's SDPA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sim.calibration.measure.bench import Bench, Call, Prepared, refuse
from sim.calibration.measure.device import CannotRun
from sim.calibration.measure.points import Point, lengths
from sim.calibration.measure.sdpa import sdpa_calls
from sim.model import WEIGHT_DTYPE_BYTES

PAGE_TOKENS = 16
_WORKSPACE_BYTES = 256 * 2**20
_TENSOR_CORE_GROUP = 4  # query heads a KV head from which FlashInfer's decode is faster on tensor cores


@dataclass(frozen=True)
class Batch:
    """Sequences and their cache.

    `new` and `total` tokens and `pages` of each, queries [sum(new), heads, head_dim], copies of keys and
    values [pages, 16, kv_heads, head_dim], `tables` of page numbers [sequences, pages of the longest].
    """

    new: Sequence[int]
    total: Sequence[int]
    queries: Any
    caches: Sequence[tuple[Any, Any]]
    tables: Any
    pages: Sequence[int]


Backend = Callable[[Bench, Batch], list[Call]]


def attention(bench: Bench, point: Point, backend: str) -> Prepared:
    """Calls of *point*'s attention by *backend*, one for each copy of the cache."""
    if backend == "torch_sdpa":
        if point.kv_dtype not in ("bf16", "fp16"):
            raise CannotRun("PyTorch's SDPA reads no KV cache in 8 bits; install flashinfer")
        return Prepared(sdpa_calls(bench, point))
    return Prepared(PAGED[backend](bench, batch_of(bench, point)))


def batch_of(bench: Bench, point: Point) -> Batch:
    """Random queries and caches of *point*, with pages in no order, as a server's are after a while."""
    torch = bench.torch
    new, total = lengths(point)
    pages = [-(-tokens // PAGE_TOKENS) for tokens in total]
    heads, kv_heads, head_dim = point.heads or 0, point.kv_heads or 0, point.head_dim or 0
    dtype = point.kv_dtype or point.dtype
    shape = (sum(pages), PAGE_TOKENS, kv_heads, head_dim)
    cache_bytes = 2 * WEIGHT_DTYPE_BYTES[dtype] * sum(pages) * PAGE_TOKENS * kv_heads * head_dim
    query_bytes = 4.0 * sum(new) * heads * head_dim
    copies = bench.copies(cache_bytes, fixed_bytes=query_bytes + _WORKSPACE_BYTES)
    order = torch.randperm(sum(pages), device=bench.device).to(torch.int32)
    tables = torch.zeros(len(pages), max(pages), dtype=torch.int32, device=bench.device)
    first = 0
    for row, count in enumerate(pages):
        tables[row, :count] = order[first : first + count]
        first += count
    caches = [(bench.randn(*shape, dtype=dtype), bench.randn(*shape, dtype=dtype)) for _ in range(copies)]
    return Batch(new, total, bench.randn(sum(new), heads, head_dim, dtype=point.dtype), caches, tables, pages)


def flashinfer_calls(bench: Bench, batch: Batch) -> list[Call]:
    """One planned wrapper of FlashInfer, run on each cache."""
    import flashinfer

    torch = bench.torch
    heads, head_dim = batch.queries.shape[1:]
    keys = batch.caches[0][0]
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=bench.device)
    used = torch.cat([batch.tables[row, :count] for row, count in enumerate(batch.pages)])
    last = [
        tokens - (count - 1) * PAGE_TOKENS for tokens, count in zip(batch.total, batch.pages, strict=True)
    ]
    pages = (_sums(bench, batch.pages), used, torch.tensor(last, dtype=torch.int32, device=bench.device))
    sizes = (heads, keys.shape[2], head_dim, PAGE_TOKENS)
    types = {"q_data_type": batch.queries.dtype, "kv_data_type": keys.dtype}
    if max(batch.new) == 1:
        grouped = heads // keys.shape[2] >= _TENSOR_CORE_GROUP
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=grouped)
        wrapper.plan(*pages, *sizes, **types)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(_sums(bench, batch.new), *pages, *sizes, causal=True, **types)
    return [lambda cache=cache: wrapper.run(batch.queries, cache) for cache in batch.caches]  # type: ignore[misc]


def vllm_calls(bench: Bench, batch: Batch) -> list[Call]:
    """vLLM's build of FlashAttention over block tables, the newest version that the card has."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported

    torch = bench.torch
    if batch.caches[0][0].dtype != batch.queries.dtype:
        raise CannotRun("vLLM's FlashAttention reads no cache of another type than the queries")
    sizes = {
        "max_seqlen_q": max(batch.new),
        "cu_seqlens_q": _sums(bench, batch.new),
        "max_seqlen_k": max(batch.total),
        "seqused_k": torch.tensor(batch.total, dtype=torch.int32, device=bench.device),
        "block_table": batch.tables,
        "causal": True,
        "fa_version": 3 if is_fa_version_supported(3) else 2,
    }

    def attend(keys: Any, values: Any) -> object:
        return flash_attn_varlen_func(q=batch.queries, k=keys, v=values, **sizes)

    return [lambda cache=cache: attend(*cache) for cache in batch.caches]  # type: ignore[misc]


PAGED: dict[str, Backend] = {"flashinfer": flashinfer_calls, "vllm_flash_attn": vllm_calls}


def attention_backend(bench: Bench) -> tuple[str, dict[str, str]]:
    """The kernels that attention is measured with, and for each better one the reason why it is not.

    A library's kernel is taken if its answer on a small mixed batch and on a small decode batch is that of
    attention written out in 32 bits.
    """
    reasons: dict[str, str] = {}
    if bench.device.type != "cuda":
        return "torch_sdpa", dict.fromkeys(PAGED, "runs on CUDA only")
    for name, backend in PAGED.items():
        try:
            check_answers(bench, backend)
        except ImportError as error:
            reasons[name] = f"not installed ({error})"
        except Exception as error:  # whatever a library of another version throws: SDPA is always there
            reasons[name] = str(refuse(error))
        else:
            return name, reasons
    return "torch_sdpa", reasons


def check_answers(bench: Bench, backend: Backend) -> None:
    """Raise `CannotRun` unless *backend* computes attention: causal, grouped heads, pages in any order."""
    sizes = {"heads": 8, "kv_heads": 2, "head_dim": 128, "kv_dtype": "bf16"}
    for point in (
        Point("attention_mixed", "bf16", batch=3, q_len=5, kv_len=37, **sizes),  # type: ignore[arg-type]
        Point("attention_decode", "bf16", batch=3, q_len=1, kv_len=37, **sizes),  # type: ignore[arg-type]
    ):
        batch = batch_of(bench, point)
        answer = backend(bench, batch)[0]()
        error = (answer.float() - written_out(bench, batch)).abs().max().item()  # type: ignore[attr-defined]
        if not error < 0.03:
            raise CannotRun(f"its attention is {error:.2g} off attention written out")


def written_out(bench: Bench, batch: Batch) -> Any:
    """Softmax(Q K^T / sqrt(head_dim)) V of each sequence in 32 bits: [sum(new), heads, head_dim]."""
    torch = bench.torch
    group = batch.queries.shape[1] // batch.caches[0][0].shape[2]
    answers, first = [], 0
    for row, (new, total) in enumerate(zip(batch.new, batch.total, strict=True)):
        table = batch.tables[row, : batch.pages[row]].long()
        keys, values = (
            part[table].flatten(0, 1)[:total].float().repeat_interleave(group, dim=1)
            for part in batch.caches[0]
        )
        queries = batch.queries[first : first + new].float()
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / queries.shape[-1] ** 0.5
        seen = torch.arange(total, device=bench.device)[None] <= torch.arange(
            total - new, total, device=bench.device
        ).unsqueeze(1)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        answers.append(torch.einsum("hqk,khd->qhd", weights, values))
        first += new
    return torch.cat(answers)


def _sums(bench: Bench, counts: Sequence[int]) -> Any:
    torch = bench.torch
    counted = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0)
    return counted.to(dtype=torch.int32, device=bench.device)
