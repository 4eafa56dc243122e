"""Which points there are: the shapes of models, and a grid even in the logarithms around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from sim.calibration.measure.points import Point
from sim.faults import InputFault
from sim.model import ModelSpec

DEFAULT_MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "qwen2.5-32b", "qwen3-8b")
LINEAR_DTYPES = ("bf16", "fp8", "fp16", "int8", "int4")

_SPLITS = (1, 2, 4, 8)  # GPUs that share a layer
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384)
_STEPS = (
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    257,
    511,
    512,
    513,
)  # where tiles, then waves of them, run over
_SIDES = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_SAMPLED = tuple(m for m in _TOKENS if m <= 512)  # tokens that the LM head sees
_CHUNKS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CACHED = (0, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_PROMPTS = (1, 2, 4, 8)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_CONTEXTS = (127, 255, 511, 1023, 2047, 4095, 8191, 16383, 32767, 65535)
_MOST_TOKENS = 2**21  # of KV cache that a batch may hold
_MOST_NEW_TOKENS = 2**15
_KIB = 2**10

Classes = Mapping[str, tuple[float, list[Point]]]
"""By name: a share of the attention, and the points."""


def all_classes(models: Sequence[ModelSpec], n_gpus: int) -> Classes:
    """The points of each class, and how often a class has its turn against the others.

    The shares follow what a step's time is made of: linear layers, then attention, then the rest.
    """
    classes: dict[str, tuple[float, list[Point]]] = {
        "launch": (0.3, list(_launches())),
        "copy": (0.3, [_copy(kib * _KIB) for kib in _powers(64, 2**20)]),
        "elementwise": (0.7, list(_elementwise(models))),
    }
    for dtype, share in zip(LINEAR_DTYPES, (1.0, 0.6, 0.15, 0.3, 0.3), strict=True):
        shapes = model_shapes(models, lm_head=dtype in ("bf16", "fp16"))
        classes[f"gemm {dtype}: models"] = (4 * share, list(_gemms(dtype, shapes, _TOKENS)))
        grid = ((n, k) for n, k in product(_SIDES, _SIDES) if n * k <= 2**28)
        classes[f"gemm {dtype}: grid"] = (2 * share, list(_gemms(dtype, grid, _TOKENS)))
    classes["gemm bf16: steps"] = (1, list(_gemms("bf16", _layer_shapes(models[:2], (1,)), _STEPS)))
    heads = head_shapes(models)
    classes["attention_prefill"] = (3, list(_prefills(heads, "bf16")))
    classes["attention_prefill: fp8 cache"] = (0.5, list(_prefills(heads, "fp8")))
    classes["attention_decode"] = (3, list(_decodes(heads, "bf16")))
    classes["attention_decode: ragged"] = (1, list(_decodes(heads, "bf16", "ragged")))
    classes["attention_decode: fp8 cache"] = (1, list(_decodes(heads, "fp8")))
    classes["mixed"] = (0.7, list(_mixed(models)))
    classes["all_reduce"] = (2, list(_all_reduces(n_gpus)))
    return {name: entry for name, entry in classes.items() if entry[1]}


def model_shapes(models: Sequence[ModelSpec], lm_head: bool = True) -> list[tuple[int, int]]:
    """(n, k) per GPU of the linear layers of *models*, alone and shared out; with *lm_head*, that too."""
    shapes = _layer_shapes(models, _SPLITS)
    heads = [model.lm_head_gemm(gpus) for model in models for gpus in _SPLITS if lm_head]
    return list(dict.fromkeys([*shapes, *heads]))


def head_shapes(models: Iterable[ModelSpec]) -> list[tuple[int, int, int]]:
    """(heads, KV heads, head dim) per GPU of *models*, alone and shared out."""
    found = [
        (model.heads_per_gpu(gpus), model.kv_heads_per_gpu(gpus), model.head_dim)
        for model in models
        for gpus in _splits(model)
    ]
    return list(dict.fromkeys(found))


def _splits(model: ModelSpec) -> list[int]:
    return [gpus for gpus in _SPLITS if _can_be_shared(model, gpus)]


def _can_be_shared(model: ModelSpec, gpus: int) -> bool:
    try:
        model.layer_gemms(gpus)
    except InputFault:
        return False
    return True


def _layer_shapes(models: Iterable[ModelSpec], splits: Sequence[int]) -> list[tuple[int, int]]:
    found = [
        shape
        for model in models
        for gpus in _splits(model)
        if gpus in splits
        for shape in model.layer_gemms(gpus)
    ]
    return list(dict.fromkeys(found))


def _gemms(dtype: str, shapes: Iterable[tuple[int, int]], tokens: Sequence[int]) -> Iterator[Point]:
    for n, k in shapes:
        for m in tokens:
            if n < 65536 or m in _SAMPLED:
                yield Point("gemm", dtype, m=m, n=n, k=k)


def _prefills(heads: Iterable[tuple[int, int, int]], kv_dtype: str) -> Iterator[Point]:
    for (q, kv, dim), chunk, cached, batch in product(heads, _CHUNKS, _CACHED, _PROMPTS):
        few = batch * chunk <= _MOST_NEW_TOKENS and batch * (chunk + cached) <= _MOST_TOKENS
        if few and (batch == 1 or cached == 0):
            yield Point(
                "attention_prefill", "bf16", batch=batch, q_len=chunk, kv_len=cached,
                heads=q, kv_heads=kv, head_dim=dim, kv_dtype=kv_dtype,
            )  # fmt: skip


def _decodes(heads: Iterable[tuple[int, int, int]], kv_dtype: str, variant: str = "") -> Iterator[Point]:
    for (q, kv, dim), batch, cached in product(heads, _BATCHES, _CONTEXTS):
        if batch * cached <= _MOST_TOKENS and (batch >= 4 or not variant):
            yield Point(
                "attention_decode", "bf16", batch=batch, q_len=1, kv_len=cached,
                heads=q, kv_heads=kv, head_dim=dim, kv_dtype=kv_dtype, variant=variant,
            )  # fmt: skip


def _mixed(models: Sequence[ModelSpec]) -> Iterator[Point]:
    """Both of a pair come one after the other: fused against summed is one piece of information."""
    for model in models[:2]:
        gpus = _splits(model)[-1] if model.layers > 48 else 1
        sizes = {
            "heads": model.heads_per_gpu(gpus),
            "kv_heads": model.kv_heads_per_gpu(gpus),
            "head_dim": model.head_dim,
        }
        for chunk, batch, cached in product((128, 512, 2048), (8, 32, 128), (1023, 8191)):
            for op, variant in product(("attention_mixed", "layer_mixed"), ("fused", "summed")):
                layer = {
                    "m": chunk + batch,
                    "n": model.intermediate_size // gpus,
                    "k": model.hidden_size,
                }
                yield Point(
                    op, "bf16", batch=batch, q_len=chunk, kv_len=cached, kv_dtype="bf16", variant=variant,
                    **sizes, **(layer if op == "layer_mixed" else {}),
                )  # fmt: skip


def _elementwise(models: Iterable[ModelSpec]) -> Iterator[Point]:
    hidden = {("rms_norm", model.hidden_size, 2) for model in models}
    inner = {("silu_mul", model.intermediate_size // gpus, 3) for model in models for gpus in (1, 8)}
    for variant, width, passes in sorted(hidden | inner):
        for tokens in _TOKENS[::2]:
            moved = 2 * passes * width * tokens
            yield Point("elementwise", "bf16", m=tokens, n=width, bytes=moved, variant=variant)


def _launches() -> Iterator[Point]:
    for kernels, variant in product((1, 10, 100, 1000), ("eager", "graph")):
        yield Point("launch", "bf16", m=kernels, variant=variant)


def _copy(size: int) -> Point:
    return Point("copy", "bf16", bytes=2 * size)  # read once, written once


def _all_reduces(n_gpus: int) -> Iterator[Point]:
    ranks = [count for count in (2, 4, 8, 16) if count <= n_gpus]
    for count, kib, variant in product(ranks, _powers(1, 2**18), ("graph", "eager")):
        yield Point("all_reduce", "bf16", bytes=kib * _KIB, n_gpus=count, variant=variant)


def _powers(first: int, last: int) -> list[int]:
    return [2**power for power in range(first.bit_length() - 1, last.bit_length())]
