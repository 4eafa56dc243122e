"""Models: their shape, and the weights, KV cache and operations that follow from it."""

from sim.model.huggingface import from_huggingface
from sim.model.spec import KV_DTYPE_BYTES, WEIGHT_DTYPE_BYTES, ModelSpec

__all__ = ["KV_DTYPE_BYTES", "WEIGHT_DTYPE_BYTES", "ModelSpec", "from_huggingface"]
