"""Several backends' kernels in one profile: an engine runs its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import sim
from sim.hardware import HardwareProfile
from sim.hardware.sources import as_measured_with
from sim.scenario import Scenario

PROFILE = Path(__file__).parents[1] / "hardware_profiles" / "h100-80gb-sxm.yaml"
OWN = {"kind": "measured", "source": "a test", "points": 7, "error_median_pct": 3.0, "error_p90_pct": 9.0}


def two_backends() -> dict[str, Any]:
    """An H100 whose SGLang kernels are half as fast in bf16 linear layers, and not measured otherwise."""
    mapping = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))
    bf16 = dict(mapping["kernels"]["gemm"]["bf16"])
    slow = {**bf16, "flops_per_s": bf16["flops_per_s"] / 2, "bytes_per_s": bf16["bytes_per_s"] / 2}
    provenance = {
        key: origin for key, origin in mapping["provenance"].items() if not key.startswith("kernel_sources")
    }
    provenance["kernel_sources.sglang.gemm.bf16"] = OWN
    return {**mapping, "kernel_sources": {"sglang": {"gemm": {"bf16": slow}}}, "provenance": provenance}


def scenario(**engine: Any) -> Scenario:
    return sim.load(
        {
            "hardware": two_backends(),
            "model": "llama-3-8b",
            "engine": engine,
            "workload": "azure-2023-conv",
            "load": {"rate_per_s": 1},
        }
    )


def test_an_engine_runs_its_own_kernels() -> None:
    """SGLang's linear layers are SGLang's, with their origin; what it did not measure is the profile's."""
    usual, other = scenario(), scenario(kernel_source="sglang")
    assert usual.engine["kernel_source"] == "vllm"
    rate = usual.hardware["kernels"]["gemm"]["bf16"]["flops_per_s"]
    assert other.hardware["kernels"]["gemm"]["bf16"]["flops_per_s"] == rate / 2
    assert other.hardware["kernels"]["gemm"]["fp8"] == usual.hardware["kernels"]["gemm"]["fp8"]
    assert other.hardware["kernels"]["attention_decode"] == usual.hardware["kernels"]["attention_decode"]
    assert HardwareProfile.from_mapping(other.hardware).provenance("kernels.gemm.bf16").points == 7
    assert HardwareProfile.from_mapping(usual.hardware).provenance("kernels.gemm.bf16").points != 7


def test_a_result_carries_the_kernels_it_used_alone() -> None:
    """The other backends' tables do not travel with every summary."""
    for chosen in (scenario(), scenario(kernel_source="sglang"), scenario(kernel_source="trtllm")):
        assert "kernel_sources" not in chosen.hardware
        assert not any(key.startswith("kernel_sources") for key in chosen.hardware["provenance"])
        assert sim.load(chosen.resolved()).hardware == chosen.hardware


def test_a_changed_scenario_finds_the_other_backend_again() -> None:
    """Replacing the engine's backend reads it from the profile as it was, there and back."""
    usual = scenario()
    other = usual.replace({"engine.kernel_source": "sglang"})
    assert other.hardware == scenario(kernel_source="sglang").hardware
    assert other.replace({"engine.kernel_source": "vllm"}).hardware == usual.hardware


def test_a_profile_says_which_backends_it_knows() -> None:
    """By name, with the rows of the table that are its own; a misspelt one is refused by the scenario."""
    profile = HardwareProfile.from_mapping(two_backends())
    alone = HardwareProfile.from_mapping(as_measured_with(two_backends(), "sglang"))
    assert (profile.kernel_source, set(profile.kernel_sources)) == ("vllm", {"sglang"})
    assert (alone.kernel_source, alone.kernel_sources) == ("sglang", {})
    assert alone.gemm("bf16") == replace(
        alone.gemm("bf16"), roofline=profile.kernel_sources["sglang"]["gemm"]["bf16"].roofline
    )
    with pytest.raises(sim.InputFault, match=r"kernel_source must be vllm, sglang, .* did you mean sglang"):
        scenario(kernel_source="sglnag")


def test_a_card_is_as_slow_whichever_backend_runs() -> None:
    """An efficiency belongs to the card: at half of it, both backends' layers compute half as fast."""
    mapping = two_backends()
    slow = {
        **mapping,
        "efficiency": {"compute": 0.5},
        "provenance": {**mapping["provenance"], "efficiency": {"kind": "estimated", "source": "a test"}},
    }
    for source in ("vllm", "sglang"):
        usual, half = (HardwareProfile.from_mapping(as_measured_with(one, source)) for one in (mapping, slow))
        rates = [card.gemm("bf16").roofline.flops_per_s for card in (usual, half)]
        assert rates[1] == rates[0] / 2
