"""Kernel tables made profiles: what was put in comes out, what carries no fit is refused in sentences."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sim.calibration.all_reduce import fit_all_reduce
from sim.calibration.backends import backend_of, is_eager
from sim.calibration.check import check
from sim.calibration.fit import fit_kernels, fit_profile, profile_with, standing_in
from sim.calibration.folds import FOLDS, folds_of, shapes_of
from sim.calibration.gemm import fit_gemm
from sim.calibration.profile_text import profile_text
from sim.calibration.smooth import Smooth, fit_logs
from sim.calibration.table import COLUMNS
from sim.faults import InputFault
from sim.hardware import Gemm, HardwareProfile, Roofline
from sim.hardware.sources import as_measured_with
from sim.scenario.references import entry
from sim.scenario.tree import Faults, Place
from sim.scenario.yaml_core import read_text

CARD = "h100-80gb-sxm"
_VLLM, _TRTLLM = "aiconfigurator-vllm", "aiconfigurator-trtllm"
_EDGES = (512, 1024, 2048, 4096, 8192, 16384)
_TOKENS = (1, 4, 16, 64, 65, 256, 1024, 4096)


@cache
def base() -> dict[str, Any]:
    return dict(entry("hardware", CARD))


def profile() -> HardwareProfile:
    return HardwareProfile.from_mapping(base())


def linear_rows(source: str = _VLLM, dtype: str = "bf16", slower: float = 1.0) -> pd.DataFrame:
    """Times of a made-up card: p = 3, 700 TFLOP/s, 2.8 TB/s, 4 us, and a tile step of 20 % after m = 64."""
    m, n, k = (axis.ravel() for axis in np.meshgrid(_TOKENS, _EDGES, _EDGES, indexing="ij"))
    compute_s, memory_s = 2.0 * m * n * k / 7e14, 2.0 * (n * k + m * (n + k)) / 2.8e12
    time_s = (compute_s**3 + memory_s**3) ** (1 / 3) + 4e-6
    time_s = slower * time_s * np.where((m > 64) & (m <= 256), 1.2, 1.0)
    sizes = {"m": m.astype(float), "n": n.astype(float), "k": k.astype(float)}
    return _tidy("gemm", source, dtype, time_s, n_gpus=1.0, **sizes)


def collective_rows(source: str, slower: float = 1.0) -> pd.DataFrame:
    sizes = 2.0 ** np.arange(8, 30)
    time_s = slower * ((5e-6) ** 0.8 + (sizes / 2e11) ** 0.8) ** (1 / 0.8)
    return _tidy("all_reduce", source, "bf16", time_s, n_gpus=4.0, bytes=sizes)


def _tidy(op: str, source: str, dtype: str, time_s: np.ndarray, **sizes: Any) -> pd.DataFrame:
    """Rows as `read_tables` gives them."""
    absent = {name: "" if name == "kv_dtype" else np.nan for name in COLUMNS}
    named = {"gpu": CARD, "op": op, "source": source, "dtype": dtype}
    return pd.DataFrame({**absent, **named, **sizes, "time_us": 1e6 * time_s})


def test_the_coefficients_that_made_a_table_come_back() -> None:
    """Rates and overhead within 5 %, without the step; the residual then has the step, to a per cent."""
    rows = linear_rows()
    fitted = fit_gemm(rows, "bf16", profile())
    section = dict(fitted.section)
    for name, true in (("bytes_per_s", 2.8e12), ("flops_per_s", 7e14), ("overhead_s", 4e-6)):
        assert section[name] == pytest.approx(true, rel=0.1)
    assert "residual" in section
    assert fitted.errors.median_pct < 1.0
    assert fitted.errors.p90_pct < 3.0
    assert fitted.errors.median_pct < fitted.datasheet_errors.median_pct


def test_a_residual_that_does_not_hold_out_is_left_away() -> None:
    """Times that shapes share nothing of but the form: neighbours' noise would only add to one's own."""
    rows = linear_rows()
    smooth = rows[(rows["m"] <= 64) | (rows["m"] > 256)]
    shape = smooth.groupby(["n", "k"]).ngroup().to_numpy()
    noise = np.random.default_rng(3).normal(0, 0.05, shape.max() + 1)[shape]
    fitted = fit_gemm(smooth.assign(time_us=smooth["time_us"] * np.exp(noise)), "bf16", profile())
    assert "residual" not in fitted.section


def test_every_fold_has_a_form_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also two folds whose row numbers add up alike: one form of everything, and ten without a tenth each."""
    fits: list[int] = []

    def counted(seconds: Any, measured_s: np.ndarray, *given: Any) -> Smooth:
        fits.append(len(measured_s))
        return fit_logs(seconds, measured_s, *given)

    monkeypatch.setattr("sim.calibration.gemm.fit_logs", counted)
    rows = linear_rows()
    few = rows[rows["n"].isin(_EDGES[:4]) & rows["m"].isin(_TOKENS[:2])]
    fold = folds_of(shapes_of([few["n"].to_numpy(), few["k"].to_numpy()]))
    sums = [int(np.flatnonzero(fold == number).sum()) for number in range(FOLDS)]
    assert len(set(sums)) < FOLDS
    fit_gemm(few, "bf16", profile())
    assert len(fits) == 1 + FOLDS


def test_more_shapes_make_coefficients_surer() -> None:
    """The covariance is of shapes: half of them leaves a wider one, twice the rows of each does not count."""
    noisy = linear_rows()
    noisy["time_us"] *= np.exp(np.random.default_rng(1).normal(0, 0.05, len(noisy)))
    twice = pd.concat([noisy, noisy], ignore_index=True)
    few = noisy[noisy["n"].isin(_EDGES[::2])]

    def spread(rows: pd.DataFrame) -> float:
        return float(np.sqrt(fit_gemm(rows, "bf16", profile()).covariance["bytes_per_s"][1]))

    assert spread(twice) == pytest.approx(spread(noisy), rel=0.05)
    assert spread(few) > spread(noisy)


def test_each_backend_keeps_its_own_kernels() -> None:
    """vLLM's go where the profile's own are, those of others beside; checked, each row finds its own."""
    table = pd.concat([
        linear_rows(), linear_rows(_TRTLLM, slower=1.5),
        collective_rows("aiconfigurator-custom_allreduce-vllm_custom_graph"),
        collective_rows("aiconfigurator-custom_allreduce-vllm_custom_eager", slower=4.0),
    ])  # fmt: skip
    fitted = fit_profile(table, base())
    card = HardwareProfile.from_mapping(fitted)
    other = HardwareProfile.from_mapping(as_measured_with(fitted, "trtllm"))
    ours, theirs = card.gemm("bf16"), other.gemm("bf16")
    assert theirs.seconds(64, 4096, 4096) == pytest.approx(1.5 * ours.seconds(64, 4096, 4096), rel=0.03)
    assert card.all_reduce(4, eager=True).seconds(1e6) == pytest.approx(
        4 * card.all_reduce(4).seconds(1e6), rel=0.03
    )
    assert other.provenance("kernels.gemm.bf16.exponent").source.count("trtllm") == 1
    answer = check(card, table)
    assert answer["gemm"]["n"] == len(linear_rows()) * 2
    assert answer["gemm"]["p90_abs_pct"] < 3
    assert answer["all_reduce"]["p90_abs_pct"] < 3
    assert set(answer["gemm"]["by"]) == {f"{_VLLM}/bf16", f"{_TRTLLM}/bf16"}
    assert answer["skipped"] == {}


def test_a_row_of_a_backend_that_is_not_there_is_skipped_and_said() -> None:
    """No other backend stands in for it, unless one is asked for."""
    table = linear_rows("aiconfigurator-another")
    answer = check(profile(), table)
    assert answer["gemm"]["n"] == 0
    assert answer["skipped"] == {f"{CARD} has no kernels of another": len(table)}
    assert check(profile(), table, source="vllm")["gemm"]["n"] == len(table)
    with pytest.raises(InputFault, match="has no kernels of vlm; did you mean vllm"):
        check(profile(), table, source="vlm")


def test_a_fitted_profile_reads_back_as_it_was_written() -> None:
    """Tables, covariance and long sentences included."""
    fitted = fit_profile(linear_rows(), base())
    read = read_text(profile_text(fitted, "One card."), Place("profile"), Faults()).value
    assert read == fitted
    assert "covariance" in read["provenance"]["kernels.gemm.bf16"]


def test_what_it_takes_to_quantise_is_a_rate_of_its_own() -> None:
    """8-bit layers whose inputs are quantised at 1.5 TB/s; 16-bit layers have no such step."""
    rows = linear_rows(dtype="fp8")
    rows = rows[rows["n"].isin(_EDGES[::2]) & rows["k"].isin(_EDGES[::2])]
    true = Gemm(Roofline(1.4e15, 2.8e12, 3.0, 4e-6), 1.0, 1.0, quantise_bytes_per_s=1.5e12)
    rows["time_us"] = 1e6 * true.looped_s(*(rows[name].to_numpy() for name in ("m", "n", "k")))
    fitted = fit_gemm(rows, "fp8", profile())
    assert fitted.section["quantise_bytes_per_s"] == pytest.approx(1.5e12, rel=0.05)
    assert fitted.errors.p90_pct < 1.0
    assert "quantise_bytes_per_s" not in fit_gemm(linear_rows(), "bf16", profile()).section


def test_what_disturbs_a_collective_only_slows_it() -> None:
    """Each size thrice, once three times as slow: the fit is that of the undisturbed times."""
    calm = collective_rows(_VLLM)
    disturbed = pd.concat([calm, calm, calm.assign(time_us=3 * calm["time_us"])], ignore_index=True)
    fits = [fit_all_reduce(rows, 4, "all_reduce", profile()) for rows in (calm, disturbed)]
    for name in ("latency_s", "bytes_per_s", "exponent"):
        assert fits[1].section[name] == pytest.approx(fits[0].section[name], rel=1e-3)


def test_each_group_of_gpus_and_each_16_bit_type_has_its_own_fit() -> None:
    """Two GPUs are no four; bf16 and fp16 may take the same times, as no other types may."""
    four = collective_rows("aiconfigurator-nccl-nccl")
    two = four.assign(n_gpus=2.0, time_us=four["time_us"] / 2)
    rows = linear_rows()
    rows = rows[rows["n"].isin(_EDGES[::2]) & rows["k"].isin(_EDGES[::2])]
    fits, notes = fit_kernels(pd.concat([four, two, rows, rows.assign(dtype="fp16")]), profile())
    assert not notes
    made = {fit.fitted.key: fit.fitted for fit in fits}
    assert set(made) == {"all_reduce.2", "all_reduce.4", "gemm.bf16", "gemm.fp16"}
    latencies = [float(str(made[f"all_reduce.{gpus}"].section["latency_s"])) for gpus in (2, 4)]
    assert latencies[0] == pytest.approx(latencies[1] / 2, rel=0.01)


def test_the_profile_s_own_backend_stays_its_own() -> None:
    """However many rows another one has; a class of too few rows beside others is left out, and said."""
    few = linear_rows().groupby(["n", "k"]).head(1).head(4)
    table = pd.concat([
        collective_rows("aiconfigurator-custom_allreduce-vllm_custom_graph"),
        collective_rows("aiconfigurator-nccl-nccl", slower=2.0),
        collective_rows("aiconfigurator-nccl-nccl", slower=2.0),
        few, linear_rows(_TRTLLM),
    ])  # fmt: skip
    fits, notes = fit_kernels(table, profile())
    made = profile_with(base(), fits)
    assert made.get("kernel_source", "vllm") == "vllm"
    assert made["kernels"]["gemm"] == base()["kernels"]["gemm"]
    assert made["kernel_sources"]["trtllm"]["gemm"].keys() >= {"bf16"}
    assert notes == [
        "left out: vllm: gemm bf16: 4 rows of 4 shapes (n, k) are too few for a fit; it needs 24 of 6"
    ]


def test_small_weights_that_were_cached_are_read_from_memory_in_a_server() -> None:
    """A loop reads 8 MiB three times as fast as memory could; the table keeps that, the server does not."""
    rows = linear_rows()
    weights = 2.0 * rows["n"] * rows["k"]
    cached = (weights <= 50 * 2**20) & (rows["m"] <= 16)
    rows.loc[cached, "time_us"] = 1.0 + weights[cached] / 9e12 * 1e6
    mapping = copy.deepcopy(base())
    card = HardwareProfile.from_mapping(fit_profile(rows, mapping))
    gemm = card.gemm("bf16")
    assert gemm.looped_s(4, 2048, 2048) == pytest.approx(1e-6 + 2 * 2048**2 / 9e12, rel=0.05)
    assert gemm.seconds(4, 2048, 2048) == pytest.approx(2 * 2048**2 / gemm.roofline.bytes_per_s)
    assert gemm.seconds(4, 8192, 16384) == gemm.looped_s(4, 8192, 16384)


def test_too_few_points_are_refused() -> None:
    """The sentence says how many there are and how many it takes."""
    with pytest.raises(InputFault, match=r"4 rows of 4 shapes .* too few for a fit; it needs"):
        fit_profile(linear_rows().groupby(["n", "k"]).head(1).head(4), base())
    rows = linear_rows()
    with pytest.raises(InputFault, match=r"40 rows of 5 shapes .* too few"):
        fit_profile(rows[(rows["n"] == 512) & rows["k"].isin(_EDGES[:5])], base())
    with pytest.raises(InputFault, match=r"20 rows of 20 shapes .* too few"):
        fit_profile(rows[rows["m"] == 16].head(20), base())
    with pytest.raises(InputFault, match="3 sizes are too few"):
        fit_all_reduce(collective_rows(_VLLM).head(3), 4, "all_reduce", profile())


def test_one_dtype_s_table_does_not_pass_for_another_s() -> None:
    """Rows called fp8 with the times of bf16, and a dtype that the card has no peak for."""
    with pytest.raises(InputFault, match="the bf16 rows have the times of the fp8 rows"):
        fit_profile(pd.concat([linear_rows(), linear_rows(dtype="fp8")]), base())
    with pytest.raises(InputFault, match="does not compute in fp8"):
        fit_profile(linear_rows(dtype="fp8"), dict(entry("hardware", "a100-80gb-sxm")))


def test_a_fit_that_is_worse_than_the_datasheet_is_refused() -> None:
    """Times at the datasheet's rates, but for shapes that are thirty times as slow."""
    rows = linear_rows()
    peak, bandwidth = profile().peak_flops("bf16"), profile().memory_bandwidth_bytes_per_s
    m, n, k = rows["m"], rows["n"], rows["k"]
    sheet_s = np.maximum(2 * m * n * k / peak, 2 * (n * k + m * (n + k)) / bandwidth)
    wild = rows.groupby(["n", "k"]).ngroup() % 5 < 2
    rows["time_us"] = 1e6 * sheet_s * np.where(wild, 30.0, 1.0)
    with pytest.raises(InputFault, match="the datasheet's roofline 0 %"):
        fit_profile(rows, base())


@pytest.mark.parametrize(
    ("source", "backend"),
    [
        (_VLLM, "vllm"),
        ("aiconfigurator-custom_allreduce-sglang_customallreduce_eager", "sglang"),
        ("aiconfigurator-nccl-nccl", "nccl"),
        ("vidur-a100_dgx", "vidur"),
        ("vidur-a100_pairwise_nvlink", "vidur_pairwise"),
        ("kneesim-flashinfer-ragged", "kneesim"),
        ("My Lab 3", "my_lab_3"),
    ],
)
def test_a_source_names_its_backend(source: str, backend: str) -> None:
    """Whose kernels they are, not who published them."""
    assert backend_of(source) == backend
    assert is_eager(source) == source.endswith("eager")


def test_a_profile_that_stands_in_for_a_new_card_says_so_of_each_number() -> None:
    """Only what is fitted afterwards is measured; the table's name for the card is the profile's alias."""
    stand_in = standing_in(base(), ["RTX 5090"])
    read = HardwareProfile.from_mapping(stand_in)
    assert read.aliases == ("RTX 5090",)
    assert "kernels.gemm.bf16" in read.estimated_keys()
    assert "kernels.gemm.bf16" not in profile().estimated_keys()
    assert read.provenance("memory_bytes").source.startswith(f"that of {CARD}: ")
