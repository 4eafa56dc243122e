"""How long prompts and outputs are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from length_cases import COUNT, LENGTHS, MIXTURE, NORMAL_999, TABLE, drawn, workload_of
from scipy import stats

from sim.faults import InputFault
from sim.workload import generate, mean_context_tokens, mean_tokens
from sim.workload.distributions import geometric, lognormal, lognormal_mixture, quantile_table


def assert_mean(values: np.ndarray, mean: float, slack: float = 0.0) -> None:
    """The sample mean lies within the central limit's 99.9 % bound of *mean* (and *slack* for rounding)."""
    bound = NORMAL_999 * values.std() / math.sqrt(len(values))
    assert abs(values.mean() - mean) <= bound + slack


@pytest.mark.parametrize("kind", LENGTHS)
def test_draws_have_the_stated_moments(kind: str) -> None:
    """Mean prompt, mean output and E[o p + o^2/2] / E[o] of what is drawn are those that are computed."""
    prompt, output = drawn(LENGTHS[kind])
    prompt_mean, output_mean = mean_tokens(workload_of(LENGTHS[kind]))
    assert_mean(prompt, prompt_mean, slack=1e-3)
    assert_mean(output, output_mean, slack=1e-3)
    context = mean_context_tokens(workload_of(LENGTHS[kind]))
    rounding = 1 / 24  # E[(round(o) - o)^2] / 2 = 1/24
    assert_mean(output * prompt + output**2 / 2 - context * output, 0.0, slack=rounding + 0.01)


@pytest.mark.parametrize("kind", LENGTHS)
def test_more_requests_begin_with_the_fewer(kind: str) -> None:
    """Prefix property: request i has the same arrival, lengths and patience in a run of any length."""
    workload = workload_of(LENGTHS[kind]) | {"patience": {"kind": "exponential", "mean_s": 30}}
    runs: list[dict[str, Any]] = [{"requests": 100}, {"requests": 1000}, {"duration_s": 300}]
    first, *others = (generate(workload, {"rate_per_s": 2}, run | {"seed": 8}) for run in runs)
    for other in others:
        for column in ("arrival_s", "prompt_tokens", "output_tokens", "patience_s"):
            assert np.array_equal(getattr(first, column), getattr(other, column)[:100]), column


def test_one_source_does_not_move_another() -> None:
    """Arrivals are the same under other lengths, prompts under other outputs, and all without patience."""
    run = {"requests": 200, "seed": 4}
    lengths = LENGTHS["lognormal"]
    one = generate(workload_of(lengths), {"rate_per_s": 2}, run)
    patient = {"patience": {"kind": "fixed", "mean_s": 1.5}}
    other = generate(
        workload_of(lengths | {"output_mean": 20, "output_cv": 2}) | patient, {"rate_per_s": 2}, run
    )
    assert np.array_equal(one.arrival_s, other.arrival_s)
    assert np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert one.patience_s is None
    assert other.patience_s is not None
    assert other.patience_s.tolist() == [1.5] * 200


@pytest.mark.parametrize("kind", ["lognormal", "mixture", "table"])
def test_prompt_and_output_are_independent(kind: str) -> None:
    """Their rank correlation is within the 99.9 % bound of zero."""
    prompt, output = drawn(LENGTHS[kind], 10_000)
    assert abs(stats.spearmanr(prompt, output).statistic) * math.sqrt(10_000) < NORMAL_999


def test_exponential_patience() -> None:
    """Patience follows 1 - exp(-t / mean) (Kolmogorov-Smirnov, 99.9 %) and no other column."""
    workload = workload_of(LENGTHS["fixed"]) | {"patience": {"kind": "exponential", "mean_s": 20.0}}
    requests = generate(workload, {"rate_per_s": 1}, {"requests": 10_000, "seed": 6})
    patience_s = requests.patience_s
    assert patience_s is not None
    assert stats.kstest(patience_s, stats.expon(scale=20.0).cdf).pvalue > 0.001
    gaps = np.diff(requests.arrival_s, prepend=0)
    assert abs(np.corrcoef(gaps, patience_s)[0, 1]) * math.sqrt(10_000) < NORMAL_999


def test_lognormal_has_its_mean_and_cv() -> None:
    """Before rounding: mean 500 and cv 0.8 by the moments of the underlying normal, and that shape."""
    length = lognormal(500, 0.8)
    assert length.mean == pytest.approx(500, rel=1e-6)
    assert length.mean_square == pytest.approx(500**2 * (1 + 0.8**2), rel=1e-6)
    sigma = math.sqrt(math.log(1 + 0.8**2))
    shape = stats.lognorm(s=sigma, scale=500 / math.sqrt(1 + 0.8**2))
    assert stats.kstest(length.draw(1, "x", 10_000), shape.cdf).pvalue > 0.001


def test_lognormal_without_spread_is_fixed() -> None:
    """cv 0 gives the mean every time."""
    assert set(lognormal(500, 0).draw(1, "x", 50).round(9)) == {500.0}


def test_mixture_takes_its_components_by_weight_and_clips() -> None:
    """Two components far apart: their shares are binomial; nothing lies beyond the limits."""
    draws = lognormal_mixture([0.3, 0.7], [2, 9], [0.1, 0.1], 6, 9000).draw(7, "x", COUNT)
    bound = NORMAL_999 * math.sqrt(COUNT * 0.3 * 0.7)
    assert abs(np.count_nonzero(draws < 100) - 0.3 * COUNT) < bound
    assert (draws.min(), draws.max()) == (6, 9000)


@pytest.mark.parametrize(("least", "most"), [(1, math.inf), (50, 900), (700, 710)])
def test_moments_of_a_clipped_mixture(least: float, most: float) -> None:
    """The closed form equals numerical integration over the quantiles (midpoint rule, 2e5 points)."""
    length = lognormal_mixture([0.4, 0.6], [5, 6.5], [0.5, 0.8], least, most)
    shares = (np.arange(200_000) + 0.5) / 200_000
    parts = [
        np.clip(np.exp(mu + sigma * stats.norm.ppf(shares)), least, most)
        for mu, sigma in ((5, 0.5), (6.5, 0.8))
    ]
    for power, moment in ((1, length.mean), (2, length.mean_square)):
        assert moment == pytest.approx(
            0.4 * (parts[0] ** power).mean() + 0.6 * (parts[1] ** power).mean(), rel=1e-3
        )


def test_table_is_straight_in_the_logarithm() -> None:
    """A quarter of the draws lies in each quarter, and ln(tokens) is uniform between two points."""
    draws = quantile_table([0, 0.25, 1], [10, 100, 1000]).draw(9, "x", COUNT)
    low = draws[draws < 100]
    assert abs(len(low) - COUNT / 4) < NORMAL_999 * math.sqrt(COUNT * 3 / 16)
    assert stats.kstest(np.log10(low), stats.uniform(1, 1).cdf).pvalue > 0.001


def test_geometric_counts() -> None:
    """P(n) = (1 - 1/m)^(n-1) / m for m = 5 (chi-square over 1 .. 19 and the rest); m = 1 is always 1."""
    draws = geometric(5).draw(4, "x", COUNT)
    observed = np.bincount(np.minimum(draws.astype(int), 20), minlength=21)[1:]
    shares = 0.8 ** np.arange(19) / 5
    expected = COUNT * np.append(shares, 1 - shares.sum())
    assert ((observed - expected) ** 2 / expected).sum() < stats.chi2.ppf(0.999, 19)
    assert geometric(1).draw(4, "x", 9).tolist() == [1.0] * 9


def test_lengths_are_whole_and_at_least_one() -> None:
    """Rounded to the nearest integer; a distribution near zero gives ones."""
    tiny = {"quantiles": [0, 0.5, 1], "tokens": [0.01, 0.3, 2.4]}
    prompt, _ = drawn({"kind": "table", "prompt": tiny, "output": tiny}, 2000)
    assert prompt.dtype == np.int64
    assert set(prompt.tolist()) == {1, 2}
    near_eight = {"quantiles": [0, 1], "tokens": [7.51, 8.49]}
    assert set(drawn({"kind": "table", "prompt": near_eight, "output": near_eight}, 2000)[0]) == {8}


def test_a_trace_keeps_its_pairs(tmp_path: Path) -> None:
    """Rows are replayed in order; beyond the last, whole rows are drawn, each about equally often."""
    path = tmp_path / "pairs.csv"
    path.write_text(
        "prompt_tokens,output_tokens\n" + "".join(f"{p},{p * p}\n" for p in range(1, 11)), encoding="utf-8"
    )
    prompt, output = drawn({"kind": "trace", "path": path}, 10_010)
    assert prompt[:10].tolist() == list(range(1, 11))
    assert np.array_equal(output, prompt**2)
    observed = np.bincount(prompt[10:], minlength=11)[1:]
    assert ((observed - 1000.0) ** 2 / 1000).sum() < stats.chi2.ppf(0.999, 9)
    assert np.array_equal(drawn({"kind": "trace", "path": path}, 500)[0], prompt[:500])
    p, o = prompt[:10], output[:10]
    context = mean_context_tokens(workload_of({"kind": "trace", "path": path}))
    assert context == pytest.approx((o * p + o**2 / 2).sum() / o.sum())


@pytest.mark.parametrize(
    ("lengths", "sentences"),
    [
        ({"kind": "log-normal"}, ["lengths.kind log-normal is unknown; did you mean lognormal?"]),
        (
            {"kind": "lognormal", "prompt_mean": 0, "output_mean": 10, "prompt_cv": 1, "output_cv": -1},
            [
                "lengths.prompt_mean must be at least 1 (got 0)",
                "lengths.output_cv must be at least 0 (got -1)",
            ],
        ),
        (
            {"kind": "table", "prompt": {"quantiles": [0, 0.5], "tokens": [1, 2]}, "output": TABLE},
            ["lengths.prompt.quantiles must rise from 0 to 1 (got [0, 0.5])"],
        ),
        (
            {
                "kind": "table",
                "prompt": {"quantiles": [0, 1], "tokens": [3, 2]},
                "output": TABLE | {"tokens": [1]},
            },
            [
                "prompt.tokens must be above 0 and never fall",
                "output.quantiles and tokens must have one length",
            ],
        ),
        (
            {
                "kind": "mixture",
                "prompt": MIXTURE | {"weights": [0.5, 0.6]},
                "output": MIXTURE | {"min": 5000},
            },
            [
                "prompt.weights must add up to 1 (got [0.5, 0.6])",
                "output.min and max must be at least 1 and in order",
            ],
        ),
    ],
)
def test_faults_of_lengths(lengths: dict[str, Any], sentences: list[str]) -> None:
    """The faults of both sides come together, each with its key, the requirement and what came."""
    with pytest.raises(InputFault) as caught:
        drawn(lengths, 10)
    assert len(caught.value.faults) == len(sentences)
    for sentence, fault in zip(sentences, caught.value.faults, strict=True):
        assert sentence in fault
