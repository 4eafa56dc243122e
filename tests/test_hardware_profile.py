"""The shipped GPUs: readable, physical, with an origin for every number; and the profile's lookups."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim.faults import InputFault
from sim.hardware import HardwareProfile

FOLDER = Path(__file__).parents[1] / "hardware_profiles"
CARDS = ["a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm", "l40s-48gb-pcie"]


def mapping(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def card(name: str) -> HardwareProfile:
    return HardwareProfile.from_mapping(mapping(name))


@pytest.mark.parametrize("name", CARDS)
def test_fitted_rates_are_below_the_datasheet(name: str) -> None:
    """No kernel computes or reads faster than the card can; the driver reports less than the label."""
    profile = card(name)
    for dtype, roofline in profile.kernels.gemm.items():
        assert 0.4 * profile.peak_flops(dtype) < roofline.flops_per_s < profile.peak_flops(dtype)
        assert 0.6 < roofline.bytes_per_s / profile.memory_bandwidth_bytes_per_s < 1
    for kv_dtype in ("bf16", "fp8"):
        decode, prefill = profile.decode_attention(kv_dtype), profile.prefill_attention(kv_dtype)
        assert decode.bytes_per_s < profile.memory_bandwidth_bytes_per_s
        assert prefill.flops_per_s < profile.peak_flops("bf16")
    label_bytes = int(name.split("-")[1].removesuffix("gb")) * 1e9
    assert 0.98 * label_bytes < profile.memory_bytes < 1.07 * label_bytes


@pytest.mark.parametrize("name", CARDS)
def test_decoding_and_prefill_take_what_a_server_takes(name: str) -> None:
    """A decode GEMM reads at 55-95 % of the bandwidth, a prefill GEMM computes at 60-95 % of the peak."""
    profile = card(name)
    seconds = profile.gemm("bf16").seconds(np.array([8.0, 8192.0]), 28672, 8192)
    memory_s = 28672 * 8192 * 2 / profile.memory_bandwidth_bytes_per_s
    compute_s = 2 * 8192 * 28672 * 8192 / profile.peak_flops("bf16")
    assert 0.55 < memory_s / seconds[0] < 0.95
    assert 0.6 < compute_s / seconds[1] < 0.95


@pytest.mark.parametrize("name", CARDS)
def test_measured_means_points_and_held_out_errors(name: str) -> None:
    """Kernel coefficients say how many rows they rest on and how far off they are on shapes not fitted."""
    profile = card(name)
    for key in (
        "kernels.gemm.bf16",
        "kernels.attention_prefill",
        "kernels.attention_decode",
        "kernels.all_reduce.8",
    ):
        origin = profile.provenance(f"{key}.exponent")
        assert origin.kind == "measured"
        assert origin.points is not None
        assert origin.error_median_pct is not None
        assert origin.error_p90_pct is not None
        assert origin.error_median_pct <= origin.error_p90_pct
    assert {"price", "kernels.elementwise"} <= set(profile.estimated_keys())


def test_no_two_cards_share_a_name() -> None:
    """A name or alias, whatever its case, means one card."""
    profiles = [card(name) for name in CARDS]
    names = [{name.lower() for name in (profile.name, *profile.aliases)} for profile in profiles]
    assert len(set().union(*names)) == sum(len(own) for own in names)
    assert [profile.name for profile in profiles] == CARDS


def test_the_longest_prefix_says_where_a_number_comes_from() -> None:
    """The causal weight is an estimate inside a measured section."""
    profile = card("h100-80gb-sxm")
    assert profile.provenance("kernels.attention_prefill.flops_per_s").kind == "measured"
    assert profile.provenance("kernels.attention_prefill.causal_weight").kind == "estimated"
    with pytest.raises(InputFault, match="no provenance covers cooling"):
        profile.provenance("cooling")


def test_half_precision_types_share_their_kernels() -> None:
    """Tensor cores run fp16 and bf16 at one rate, so a table of one serves both."""
    profile = card("a100-80gb-sxm")
    assert profile.gemm("fp16") == profile.gemm("bf16")


def test_weight_only_quantisation_moves_fewer_bytes_at_the_same_rate() -> None:
    """int4 quarters the weights of a small batch's GEMM and changes nothing in a large one's flops."""
    profile = card("h100-80gb-sxm")
    wide, quarter = profile.gemm("bf16"), profile.gemm("int4")
    assert quarter.roofline == wide.roofline
    assert quarter.weight_bytes == wide.weight_bytes / 4
    assert profile.is_weight_only("int4")
    assert not profile.is_weight_only("bf16")
    assert quarter.seconds(1.0, 28672, 8192) < 0.3 * wide.seconds(1.0, 28672, 8192)


def test_fp8_is_native_only_where_it_was_measured() -> None:
    """Hopper and Ada multiply in fp8, an A100 only stores weights so."""
    assert card("h100-80gb-sxm").gemm("fp8").activation_bytes == 4
    a100 = card("a100-80gb-sxm")
    assert a100.is_weight_only("fp8")
    assert a100.gemm("fp8").roofline == a100.gemm("bf16").roofline
    assert a100.peak_flops("fp8") == a100.peak_flops("bf16")


def test_unknown_dtypes_and_group_sizes_are_sentences() -> None:
    """What there is instead is in the message."""
    profile = card("l40s-48gb-pcie")
    with pytest.raises(InputFault, match="weight_dtype fp4 is unknown"):
        profile.gemm("fp4")
    with pytest.raises(InputFault, match="no group of 3 GPUs; it knows 2, 4, 8"):
        profile.all_reduce(3)


def test_every_number_needs_an_origin() -> None:
    """A profile that leaves one out is refused by the number's key."""
    broken = mapping("a100-80gb-sxm")
    del broken["provenance"]["power_w"]
    with pytest.raises(InputFault, match="does not say where power_w comes from"):
        HardwareProfile.from_mapping(broken)


def test_all_faults_of_a_profile_travel_together() -> None:
    """Wrong, missing, misspelt and impossible: each one a sentence with its path."""
    broken = copy.deepcopy(mapping("h100-80gb-sxm"))
    broken["memory_bytes"] = "80GB"
    del broken["kernels"]["gemm"]["bf16"]["exponent"]
    broken["kernels"]["gemm"]["bf16"]["exponnet"] = 2.0
    broken["kernels"]["attention_decode"]["exponent"] = 200
    broken["kernels"]["all_reduce"]["two"] = {"latency_s": 1e-6}
    broken["link"]["kind"] = "infiniband"
    with pytest.raises(InputFault) as raised:
        HardwareProfile.from_mapping(broken)
    text = str(raised.value)
    for sentence in (
        "memory_bytes must be a number above 0 (got '80GB')",
        "kernels.gemm.bf16.exponent is missing",
        "kernels.gemm.bf16.exponnet is unknown; did you mean exponent?",
        "kernels.attention_decode.exponent must be a number above 0 and at most 20 (got 200)",
        "kernels.all_reduce.two must be a number of GPUs",
        "link.kind must be one of nvlink, pcie (got 'infiniband')",
    ):
        assert sentence in text


def test_a_section_left_out_is_one_sentence() -> None:
    """Not one for each of its keys."""
    broken = mapping("h100-80gb-sxm")
    del broken["price"]
    with pytest.raises(InputFault) as raised:
        HardwareProfile.from_mapping(broken)
    assert len(raised.value.faults) == 1
