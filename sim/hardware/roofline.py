"""How long one operation takes on one GPU. SI units: flops, bytes, seconds; numbers and numpy arrays alike.

Every form bends smoothly between its limits by a p-norm, `(a^p + b^p)^(1/p)`, because measured kernels do:
a hard maximum is a quarter off at the batch sizes where decoding happens. For p >= 1 the result is at least
the larger part; p below 1, as some attention kernels show, adds up to more than the sum of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from sim.hardware.residuals import Residuals
from sim.model import KV_DTYPE_BYTES, ModelSpec

Number = TypeVar("Number", float, np.ndarray)
Quantity = float | np.ndarray
_CACHE_EDGE = 8  # how sharply a cache stops to help as what is read in turn outgrows it


def _norm(a: Number, b: Number, exponent: float) -> Number:
    return (a**exponent + b**exponent) ** (1.0 / exponent)


@dataclass(frozen=True)
class Roofline:
    """`((flops / F)^p + (bytes / B)^p)^(1/p) + overhead`: the time of a linear layer."""

    flops_per_s: float
    bytes_per_s: float
    exponent: float
    overhead_s: float

    def seconds(self, flops: Number, bytes: Number) -> Number:
        """Time of an operation of that many floating-point operations and bytes moved."""
        return _norm(flops / self.flops_per_s, bytes / self.bytes_per_s, self.exponent) + self.overhead_s


@dataclass(frozen=True)
class Gemm:
    """A linear layer Y[m, n] = X[m, k] W[n, k]^T on one GPU, with the bytes its dtype moves.

    `weight_bytes` are per weight. `activation_bytes` are per element of X: 2 where X is read in 16 bits, 4
    where it is also quantised to 8 bits first (16 bits read, 8 written, 8 read). Y leaves in 16 bits.
    `quantise_bytes_per_s` is the rate of that step where it was fitted apart: 3 bytes an element then go into
    a term of their own, and `activation_bytes` is 1. `residual` has what the form misses, by m, n and k.
    Weights below `cached_below_bytes` were in the second-level cache when their residual was measured.
    """

    roofline: Roofline
    weight_bytes: float
    activation_bytes: float
    quantise_bytes_per_s: float | None = None
    cached_below_bytes: float = 0.0
    residual: Residuals | None = None

    def seconds(self, m: Quantity, n: Quantity, k: Quantity) -> np.ndarray:
        """Time for *m* tokens through *n* outputs and *k* inputs, in a server.

        A server reads every layer's weights from memory, which takes at least their bytes / B.
        """
        looped_s = self.looped_s(m, n, k)
        weights = np.asarray(n * k * self.weight_bytes)
        from_memory_s = np.where(weights < self.cached_below_bytes, weights / self.roofline.bytes_per_s, 0.0)
        return np.maximum(looped_s, from_memory_s)

    def looped_s(self, m: Quantity, n: Quantity, k: Quantity) -> np.ndarray:
        """The same where one layer runs again and again, as in a kernel table: small weights stay cached."""
        smooth_s = self.smooth_s(m, n, k)
        return smooth_s if self.residual is None else smooth_s * self.residual.factor(m=m, n=n, k=k)

    def smooth_s(self, m: Quantity, n: Quantity, k: Quantity) -> np.ndarray:
        """The smooth form alone."""
        moved = n * k * self.weight_bytes + m * (k * self.activation_bytes + n * 2.0)
        smooth_s = self.roofline.seconds(np.asarray(2.0 * n * k * m), np.asarray(moved))
        quantised_s = 0.0 if self.quantise_bytes_per_s is None else 3.0 * m * k / self.quantise_bytes_per_s
        return smooth_s + quantised_s


@dataclass(frozen=True)
class AttentionShape:
    """What one GPU holds of a layer's attention, and how many bytes a number has in its KV cache.

    Numbers, or arrays of equal shapes with one entry for each call.
    """

    heads: Quantity
    kv_heads: Quantity
    head_dim: Quantity
    kv_element_bytes: float

    @classmethod
    def of(cls, model: ModelSpec, kv_dtype: str, n_gpus: int) -> AttentionShape:
        """Of *model* over *n_gpus*, its cache in *kv_dtype* (resolved)."""
        heads, kv_heads = model.heads_per_gpu(n_gpus), model.kv_heads_per_gpu(n_gpus)
        return cls(heads, kv_heads, model.head_dim, KV_DTYPE_BYTES[kv_dtype])

    @property
    def heads_per_kv_head(self) -> Quantity:
        """Query heads that share a KV head."""
        return self.heads / self.kv_heads

    @property
    def kv_bytes_per_token(self) -> Quantity:
        """Keys and values that a token leaves in this layer on this GPU."""
        return 2.0 * self.kv_heads * self.head_dim * self.kv_element_bytes


@dataclass(frozen=True)
class DecodeAttention:
    """Attention of one new token each of many sequences: `(o^p + y^p)^(1/p)`, `y = kv_bytes / B + c x work`.

    `load_s` is y, which adds up over sequences; a layer's smooth time is a function of that one number.
    `regroup_s` comes on top where queries are copied so that those of one KV head lie together: with several
    sequences, KV heads and queries a KV head. `residual` has what the form misses, by `head_sequences`
    (sequences x KV heads), `context_tokens` (of a sequence) and `heads_per_kv_head`, or some of them.
    A loop over less than `cached_below_bytes` found its KV in the second-level cache, and read it at
    `cached_bytes_per_s`.
    """

    bytes_per_s: float
    head_sequence_s: float
    exponent: float
    overhead_s: float
    regroup_s: float = 0.0
    cached_below_bytes: float | None = None
    cached_bytes_per_s: float | None = None
    residual: Residuals | None = None

    def load_s(self, kv_bytes: Number, head_sequences: Number) -> Number:
        """y of one layer: *kv_bytes* read there, and sequences x KV heads on the GPU (*head_sequences*)."""
        return kv_bytes / self.bytes_per_s + head_sequences * self.head_sequence_s

    def smooth_s(self, load_s: Number) -> Number:
        """Time of one layer's call at that y, residual and regrouping aside."""
        return _norm(self.overhead_s + 0.0 * load_s, load_s, self.exponent)

    def where(self, **at: float) -> DecodeAttention:
        """The same where the quantities of `residual` that are named are these: quicker to ask often."""
        return self if self.residual is None else replace(self, residual=self.residual.at(**at))

    def seconds(self, sequences: Quantity, context_tokens: Quantity, shape: AttentionShape) -> np.ndarray:
        """Time of one layer's call for *sequences* that read *context_tokens* in all, in whole pages.

        Equal or broadcastable shapes; the caller leaves it out when nobody decodes. Lengths enter by their
        mean: how uneven they are is not in the published tables. A server reads all KV from memory: other
        layers' went through the cache since.
        """
        return self._seconds(sequences, context_tokens, shape, looped=False)

    def looped_s(self, sequences: Quantity, context_tokens: Quantity, shape: AttentionShape) -> np.ndarray:
        """The same where one layer runs again and again, as in a kernel table: a small KV stays cached."""
        return self._seconds(sequences, context_tokens, shape, looped=True)

    def _seconds(
        self, sequences: Quantity, context_tokens: Quantity, shape: AttentionShape, *, looped: bool
    ) -> np.ndarray:
        head_sequences = np.asarray(sequences * shape.kv_heads, dtype=float)
        kv_bytes = np.asarray(context_tokens * shape.kv_bytes_per_token, dtype=float)
        load_s = self.load_s(kv_bytes, head_sequences)
        if looped and self.cached_below_bytes is not None and self.cached_bytes_per_s is not None:
            cached = kv_bytes / (1.0 + (kv_bytes / self.cached_below_bytes) ** _CACHE_EDGE)
            load_s = load_s - cached * (1.0 / self.bytes_per_s - 1.0 / self.cached_bytes_per_s)
        several = (sequences > 1) & (shape.kv_heads > 1) & (shape.heads > shape.kv_heads)
        smooth_s = self.smooth_s(load_s) + self.regroup_s * np.asarray(several)
        if self.residual is None:
            return smooth_s
        return smooth_s * self.residual.factor(
            head_sequences=head_sequences,
            context_tokens=context_tokens / np.maximum(sequences, 1),
            heads_per_kv_head=shape.heads_per_kv_head,
        )


@dataclass(frozen=True)
class PrefillAttention:
    """Attention of prompt chunks: `(o^p + (flops / F + h x heads x tokens)^p)^(1/p)`, once a layer.

    `residual` has what the form misses, by `head_tokens` (query heads x new tokens), `span_tokens` and
    `heads_per_kv_head`, or some of them. The span is the chunk without cached tokens in which a new token
    sees as many others as here: what one thread block loops over, whether cached or new. `kv_residual` is
    another factor, by `new_tokens` and `kv_heads`: how fast keys and values are written.
    """

    flops_per_s: float
    head_token_s: float
    exponent: float
    overhead_s: float
    causal_weight: float = 0.5
    residual: Residuals | None = None
    kv_residual: Residuals | None = None

    def flops(self, heads: int, head_dim: int, chunk_tokens: Number, cached_tokens: Number) -> Number:
        """Of *chunk_tokens* new ones after *cached_tokens*: `4 x heads x head_dim x c x (k + w c)`.

        QK^T and PV take 2 heads x head_dim each for every pair of a new token and a token it sees; causal
        masking leaves the share w of the chunk's own pairs. *heads* are the GPU's query heads. Adds up
        over the chunks of a batch.
        """
        return 4.0 * heads * head_dim * chunk_tokens * (cached_tokens + self.causal_weight * chunk_tokens)

    def smooth_s(self, flops: Number, head_tokens: Number) -> Number:
        """Time of one layer's call, residual aside: its chunks' *flops*, heads on the GPU x new tokens."""
        work_s = flops / self.flops_per_s + head_tokens * self.head_token_s
        return _norm(self.overhead_s + 0.0 * work_s, work_s, self.exponent)

    def seconds(
        self, new_tokens: Quantity, with_cached: Quantity, squares: Quantity, shape: AttentionShape
    ) -> np.ndarray:
        """Time of one layer's call over chunks of *new_tokens* in all.

        *with_cached* sums new x cached tokens over the chunks, *squares* new x new. Equal or broadcastable
        shapes; the caller leaves it out when there is no chunk.
        """
        pairs = np.asarray(with_cached + self.causal_weight * squares, dtype=float)
        head_tokens = np.asarray(shape.heads * new_tokens, dtype=float)
        seconds = self.smooth_s(4.0 * shape.heads * shape.head_dim * pairs, head_tokens)
        span_tokens = pairs / (self.causal_weight * np.maximum(new_tokens, 1))
        return seconds * self._factor(head_tokens, span_tokens, shape)

    def table(self, shape: AttentionShape) -> Residuals | None:
        """Both residuals of one *shape* as a single table, by `head_tokens` and `span_tokens`."""
        own = {} if self.residual is None else self.residual.axes
        of_kv = {} if self.kv_residual is None else self.kv_residual.axes
        if not {**own, **of_kv}:
            return None
        places = [own.get("head_tokens", np.ones(0)), shape.heads * of_kv.get("new_tokens", np.ones(0))]
        axes = {
            "head_tokens": np.unique(np.concatenate(places)),
            "span_tokens": own.get("span_tokens", np.ones(1)),
        }
        axes = {name: nodes if len(nodes) else np.ones(1) for name, nodes in axes.items()}
        ratios = self._factor(axes["head_tokens"][:, None], axes["span_tokens"], shape)
        return Residuals(axes, np.broadcast_to(ratios, [len(nodes) for nodes in axes.values()]))

    def _factor(
        self, head_tokens: np.ndarray, span_tokens: np.ndarray, shape: AttentionShape
    ) -> np.ndarray | float:
        factor: np.ndarray | float = 1.0
        if self.residual is not None:
            factor = self.residual.factor(
                head_tokens=head_tokens, span_tokens=span_tokens, heads_per_kv_head=shape.heads_per_kv_head
            )
        if self.kv_residual is not None:
            factor = factor * self.kv_residual.factor(
                new_tokens=head_tokens / shape.heads, kv_heads=shape.kv_heads
            )
        return factor


@dataclass(frozen=True)
class AllReduce:
    """The sum over a group of GPUs: `(alpha^p + (bytes / B)^p)^(1/p)`; B is bytes a rank per second.

    `residual` has what the form misses, by `bytes`: the steps where the algorithm changes.
    """

    latency_s: float
    bytes_per_s: float
    exponent: float
    residual: Residuals | None = None

    def seconds(self, bytes: Quantity) -> np.ndarray:
        """Time to reduce *bytes* a rank (tokens x hidden_size x 2)."""
        smooth_s = self.smooth_s(bytes)
        return smooth_s if self.residual is None else smooth_s * self.residual.factor(bytes=bytes)

    def smooth_s(self, bytes: Quantity) -> np.ndarray:
        """The smooth form alone."""
        sizes = np.asarray(bytes, dtype=float)
        return _norm(self.latency_s + 0.0 * sizes, sizes / self.bytes_per_s, self.exponent)


@dataclass(frozen=True)
class Elementwise:
    """A layer's norms, residual additions, rotary embedding and activation: `bytes / B + overhead`."""

    bytes_per_s: float
    overhead_s: float

    def seconds(self, bytes: Number) -> Number:
        """Time of one layer's elementwise kernels together."""
        return bytes / self.bytes_per_s + self.overhead_s
