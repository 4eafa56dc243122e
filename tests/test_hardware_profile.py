"""The shipped GPUs: readable, physical, with an origin for every number; and the profile's lookups."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim.faults import InputFault
from sim.hardware import HardwareProfile
from sim.model import ModelSpec
from sim.scenario import find

FOLDER = Path(__file__).parents[1] / "hardware_profiles"
MEASURED = [
    "a100-80gb-sxm",
    "b200-180gb-sxm",
    "h100-80gb-sxm",
    "h200-141gb-sxm",
    "l40s-48gb-pcie",
    "rtx-pro-6000-96gb",
]
ESTIMATED = [
    "a100-40gb-sxm",
    "a10g-24gb-pcie",
    "a800-80gb-sxm",
    "h100-80gb-pcie",
    "h100-94gb-nvl",
    "h20-141gb-sxm",
    "h20-96gb-sxm",
    "l4-24gb-pcie",
    "mi300x-192gb",
    "rtx-3090-24gb",
    "rtx-4090-24gb",
    "rtx-a6000-48gb",
]
CARDS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
LLAMA_3_8B = ModelSpec(
    name="llama-3-8b",
    layers=32,
    hidden_size=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    max_position_embeddings=8192,
)


def mapping(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def card(name: str) -> HardwareProfile:
    return HardwareProfile.from_mapping(mapping(name))


def test_every_card_is_named_here() -> None:
    """A new one goes into one of the two lists: the laws for both differ."""
    assert sorted(MEASURED + ESTIMATED) == CARDS


@pytest.mark.parametrize("name", CARDS)
def test_rates_are_below_the_datasheet(name: str) -> None:
    """No kernel computes or reads faster than the card can; the driver reports less than the label."""
    profile = card(name)
    for dtype, gemm in profile.kernels.gemm.items():
        roofline = gemm.roofline
        assert 0.3 * profile.peak_flops(dtype) < roofline.flops_per_s < profile.peak_flops(dtype)
        assert 0.6 < roofline.bytes_per_s / profile.memory_bandwidth_bytes_per_s < 1
    for kv_dtype in ("bf16", "fp8"):
        decode, prefill = profile.decode_attention(kv_dtype), profile.prefill_attention(kv_dtype)
        assert decode.bytes_per_s < profile.memory_bandwidth_bytes_per_s
        assert prefill.flops_per_s < profile.peak_flops("bf16")
    label_bytes = int(re.findall(r"(\d+)gb", name)[0]) * 1e9
    assert 0.98 * label_bytes < profile.memory_bytes < 1.075 * label_bytes  # GB, or GiB


@pytest.mark.parametrize("name", MEASURED)
def test_decoding_and_prefill_take_what_a_server_takes(name: str) -> None:
    """A decode GEMM reads at 55-95 % of the bandwidth, a prefill GEMM computes at 60-97 % of the peak."""
    profile = card(name)
    seconds = profile.gemm("bf16").seconds(np.array([8.0, 8192.0]), 28672, 8192)
    memory_s = 28672 * 8192 * 2 / profile.memory_bandwidth_bytes_per_s
    compute_s = 2 * 8192 * 28672 * 8192 / profile.peak_flops("bf16")
    assert 0.55 < memory_s / seconds[0] < 0.95
    assert 0.6 < compute_s / seconds[1] < 0.97


@pytest.mark.parametrize("name", CARDS)
def test_a_decode_step_is_bound_by_the_weights(name: str) -> None:
    """One sequence of Llama-3-8B takes what its weights take at the datasheet's bandwidth, or up to twice.

    All that a step computes on the GPU, at a context of 1,000 tokens; weights without the embedding table.
    """
    profile, model = card(name), LLAMA_3_8B
    weights_s = (model.weight_bytes("bf16", 1) - 2 * 128256 * 4096) / profile.memory_bandwidth_bytes_per_s
    assert weights_s < decode_step_s(profile, model, 1000) < 2 * weights_s


def decode_step_s(profile: HardwareProfile, model: ModelSpec, context_tokens: int) -> float:
    """GPU time of one sequence's next token."""
    gemm, attention = profile.gemm("bf16"), profile.decode_attention("bf16")
    kv_bytes = context_tokens * model.kv_bytes_per_token("bf16", 1) / model.layers
    layer_s = (
        sum(gemm.seconds(1.0, n, k) for n, k in model.layer_gemms(1))
        + attention.smooth_s(attention.load_s(kv_bytes, model.kv_heads))
        + profile.kernels.elementwise.seconds(model.elementwise_bytes_per_token(1))
    )
    return float(model.layers * layer_s + gemm.seconds(1.0, *model.lm_head_gemm(1)))


@pytest.mark.parametrize("name", MEASURED)
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


@pytest.mark.parametrize("name", ESTIMATED)
def test_estimated_means_a_formula_and_no_errors(name: str) -> None:
    """Kernel coefficients that were scaled say from which card and by what; they claim no held-out errors."""
    profile = card(name)
    for dtype in profile.kernels.gemm:
        origin = profile.provenance(f"kernels.gemm.{dtype}.bytes_per_s")
        assert (origin.kind, origin.points, origin.error_median_pct) == ("estimated", None, None)
        assert any(base in origin.source for base in MEASURED)
        assert " x " in origin.source
    assert all(key in profile.provenances for key in ("kernels.attention_decode", "kernels.all_reduce"))
    measured = {key for key, origin in profile.provenances.items() if origin.kind == "measured"}
    assert measured <= {"memory_bytes"}


@pytest.mark.parametrize(
    ("name", "base", "bytes_ratio", "flops_ratio"),
    [
        ("a100-40gb-sxm", "a100-80gb-sxm", 1555 / 2039, 1.0),
        ("a10g-24gb-pcie", "a100-80gb-sxm", 600 / 2039, 70 / 312),
        ("l4-24gb-pcie", "l40s-48gb-pcie", 300 / 864, 72 / 350),
        ("rtx-4090-24gb", "l40s-48gb-pcie", 1008 / 864 * 16 / 15, (2.619 / 3.12 * 1.652) / 2.417),
    ],
)
def test_estimates_are_ratios_of_a_measured_card(
    name: str, base: str, bytes_ratio: float, flops_ratio: float
) -> None:
    """A large decode batch's KV reads go by the bandwidths, a large prefill by what bounds both cards."""
    scaled, measured = card(name), card(base)
    for kernel in ("gemm", "attention"):
        ours, theirs = (
            p.gemm("bf16").roofline if kernel == "gemm" else p.decode_attention("bf16")
            for p in (scaled, measured)
        )
        assert ours.bytes_per_s / theirs.bytes_per_s == pytest.approx(bytes_ratio, rel=1e-3)
        assert ours.exponent == theirs.exponent
        assert ours.overhead_s == theirs.overhead_s
    rates = [
        (p.gemm("bf16").roofline.flops_per_s, p.prefill_attention("bf16").flops_per_s)
        for p in (scaled, measured)
    ]
    for ours_per_s, theirs_per_s in zip(*rates, strict=True):
        assert ours_per_s / theirs_per_s == pytest.approx(flops_ratio, rel=1e-3)


def test_the_smaller_a100_decodes_slower_and_prefills_as_fast() -> None:
    """Same chip, slower memory: reading 1 GB of weights takes 2039 / 1555 as long, 8192 tokens 1-2 % more."""
    small, large = card("a100-40gb-sxm"), card("a100-80gb-sxm")
    weights = [
        p.gemm("bf16").seconds(1.0, 65536, 8192) - p.gemm("bf16").roofline.overhead_s for p in (small, large)
    ]
    assert weights[0] / weights[1] == pytest.approx(2039 / 1555, rel=0.01)
    prefill = [p.gemm("bf16").seconds(8192.0, 28672, 8192) for p in (small, large)]
    assert 1.0 < prefill[0] / prefill[1] < 1.02
    slowdown = decode_step_s(small, LLAMA_3_8B, 1000) / decode_step_s(large, LLAMA_3_8B, 1000)
    assert 1.2 < slowdown < 2039 / 1555  # overheads do not scale


@pytest.mark.parametrize("name", ["a10g-24gb-pcie", "l4-24gb-pcie", "rtx-4090-24gb"])
def test_a_ring_over_pcie_carries_2_n_minus_1_over_n_of_each_byte(name: str) -> None:
    """What it takes per byte grows from 1 link pass for 2 GPUs to 1.5 for 4 and 1.75 for 8."""
    per_byte = [1 / card(name).all_reduce(n).bytes_per_s for n in (2, 4, 8)]
    assert per_byte[1] / per_byte[0] == pytest.approx(1.5, rel=1e-3)
    assert per_byte[2] / per_byte[0] == pytest.approx(1.75, rel=1e-3)
    assert 1 / per_byte[0] < card(name).link.bandwidth_bytes_per_s / 2


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb-sxm"),
        ("A100 40GB", "a100-40gb-sxm"),
        ("rtx 4090", "rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090-24gb"),
        ("NVIDIA L4", "l4-24gb-pcie"),
        ("A10G", "a10g-24gb-pcie"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-96gb"),
        ("NVIDIA B200", "b200-180gb-sxm"),
    ],
)
def test_cards_are_found_by_what_people_and_drivers_call_them(written: str, name: str) -> None:
    """Whatever the case."""
    assert find("hardware", written).stem == name


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
    native = card("h100-80gb-sxm").gemm("fp8")
    assert native.activation_bytes == (4 if native.quantise_bytes_per_s is None else 1)
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
        "link.kind must be one of nvlink, xgmi, pcie (got 'infiniband')",
    ):
        assert sentence in text


def test_a_section_left_out_is_one_sentence() -> None:
    """Not one for each of its keys."""
    broken = mapping("h100-80gb-sxm")
    del broken["price"]
    with pytest.raises(InputFault) as raised:
        HardwareProfile.from_mapping(broken)
    assert len(raised.value.faults) == 1


# -- efficiencies ------------------------------------------------------------------------------------


def _efficient(**shares: float) -> HardwareProfile:
    slowed = mapping("h100-80gb-sxm")
    slowed["efficiency"] = shares
    slowed["provenance"]["efficiency"] = {"kind": "estimated", "source": "a test"}
    return HardwareProfile.from_mapping(slowed)


def test_an_efficiency_slows_what_it_is_of() -> None:
    """At half the bandwidth a decode step's weights and its cache take twice as long, and prefill as long."""
    whole, half = _efficient(), _efficient(memory_bandwidth=0.5)
    a, b = whole.kernels, half.kernels
    assert b.gemm["bf16"].roofline.bytes_per_s == a.gemm["bf16"].roofline.bytes_per_s / 2
    assert b.gemm["bf16"].roofline.flops_per_s == a.gemm["bf16"].roofline.flops_per_s
    assert b.attention_decode.bytes_per_s == a.attention_decode.bytes_per_s / 2
    assert b.elementwise.bytes_per_s == a.elementwise.bytes_per_s / 2
    assert b.attention_prefill == a.attention_prefill
    assert b.all_reduce == a.all_reduce
    assert half.efficiency == {"compute": 1.0, "memory_bandwidth": 0.5, "link": 1.0}


def test_all_efficiencies_and_no_launches_slow_everything_alike() -> None:
    """Without overheads, every operation at 80 % takes 1.25 times as long."""
    shares = dict.fromkeys(("compute", "memory_bandwidth", "link"), 0.8)
    whole, slow = _efficient(), _efficient(**shares)
    gemm = whole.kernels.gemm["bf16"]
    ratio = gemm.seconds(64, 4096, 4096) / gemm.smooth_s(64, 4096, 4096)  # a residual is of the launch too
    launch_s = ratio * gemm.roofline.overhead_s
    one, other = whole.gemm("bf16").seconds(64, 4096, 4096), slow.gemm("bf16").seconds(64, 4096, 4096)
    assert other - launch_s == pytest.approx((one - launch_s) / 0.8)
    one, other = whole.all_reduce(4).seconds(1e6), slow.all_reduce(4).seconds(1e6)
    assert other == pytest.approx(one / 0.8)


def test_an_efficiency_that_is_none_is_a_sentence() -> None:
    """Zero, a text and a name that is none are told together."""
    broken = mapping("h100-80gb-sxm")
    broken["efficiency"] = {"compute": 0, "link": "fast", "disk": 1}
    with pytest.raises(InputFault) as fault:
        HardwareProfile.from_mapping(broken)
    told = str(fault.value)
    assert "efficiency.compute" in told
    assert "efficiency.link" in told
    assert "efficiency.disk" in told
