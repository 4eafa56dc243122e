"""Cards that were not measured, made from those that were by ratios of datasheets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sim.calibration.scale import rescale, scaled_files, scaled_profile
from sim.cli.calibrate_scale import scale
from sim.faults import InputFault
from sim.hardware import HardwareProfile
from sim.scenario import entry

SOURCE = "h100-80gb-sxm"


def half(**how: Any) -> dict[str, Any]:
    """Half of an H100 in everything, to be made from it."""
    own = entry("hardware", SOURCE)
    own["name"] = "half"
    own["peak_flops_per_s"] = {dtype: peak / 2 for dtype, peak in own["peak_flops_per_s"].items()}
    own["memory_bandwidth_bytes_per_s"] /= 2
    own["link"] = {**own["link"], "bandwidth_bytes_per_s": own["link"]["bandwidth_bytes_per_s"] / 2}
    own["scaled"] = {"from": SOURCE, **how}
    own["provenance"]["scaled"] = {"kind": "estimated", "source": "half"}
    return own


def made(**how: Any) -> HardwareProfile:
    return HardwareProfile.from_mapping(scaled_profile(half(**how), lambda name: entry("hardware", name)))


def test_half_a_card_takes_twice_as_long_where_work_is_long() -> None:
    """Linear layers, attention and elementwise work, beside calls of a fixed time; to four digits."""
    whole, card = HardwareProfile.from_mapping(entry("hardware", SOURCE)), made()
    for name in ("gemm", "decode", "prefill"):
        pair = [_long_s(profile, name) for profile in (whole, card)]
        assert pair[1] / pair[0] == pytest.approx(2, rel=2e-3), name
    assert card.kernels.elementwise.bytes_per_s == pytest.approx(
        whole.kernels.elementwise.bytes_per_s / 2, rel=1e-3
    )
    assert card.all_reduce(8).bytes_per_s == pytest.approx(whole.all_reduce(8).bytes_per_s / 2, rel=1e-3)
    assert card.all_reduce(8).latency_s == whole.all_reduce(8).latency_s


def _long_s(profile: HardwareProfile, name: str) -> float:
    if name == "gemm":
        return profile.gemm("bf16").roofline.seconds(1e15, 1e12)
    if name == "decode":
        return profile.decode_attention("bf16").smooth_s(profile.decode_attention("bf16").load_s(1e12, 1e6))
    return profile.prefill_attention("bf16").smooth_s(1e16, 1e9)


def test_what_is_said_goes_before_the_datasheets() -> None:
    """compute, memory_bandwidth, heads and link; fp8 follows compute too."""
    card = made(compute=0.1, memory_bandwidth=0.2, heads=3.0, link=0.4)
    whole = HardwareProfile.from_mapping(entry("hardware", SOURCE))
    ratios = [
        card.gemm("fp8").roofline.flops_per_s / whole.gemm("fp8").roofline.flops_per_s,
        card.gemm("bf16").roofline.bytes_per_s / whole.gemm("bf16").roofline.bytes_per_s,
        card.kernels.attention_decode.head_sequence_s / whole.kernels.attention_decode.head_sequence_s,
        card.all_reduce(2).bytes_per_s / whole.all_reduce(2).bytes_per_s,
    ]
    assert ratios == pytest.approx([0.1, 0.2, 3.0, 0.4], rel=1e-3)


def test_a_ring_goes_by_two_gpus_and_a_bridge_ends_with_them() -> None:
    """n / (2 (n - 1)) of the rate of two; over more than `link_gpus` there is no all-reduce."""
    ring = made(ring=True, link_from="l40s-48gb-pcie", link=1.0)
    two, eight = ring.all_reduce(2).bytes_per_s, ring.all_reduce(8).bytes_per_s
    assert eight == pytest.approx(two * 8 / 14, rel=1e-3)
    assert sorted(made(link_gpus=2).kernels.all_reduce) == [2]


def test_residuals_stay_with_the_chip() -> None:
    """A table of what the form misses is the same chip's, and no other's."""
    table = {"m": [1, 64], "permille": "100 -50\n"}
    source = entry("hardware", SOURCE)
    source["kernels"]["gemm"]["bf16"]["residual"] = table
    found = []
    for same in (True, False):
        kernels = scaled_profile(half(same_chip=same), lambda name: source)["kernels"]
        found.append(kernels["gemm"]["bf16"].get("residual"))
    assert found == [table, None]


def test_nothing_is_made_from_what_was_made() -> None:
    """Estimates of estimates are refused, and a profile that says from no card."""
    with pytest.raises(InputFault, match=re.escape("scaled.from l4-24gb-pcie is scaled itself")):
        scaled_profile({**half(), "scaled": {"from": "l4-24gb-pcie"}}, lambda name: entry("hardware", name))
    with pytest.raises(InputFault, match="has no `scaled`"):
        scaled_profile(entry("hardware", SOURCE), lambda name: entry("hardware", name))


def test_a_datasheet_becomes_a_profile(tmp_path: Path) -> None:
    """One command, and again without effect; every kernel is marked as an estimate."""
    text = (Path(__file__).parents[1] / "hardware_profiles" / "l4-24gb-pcie.yaml").read_text(encoding="utf-8")
    datasheet, _, rest = text.partition("\n# Coefficients")
    origins = rest[rest.index("\nprovenance:") : rest.index("\n  kernels.")]
    path = tmp_path / "mine.yaml"
    path.write_text(datasheet + origins + "\n", encoding="utf-8")
    said = [CliRunner().invoke(scale, [str(path)]).output.splitlines()[-1] for _ in range(2)]
    assert said == ["1 of 1 profiles changed", "0 of 1 profiles changed"]
    profile = HardwareProfile.from_mapping(entry("hardware", str(path)))
    kinds = {key: origin.kind for key, origin in profile.provenances.items() if key.startswith("kernels")}
    assert set(kinds.values()) == {"estimated"}
    assert profile.kernels == HardwareProfile.from_mapping(entry("hardware", "l4-24gb-pcie")).kernels


def test_a_file_without_a_card_to_make_it_from_is_refused(tmp_path: Path) -> None:
    """In a sentence with the file's name."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\n", encoding="utf-8")
    with pytest.raises(InputFault, match=r"mine.yaml has no scaled.from"):
        rescale([path], lambda name: entry("hardware", name))


@pytest.mark.parametrize("path", scaled_files(), ids=lambda path: path.stem)
def test_the_shipped_estimates_are_those_of_the_shipped_measurements(path: Path, tmp_path: Path) -> None:
    """After a measured card was fitted anew, `kneesim calibrate scale` has been run; and they can be used."""
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    assert rescale([copy], lambda name: entry("hardware", name)) == []
    profile = HardwareProfile.from_mapping(entry("hardware", path.stem))
    assert profile.estimated_keys()
    for dtype, gemm in profile.kernels.gemm.items():
        assert gemm.roofline.flops_per_s < profile.peak_flops(dtype)
        assert gemm.roofline.bytes_per_s < 1.02 * profile.memory_bandwidth_bytes_per_s
