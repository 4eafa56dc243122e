"""Reading a Hugging Face config.json: the families that are supported, and sentences for the rest."""

from __future__ import annotations

from typing import Any

import pytest

from sim.faults import InputFault
from sim.model import ModelSpec, from_huggingface

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_theta": 500000.0,
}
QWEN2 = {
    **LLAMA,
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "sliding_window": 32768,
    "use_sliding_window": False,
}
QWEN3 = {
    **LLAMA,
    "model_type": "qwen3",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "head_dim": 128,
    "intermediate_size": 25600,
    "vocab_size": 151936,
}
PHI3: dict[str, Any] = {
    **LLAMA,
    "model_type": "phi3",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "intermediate_size": 17920,
    "vocab_size": 100352,
    "max_position_embeddings": 16384,
    "sliding_window": None,
}
LLAMA32: dict[str, Any] = {
    **LLAMA,
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "head_dim": 64,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192},
}
MISTRAL = {**LLAMA, "model_type": "mistral", "vocab_size": 32768, "sliding_window": None}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA, 8_030_261_248),
        (LLAMA32, 1_235_814_400),
        (QWEN2, 7_615_616_512),
        (QWEN3, 32_762_123_264),
        (MISTRAL, 7_248_023_552),
        (PHI3, 14_659_507_200),
    ],
    ids=["llama", "llama with scaled rope", "qwen2", "qwen3", "mistral", "phi3"],
)
def test_the_families_count_as_published(config: dict[str, Any], parameters: int) -> None:
    """Biases of Qwen2 and the q and k norms of Qwen3 are not in the file, yet in the count."""
    spec = ModelSpec.from_mapping(from_huggingface(config, "mine"))
    assert spec.parameters == parameters
    assert spec.name == "mine"


def test_older_files_mean_one_kv_head_a_head() -> None:
    """Without num_key_value_heads attention is multi-head; without head_dim it is hidden_size / heads."""
    old = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    spec = ModelSpec.from_mapping(from_huggingface(old, "old"))
    assert (spec.kv_heads, spec.head_dim) == (32, 128)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"model_type": "gemma3"},
            "model_type 'gemma3' is not supported; possible: llama, mistral, qwen2, qwen3, phi3",
        ),
        ({"num_local_experts": 8}, "num_local_experts is set: mixtures of experts are not supported"),
        ({"sliding_window": 4096}, "sliding_window 4096 is in use"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"torch_dtype": "float8"}, "torch_dtype must be one of bfloat16, float16, float32 .got 'float8'."),
        ({"quantization_config": {"quant_method": "aqlm", "bits": 2}}, "'aqlm' with 2 bits is not supported"),
    ],
)
def test_what_is_not_supported_is_said(change: dict[str, Any], sentence: str) -> None:
    """One sentence names the key and what there is instead."""
    with pytest.raises(InputFault, match=sentence):
        from_huggingface({**LLAMA, **change}, "mine")


def test_phi3_with_a_window_in_use_is_refused() -> None:
    """Phi-3-mini-4k attends to 2,047 tokens only; a window as long as the context is no window."""
    with pytest.raises(InputFault, match="sliding_window 2047 is in use"):
        from_huggingface({**PHI3, "max_position_embeddings": 4096, "sliding_window": 2047}, "mine")
    assert from_huggingface({**PHI3, "sliding_window": 262144}, "mine")["kv_heads"] == 10


def test_every_missing_key_is_named_at_once() -> None:
    """An empty file lacks seven things."""
    with pytest.raises(InputFault) as raised:
        from_huggingface({"model_type": "qwen3"}, "mine")
    assert sum("is missing" in fault for fault in raised.value.faults) == 7


@pytest.mark.parametrize(
    ("quantisation", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
            },
            "fp8",
        ),
    ],
)
def test_a_quantised_checkpoint_is_recognised(quantisation: dict[str, Any], dtype: str) -> None:
    """Its weights are what quantization_config says, whatever torch_dtype the rest is in."""
    assert from_huggingface({**LLAMA, "quantization_config": quantisation}, "mine")["dtype"] == dtype
