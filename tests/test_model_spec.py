"""Models: parameters as published, shards that sum to the whole, KV bytes as engines log them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import sim.model
from sim.faults import InputFault
from sim.model import ModelSpec

CATALOGUE = sorted((Path(sim.model.__file__).parent / "catalogue").glob("*.yaml"))


def entry(name: str) -> dict[str, Any]:
    (path,) = [path for path in CATALOGUE if path.stem == name]
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def model(name: str, **changes: Any) -> ModelSpec:
    return ModelSpec.from_mapping({**entry(name), **changes})


@pytest.mark.parametrize("path", CATALOGUE, ids=lambda path: path.stem)
def test_parameters_are_the_published_ones(path: Path) -> None:
    """With embeddings, LM head, biases and norms the shape gives the published count to the last weight."""
    spec = ModelSpec.from_mapping(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert spec.parameters == spec.published_parameters
    assert spec.name == path.stem


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-13b", 13.016),
        ("llama-3.2-1b", 1.236),
        ("llama-3.2-3b", 3.213),
        ("qwen2.5-7b", 7.616),
        ("qwen2.5-32b", 32.764),
        ("qwen2.5-72b", 72.706),
        ("qwen3-8b", 8.191),
        ("qwen3-14b", 14.768),
        ("phi-4", 14.660),
    ],
)
def test_model_cards_say_the_same(name: str, billions: float) -> None:
    """In billions, as Hugging Face shows for the checkpoints."""
    assert model(name).parameters == pytest.approx(billions * 1e9, rel=5e-4)


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [
        ("qwen2.5-7b", 2 * 28 * 4 * 128 * 2),
        ("llama-2-13b", 2 * 40 * 40 * 128 * 2),
        ("llama-3.2-1b", 2 * 16 * 8 * 64 * 2),
        ("llama-3.2-3b", 2 * 28 * 8 * 128 * 2),
        ("qwen2.5-32b", 2 * 64 * 8 * 128 * 2),
        ("qwen2.5-72b", 2 * 80 * 8 * 128 * 2),
        ("qwen3-8b", 2 * 36 * 8 * 128 * 2),
        ("qwen3-14b", 2 * 40 * 8 * 128 * 2),
        ("phi-4", 2 * 40 * 10 * 128 * 2),
    ],
)
def test_a_token_keeps_k_and_v_of_each_layer(name: str, kv_bytes: int) -> None:
    """2 x layers x KV heads x head_dim x 2 B: 57,344 B for Qwen2.5-7B, 14 times that for Llama-2-13B."""
    assert model(name).kv_bytes_per_token("auto", 1) == kv_bytes


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.2-3b"])
def test_small_llamas_share_embedding_and_lm_head(name: str) -> None:
    """Untied they would not have the published size; what is read a token is the same."""
    spec, untied = model(name), model(name, tie_word_embeddings=False)
    assert untied.parameters - spec.parameters == 128256 * spec.hidden_size
    assert spec.lm_head_gemm(1) == untied.lm_head_gemm(1)


def test_no_two_models_share_a_name() -> None:
    """A name or alias means one model."""
    names = [name for path in CATALOGUE for name in (entry(path.stem)["name"], *entry(path.stem)["aliases"])]
    assert len(names) == len(set(names))


def test_a_tied_lm_head_is_counted_once() -> None:
    """Tying saves vocab_size x hidden_size weights: 128256 x 4096 for Llama-3-8B."""
    saved = model("llama-3-8b").parameters - model("llama-3-8b", tie_word_embeddings=True).parameters
    assert saved == 128256 * 4096


@pytest.mark.parametrize(
    ("name", "gpus"),
    [(path.stem, n) for path in CATALOGUE for n in (2, 4) if entry(path.stem)["kv_heads"] % n == 0],
)
def test_shards_sum_to_the_whole(name: str, gpus: int) -> None:
    """Up to one GPU a KV head nothing but the norms is replicated, in flops and in bytes."""
    spec = model(name)
    whole, shard = (sum(n * k for n, k in spec.layer_gemms(tp)) for tp in (1, gpus))
    assert shard * gpus == whole
    norms = 2 * (spec.layers * (2 * spec.hidden_size + spec.qk_norm * 2 * spec.head_dim) + spec.hidden_size)
    assert (spec.weight_bytes("bf16", gpus) - norms) * gpus == spec.weight_bytes("bf16", 1) - norms
    assert spec.kv_bytes_per_token("auto", gpus) * gpus == spec.kv_bytes_per_token("auto", 1)


def test_kv_heads_are_replicated_when_gpus_outnumber_them() -> None:
    """Llama-70B has 8 KV heads: 2 x 80 layers x 1 head x 128 x 2 B = 40,960 B on each of 8 GPUs and of 16."""
    spec = model("llama-3-70b")
    assert [spec.kv_bytes_per_token("bf16", tp) for tp in (4, 8, 16)] == [81920, 40960, 40960]


@pytest.mark.parametrize(
    ("name", "gpus", "block_bytes"),
    [("llama-3-8b", 1, 2 * 2**20), ("llama-2-7b", 1, 8 * 2**20), ("llama-3-70b", 2, 5 * 2**19)],
)
def test_swap_space_over_cpu_blocks_gives_the_block_bytes(name: str, gpus: int, block_bytes: int) -> None:
    """vLLM logs of 4 GiB swap: 2048 CPU blocks of 16 tokens (Llama-3-8B), 512 (Llama-2-7B), 1638 (70B on 2).

    4 GiB / 2048 = 2 MiB, / 512 = 8 MiB; floor(4 GiB / 2.5 MiB) = 1638. Exact, free of profiling noise.
    """
    assert 16 * model(name).kv_bytes_per_token("auto", gpus) == block_bytes


@pytest.mark.parametrize("kv_dtype", ["fp8", "fp8_e4m3", "fp8_e5m2", "int8"])
def test_an_8_bit_cache_halves_the_bytes(kv_dtype: str) -> None:
    """Half the bytes a token, at the price of two fp32 scales a layer."""
    spec = model("qwen2-7b")
    assert spec.kv_bytes_per_token("auto", 1) == 57344
    assert spec.kv_bytes_per_token(kv_dtype, 1) == 57344 // 2
    assert spec.kv_scale_bytes(kv_dtype) == 28 * 2 * 4
    assert spec.kv_scale_bytes("auto") == 0


def test_quantised_weights_carry_their_scales() -> None:
    """Llama-3-8B by hand: linear weights 32 x 218,103,808; 16-bit rest 2 x 128256 x 4096 + 65 x 4096 weights.

    Channels a layer: qkv 6144 + o 4096 + gate-up 28672 + down 4096 = 43,008, an fp32 scale each.
    int4: 218,103,808 / 128 = 1,703,936 groups a layer, 2.5 B each.
    """
    spec = model("llama-3-8b")
    rest = 2 * (2 * 128256 * 4096 + 65 * 4096)
    assert (
        spec.weight_bytes("fp8", 1) == spec.weight_bytes("int8", 1) == rest + 32 * (218_103_808 + 43_008 * 4)
    )
    assert spec.weight_bytes("int4", 1) == rest + 32 * (218_103_808 // 2 + 1_703_936 * 5 // 2)
    assert spec.weight_bytes("auto", 1) == spec.weight_bytes("bf16", 1) == 2 * spec.parameters


def test_a_quantised_checkpoint_computes_in_16_bits() -> None:
    """`auto` weights are the checkpoint's; an `auto` cache is bf16: int8 weights make no int8 cache."""
    spec = model("qwen2-7b", dtype="int8")
    assert (spec.weight_dtype("auto"), spec.kv_dtype("auto")) == ("int8", "bf16")


def test_elementwise_bytes_shrink_with_tensor_parallelism_but_norms_stay() -> None:
    """Norms and residuals (8 hidden) are on every GPU; 2 (q + kv) + 4 kv + 3 intermediate are split."""
    spec = model("llama-3-8b")
    split = 2 * (4096 + 1024) + 4 * 1024 + 3 * 14336
    assert spec.elementwise_bytes_per_token(1) == 2 * (8 * 4096 + split)
    assert spec.elementwise_bytes_per_token(8) == 2 * (8 * 4096 + split // 8)


@pytest.mark.parametrize(
    ("name", "gpus"), [("qwen2-7b", 8), ("llama-3-8b", 3), ("llama-3-8b", 12), ("phi-4", 4)]
)
def test_a_split_that_does_not_divide_is_refused(name: str, gpus: int) -> None:
    """28 heads on 8 GPUs, 8 KV heads on 3 or 12, 10 on 4: a sentence with what is possible, no rounding."""
    with pytest.raises(InputFault, match=r"tensor_parallel_size .* possible: 1, 2"):
        model(name).weight_bytes("auto", gpus)


def test_all_faults_of_an_entry_travel_together() -> None:
    """A missing, a misspelt and two wrong values are four sentences of one fault."""
    broken = {**entry("llama-3-8b"), "kv_heads": 5, "dtype": "float"}
    del broken["layers"]
    with pytest.raises(InputFault) as raised:
        ModelSpec.from_mapping({**broken, "hidden": 4096})
    text = str(raised.value)
    assert len(raised.value.faults) == 4
    assert "layers is missing" in text
    assert "multiple of kv_heads" in text
    assert "dtype must be one of" in text
    assert "hidden is unknown; did you mean" in text


def test_unknown_dtypes_are_named() -> None:
    """The sentence says which key and what is near."""
    with pytest.raises(InputFault, match=r"engine\.kv_cache_dtype bf15 is unknown; did you mean bf16"):
        model("llama-3-8b").kv_bytes_per_token("bf15", 1)
