"""From a Hugging Face config.json to the keys of a model spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.faults import InputFault

# Which families there are, and what their code fixes that the file does not say:
# Qwen2 has biases on q, k and v; Qwen3 norms q and k. Phi-3 stores q, k and v as one matrix, gate and up
# as another, which is the same number of weights.
_FAMILIES: Mapping[str, Mapping[str, bool]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
    "phi3": {},
}
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
# vLLM loads fp32 checkpoints as fp16.
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp16"}


def from_huggingface(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The mapping that `ModelSpec.from_mapping` reads, from a config.json's content.

    Supported are the dense llama, mistral, qwen2, qwen3 and phi3 families with full attention; scaling of
    the rotary embedding has no weights and is passed over. *name* becomes the model's. Raises InputFault,
    one sentence each, for other architectures, mixtures of experts, sliding windows in use, extra biases,
    unknown quantisation and missing keys.
    """
    family = config.get("model_type")
    faults = [*_missing(config), *_unsupported(config)]
    if family not in _FAMILIES:
        faults.insert(0, f"model_type {family!r} is not supported; possible: {', '.join(_FAMILIES)}")
    dtype = _dtype(config, faults)
    if faults:
        raise InputFault(f"{name}: config.json: {fault}" for fault in faults)
    heads = config["num_attention_heads"]
    return {
        "name": name,
        **{ours: config[theirs] for ours, theirs in _KEYS.items()},
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "dtype": dtype,
        "source": "Hugging Face config.json",
        **_FAMILIES[str(family)],
    }


def _missing(config: Mapping[str, Any]) -> list[str]:
    keys = list(_KEYS.values())
    if config.get("model_type") == "qwen3":
        keys.append("head_dim")  # the family's default is not hidden_size / heads
    return [f"{key} is missing" for key in keys if config.get(key) is None]


def _unsupported(config: Mapping[str, Any]) -> list[str]:
    faults = [
        f"{key} is set: mixtures of experts are not supported; only dense models are"
        for key in _EXPERTS
        if config.get(key)
    ]
    window = config.get("sliding_window")
    longest = config.get("max_position_embeddings") or 0
    if window and config.get("use_sliding_window", True) and window < longest:
        faults.append(
            f"sliding_window {window} is in use: only full attention is supported; "
            f"for contexts within it set max_position_embeddings to {window} and sliding_window to null"
        )
    faults += [
        f"{key} is true: biases there are not supported"
        for key in ("attention_bias", "mlp_bias")
        if config.get(key) and config.get("model_type") != "qwen2"
    ]
    return faults


def _dtype(config: Mapping[str, Any], faults: list[str]) -> str:
    """The checkpoint's dtype; what cannot be told goes to *faults*."""
    quantisation = config.get("quantization_config")
    if quantisation:
        method, bits = _quantisation(quantisation)
        kinds = {("fp8", 8): "fp8", ("awq", 4): "int4", ("gptq", 4): "int4", ("gptq", 8): "int8"}
        if (method, bits) not in kinds:
            faults.append(
                f"quantization_config {method!r} with {bits} bits is not supported; "
                "possible: fp8, awq with 4 bits, gptq with 4 or 8 bits"
            )
        return kinds.get((method, bits), "bf16")
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype not in _DTYPES:
        faults.append(f"torch_dtype must be one of {', '.join(_DTYPES)} (got {dtype!r})")
    return _DTYPES.get(str(dtype), "bf16")


def _quantisation(quantisation: Mapping[str, Any]) -> tuple[str, int]:
    """(method, bits a weight); compressed-tensors with 8-bit floats count as fp8."""
    method = str(quantisation.get("quant_method"))
    if method == "fp8":
        return method, 8
    if method == "compressed-tensors":
        groups = quantisation.get("config_groups") or {}
        weights = [group.get("weights") or {} for group in groups.values()]
        if weights and all(w.get("type") == "float" and w.get("num_bits") == 8 for w in weights):
            return "fp8", 8
    return method, int(quantisation.get("bits") or 0)
