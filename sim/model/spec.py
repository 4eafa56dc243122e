"""A dense decoder-only transformer as a capacity planner sees it: its shape, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.faults import InputFault, did_you_mean
from sim.model.fields import Fields

WEIGHT_DTYPE_BYTES: Mapping[str, float] = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5}
KV_DTYPE_BYTES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}

_HALF_BYTES = 2  # embeddings, LM head, norms, biases and activations stay in a 16-bit type
_CHANNEL_SCALE_BYTES = 4  # one fp32 scale an output channel (fp8, int8)
_INT4_GROUP = 128  # inputs that share one int4 scale
_INT4_GROUP_BYTES = 2.5  # an fp16 scale and a 4-bit zero point


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a dense, gated-MLP, decoder-only transformer (Llama, Mistral, Qwen2, Qwen3, Phi-3).

    `dtype` is what the checkpoint holds; a quantised one (fp8, int8, int4) computes in bf16 around its
    linear layers. `attention_bias` means biases on q, k and v (not on the output projection), `qk_norm`
    a norm of head_dim weights on each of q and k.
    """

    name: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    dtype: str = "bf16"
    published_parameters: int | None = None
    aliases: tuple[str, ...] = ()
    source: str | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ModelSpec:
        """Read a catalogue entry. Raises InputFault with every missing, unknown and impossible value."""
        fields = Fields(mapping, f"model {mapping.get('name', '(no name)')}")
        spec = cls(
            name=fields.text("name"),
            layers=fields.integer("layers"),
            hidden_size=fields.integer("hidden_size"),
            heads=fields.integer("heads"),
            kv_heads=fields.integer("kv_heads"),
            head_dim=fields.integer("head_dim"),
            intermediate_size=fields.integer("intermediate_size"),
            vocab_size=fields.integer("vocab_size"),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            tie_word_embeddings=fields.boolean("tie_word_embeddings"),
            attention_bias=fields.boolean("attention_bias"),
            qk_norm=fields.boolean("qk_norm"),
            dtype=fields.choice("dtype", WEIGHT_DTYPE_BYTES) if fields.has("dtype") else "bf16",
            published_parameters=(
                fields.integer("published_parameters") if fields.has("published_parameters") else None
            ),
            aliases=fields.names("aliases"),
            source=fields.text("source") if fields.has("source") else None,
        )
        if spec.heads % spec.kv_heads:
            fields.fault("heads", f"must be a multiple of kv_heads (got {spec.heads} and {spec.kv_heads})")
        fields.close()
        return spec

    @property
    def parameters(self) -> int:
        """Weights of the whole model: embeddings, LM head unless tied, linear layers, biases, norms."""
        linear = sum(n * k for n, k in self.layer_gemms(1))
        layer = linear + self._bias_parameters(1) + self._layer_norm_parameters
        return self.layers * layer + self.hidden_size + self._embedding_copies * self._embedding_parameters(1)

    @property
    def activation_dtype(self) -> str:
        """The 16-bit type outside the linear layers: the checkpoint's own, bf16 when that is quantised."""
        return self.dtype if self.dtype in ("bf16", "fp16") else "bf16"

    def weight_dtype(self, weight_dtype: str) -> str:
        """*weight_dtype* with `auto` resolved to the checkpoint's. Raises InputFault for an unknown one."""
        return _dtype(weight_dtype, self.dtype, WEIGHT_DTYPE_BYTES, "engine.weight_dtype")

    def kv_dtype(self, kv_cache_dtype: str) -> str:
        """*kv_cache_dtype* with `auto` resolved to the 16-bit type. Raises InputFault for an unknown one."""
        return _dtype(kv_cache_dtype, self.activation_dtype, KV_DTYPE_BYTES, "engine.kv_cache_dtype")

    def heads_per_gpu(self, tensor_parallel_size: int) -> int:
        """Query heads on each GPU. Raises InputFault when they cannot be shared out evenly."""
        return self._share("heads", self.heads, tensor_parallel_size)

    def kv_heads_per_gpu(self, tensor_parallel_size: int) -> int:
        """KV heads on each GPU: sharded, or one replicated head when there are more GPUs than heads.

        Raises InputFault when neither kv_heads nor the number of GPUs divides the other.
        """
        if tensor_parallel_size > self.kv_heads and tensor_parallel_size % self.kv_heads == 0:
            return 1
        return self._share("kv_heads", self.kv_heads, tensor_parallel_size)

    def layer_gemms(self, tensor_parallel_size: int) -> tuple[tuple[int, int], ...]:
        """(n outputs, k inputs) per GPU of a layer's linear layers: qkv, attention output, gate and up, down.

        qkv and gate-up are split by outputs, the other two by inputs, so that a layer needs two
        all-reduces of hidden_size x tokens (Megatron-LM, arXiv:1909.08053).
        """
        heads = self.heads_per_gpu(tensor_parallel_size)
        kv_heads = self.kv_heads_per_gpu(tensor_parallel_size)
        inner = self._share("intermediate_size", self.intermediate_size, tensor_parallel_size)
        return (
            ((heads + 2 * kv_heads) * self.head_dim, self.hidden_size),
            (self.hidden_size, heads * self.head_dim),
            (2 * inner, self.hidden_size),
            (self.hidden_size, inner),
        )

    def lm_head_gemm(self, tensor_parallel_size: int) -> tuple[int, int]:
        """(n, k) per GPU of the LM head, run on the tokens that are sampled only; always in 16 bits."""
        return math.ceil(self.vocab_size / tensor_parallel_size), self.hidden_size

    def weight_bytes(self, weight_dtype: str, tensor_parallel_size: int) -> int:
        """Bytes of the weights on each GPU.

        Linear layers are in *weight_dtype* and sharded, with their scales: fp8 and int8 one fp32 scale an
        output channel, int4 one fp16 scale and one 4-bit zero point for each 128 inputs of an output.
        Embedding and LM head (sharded by vocabulary), norms (on every GPU) and biases stay in 16 bits.
        """
        dtype = self.weight_dtype(weight_dtype)
        linear = sum(_linear_bytes(n, k, dtype) for n, k in self.layer_gemms(tensor_parallel_size))
        half = (
            self.layers * (self._bias_parameters(tensor_parallel_size) + self._layer_norm_parameters)
            + self.hidden_size
            + self._embedding_copies * self._embedding_parameters(tensor_parallel_size)
        )
        return math.ceil(self.layers * linear + _HALF_BYTES * half)

    def kv_bytes_per_token(self, kv_cache_dtype: str, tensor_parallel_size: int) -> int:
        """Bytes a token keeps in each GPU's KV cache: 2 x layers x KV heads there x head_dim x bytes."""
        width = KV_DTYPE_BYTES[self.kv_dtype(kv_cache_dtype)]
        return 2 * self.layers * self.kv_heads_per_gpu(tensor_parallel_size) * self.head_dim * width

    def kv_scale_bytes(self, kv_cache_dtype: str) -> int:
        """Bytes of the KV cache's scales on each GPU: one fp32 for k and one for v a layer, if quantised."""
        quantised = KV_DTYPE_BYTES[self.kv_dtype(kv_cache_dtype)] < _HALF_BYTES
        return 2 * self.layers * _CHANNEL_SCALE_BYTES if quantised else 0

    def elementwise_bytes_per_token(self, tensor_parallel_size: int) -> int:
        """Bytes each GPU moves a token and layer outside linear layers and attention.

        Two norms, each fused with its residual addition (read and write both: 8 hidden in all); rotary
        embedding (q and k read and written); k and v read and written to the cache; gate and up read, their
        product written. All in 16 bits.
        """
        q = self.heads_per_gpu(tensor_parallel_size) * self.head_dim
        kv = self.kv_heads_per_gpu(tensor_parallel_size) * self.head_dim
        inner = self.layer_gemms(tensor_parallel_size)[3][1]
        return _HALF_BYTES * (8 * self.hidden_size + 2 * (q + kv) + 4 * kv + 3 * inner)

    @property
    def _embedding_copies(self) -> int:
        return 1 if self.tie_word_embeddings else 2

    @property
    def _layer_norm_parameters(self) -> int:
        return 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)

    def _embedding_parameters(self, tensor_parallel_size: int) -> int:
        n, k = self.lm_head_gemm(tensor_parallel_size)
        return n * k

    def _bias_parameters(self, tensor_parallel_size: int) -> int:
        return self.layer_gemms(tensor_parallel_size)[0][0] if self.attention_bias else 0

    def _share(self, what: str, whole: int, tensor_parallel_size: int) -> int:
        if tensor_parallel_size < 1 or whole % tensor_parallel_size:
            possible = [str(n) for n in range(1, 65) if self._can_split(n)]
            raise InputFault(
                f"engine.tensor_parallel_size {tensor_parallel_size} does not fit {self.name}: its {what} "
                f"({whole}) cannot be shared out evenly; possible: {', '.join(possible)}"
            )
        return whole // tensor_parallel_size

    def _can_split(self, n: int) -> bool:
        kv_fits = self.kv_heads % n == 0 or n % self.kv_heads == 0
        return kv_fits and self.heads % n == 0 and self.intermediate_size % n == 0


def _linear_bytes(n: int, k: int, dtype: str) -> float:
    """Bytes of one linear layer of n outputs and k inputs with its scales."""
    weights = n * k * WEIGHT_DTYPE_BYTES[dtype]
    if dtype == "int4":
        return weights + n * math.ceil(k / _INT4_GROUP) * _INT4_GROUP_BYTES
    return weights + (n * _CHANNEL_SCALE_BYTES if dtype in ("fp8", "int8") else 0)


def _dtype(name: str, auto: str, possible: Mapping[str, float], key: str) -> str:
    if name == "auto":
        return auto
    if name in possible:
        return name
    raise InputFault(f"{key} {name} is unknown{did_you_mean(str(name), ['auto', *possible])}")
