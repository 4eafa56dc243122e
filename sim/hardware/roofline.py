"""How long one operation takes on one GPU. SI units: flops, bytes, seconds; numbers and numpy arrays alike.

Every form bends smoothly between its limits by a p-norm, `(a^p + b^p)^(1/p)`, because measured kernels do:
a hard maximum is a quarter off at the batch sizes where decoding happens. For p >= 1 the result is at least
the larger part; p below 1, as some attention kernels show, adds up to more than the sum of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Number = TypeVar("Number", float, np.ndarray)


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
    """

    roofline: Roofline
    weight_bytes: float
    activation_bytes: float

    def seconds(self, m: Number, n: int, k: int) -> Number:
        """Time for *m* tokens through *n* outputs and *k* inputs."""
        moved = n * k * self.weight_bytes + m * (k * self.activation_bytes + n * 2.0)
        return self.roofline.seconds(2.0 * n * k * m, moved)


@dataclass(frozen=True)
class DecodeAttention:
    """Attention of one new token each of many sequences: `(o^p + y^p)^(1/p)`, `y = kv_bytes / B + c x work`.

    `load_s` is y, which adds up over sequences; a layer's whole time is a function of that one number.
    """

    bytes_per_s: float
    head_sequence_s: float
    exponent: float
    overhead_s: float

    def load_s(self, kv_bytes: Number, head_sequences: Number) -> Number:
        """y of one layer: *kv_bytes* read there, and sequences x KV heads on the GPU (*head_sequences*)."""
        return kv_bytes / self.bytes_per_s + head_sequences * self.head_sequence_s

    def seconds(self, load_s: Number) -> Number:
        """Time of one layer's call at that y; the caller leaves it out when nobody decodes."""
        return _norm(self.overhead_s + 0.0 * load_s, load_s, self.exponent)


@dataclass(frozen=True)
class PrefillAttention:
    """Attention of prompt chunks: `(o^p + (flops / F + h x heads x tokens)^p)^(1/p)`, once a layer."""

    flops_per_s: float
    head_token_s: float
    exponent: float
    overhead_s: float
    causal_weight: float = 0.5

    def flops(self, heads: int, head_dim: int, chunk_tokens: Number, cached_tokens: Number) -> Number:
        """Of *chunk_tokens* new ones after *cached_tokens*: `4 x heads x head_dim x c x (k + w c)`.

        QK^T and PV take 2 heads x head_dim each for every pair of a new token and a token it sees; causal
        masking leaves the share w of the chunk's own pairs. *heads* are the GPU's query heads. Adds up
        over the chunks of a batch.
        """
        return 4.0 * heads * head_dim * chunk_tokens * (cached_tokens + self.causal_weight * chunk_tokens)

    def seconds(self, flops: Number, head_tokens: Number) -> Number:
        """Time of one layer's call: *flops* of its chunks, *head_tokens* = heads on the GPU x new tokens."""
        work_s = flops / self.flops_per_s + head_tokens * self.head_token_s
        return _norm(self.overhead_s + 0.0 * work_s, work_s, self.exponent)


@dataclass(frozen=True)
class AllReduce:
    """The sum over a group of GPUs: `(alpha^p + (bytes / B)^p)^(1/p)`; B is bytes a rank per second."""

    latency_s: float
    bytes_per_s: float
    exponent: float

    def seconds(self, bytes: Number) -> Number:
        """Time to reduce *bytes* a rank (tokens x hidden_size x 2)."""
        return _norm(self.latency_s + 0.0 * bytes, bytes / self.bytes_per_s, self.exponent)


@dataclass(frozen=True)
class Elementwise:
    """A layer's norms, residual additions, rotary embedding and activation: `bytes / B + overhead`."""

    bytes_per_s: float
    overhead_s: float

    def seconds(self, bytes: Number) -> Number:
        """Time of one layer's elementwise kernels together."""
        return bytes / self.bytes_per_s + self.overhead_s
