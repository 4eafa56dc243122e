"""How uncertain kernels are: what the fit leaves open beside what it misses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from step_times import parts, scenario

from sim.hardware import Roofline
from sim.hardware.efficiency import CLASSES
from sim.planning.error_bar import Part, total_of
from sim.planning.kernel_error import coefficient_spread, kernel_error


def test_a_time_is_as_uncertain_as_what_it_is_made_of() -> None:
    """Bandwidth known to 10 % alone makes a memory-bound layer uncertain by 10 %, a launch by nothing."""
    roofline = Roofline(flops_per_s=1e15, bytes_per_s=1e12, exponent=2.0, overhead_s=1e-6)
    covariance = {"flops_per_s": (0.0, 0.0), "bytes_per_s": (0.0, 0.01)}
    bound = lambda own: own.seconds(np.array([1.0]), np.array([1e9]))  # noqa: E731
    launch = lambda own: own.seconds(np.array([1.0]), np.array([1.0]))  # noqa: E731
    assert coefficient_spread(roofline, covariance, bound) == pytest.approx(0.1, rel=5e-3)
    assert coefficient_spread(roofline, covariance, launch) < 1e-6


def test_what_is_fitted_together_is_uncertain_together() -> None:
    """Two rates that err against each other leave their sum alone; that err alike, they add up."""
    roofline = Roofline(flops_per_s=1e12, bytes_per_s=1e12, exponent=1.0, overhead_s=0.0)
    balanced = lambda own: own.seconds(np.array([1e9]), np.array([1e9]))  # noqa: E731

    def spread(correlation: float) -> float:
        c = 0.04 * correlation
        covariance = {"flops_per_s": (0.04, c), "bytes_per_s": (c, 0.04)}
        return coefficient_spread(roofline, covariance, balanced)

    assert spread(-1.0) == pytest.approx(0.0, abs=1e-3)
    assert spread(0.0) == pytest.approx(0.2 / np.sqrt(2), rel=5e-3)
    assert spread(1.0) == pytest.approx(0.2, rel=5e-3)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_every_class_has_its_error(kind: str, kv_cache_dtype: str) -> None:
    """At least the held-out error where there is one; a fifth where the coefficients are an estimate."""
    asked = scenario("h100-80gb-sxm", tensor_parallel_size=2, kv_cache_dtype=kv_cache_dtype)
    error, words = kernel_error(asked, kind)
    profile, _ = parts(asked)
    own = f"kernels.{kind}" + {"gemm": ".bf16", "all_reduce": ".2"}.get(kind, "")
    if kv_cache_dtype == "fp8" and kind.startswith("attention"):
        own += "_fp8"
    held_out = profile.provenance(own).error_median_pct
    if held_out is None:
        assert error == 0.2
    else:
        assert held_out / 100 <= error < held_out / 100 + 0.1
    assert own in words


def test_the_covariance_widens_the_error() -> None:
    """The same scenario with coefficients known worse has a wider bar, and says what it is of."""
    asked = scenario("h100-80gb-sxm")
    names = ("flops_per_s", "bytes_per_s", "exponent", "overhead_s")
    wide = {name: [0.01 if name == other else 0.0 for other in names] for name in names}
    provenance = {**asked.hardware["provenance"]}
    provenance["kernels.gemm.bf16"] = {**provenance["kernels.gemm.bf16"], "covariance": wide}
    wider = replace(asked, hardware={**asked.hardware, "provenance": provenance})
    held_out = provenance["kernels.gemm.bf16"]["error_median_pct"] / 100
    error, words = kernel_error(wider, "gemm")
    assert error > np.hypot(held_out, 0.07)
    assert "spread of its coefficients" in words


def test_errors_of_their_own_add_up_in_quadrature() -> None:
    """3 % and 4 % are 5 % either way; with a sampling error of 12 % upwards they are 13 % there."""
    parts_of_it = {name: Part(share, 1.0, share, "a test") for name, share in (("a", 0.03), ("b", 0.04))}
    low, high = total_of(10.0, (10.0, 10.0 * np.exp(0.12)), parts_of_it)
    assert (np.log(10.0 / low), np.log(high / 10.0)) == pytest.approx((0.05, 0.13))
