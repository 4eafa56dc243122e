"""Prompts and outputs that hang together, by a joint table or a correlation; and lengths cut at a cap."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from length_cases import COUNT, JOINT, LENGTHS, NORMAL_999, drawn, workload_of
from scipy import stats

from sim.faults import InputFault
from sim.scenario import load
from sim.workload import generate, mean_context_tokens, mean_tokens
from sim.workload.distributions import fixed, geometric, length_distributions, lognormal, uniform
from sim.workload.pairs import correlated, pair_of


def spearman_bounds(rho: float, count: int) -> tuple[float, float]:
    """The 99.9 % interval of a sample's rank correlation (D. G. Bonett and T. A. Wright, 2000)."""
    width = NORMAL_999 * math.sqrt((1 + rho**2 / 2) / (count - 3))
    return math.tanh(math.atanh(rho) - width), math.tanh(math.atanh(rho) + width)


@pytest.mark.parametrize("kind", [kind for kind in LENGTHS if kind.startswith("correlated")])
def test_a_copula_has_the_rank_correlation(kind: str) -> None:
    """Spearman's correlation of prompt and output is the one asked for, where few values are alike; the
    prompts are those of any other correlation, and each side keeps its own distribution."""
    few_ties = kind not in ("correlated geometric", "correlated uniform", "correlated table")
    asked = LENGTHS[kind]["correlation"]
    prompt, output = drawn(LENGTHS[kind])
    if few_ties and kind != "correlated mixture":
        low, high = spearman_bounds(asked, COUNT)
        assert low < stats.spearmanr(prompt, output).statistic < high
    assert np.array_equal(prompt, drawn(LENGTHS[kind] | {"correlation": -asked / 2})[0])
    alone = drawn({key: value for key, value in LENGTHS[kind].items() if key != "correlation"}, seed=4)
    for one, other in zip((prompt, output), alone, strict=True):
        assert stats.ks_2samp(one, other).pvalue > 0.001


def test_the_mean_product_of_a_copula() -> None:
    """Of two lognormals E[o p] = E[o] E[p] exp(r s1 s2), r the normals' correlation, 2 sin(pi rho / 6); of
    two fixed lengths it is their product."""
    sigma = math.sqrt(math.log(1 + 1.4**2))
    for rho in (-0.99, -0.3, 0.6, 0.99):
        pair = correlated(lognormal(900, 1.4), lognormal(200, 1.4), rho)
        factor = math.exp(2 * math.sin(math.pi * rho / 6) * sigma**2)
        assert pair.prompt_met == pytest.approx(900 * factor, rel=1e-6)
    assert correlated(fixed(3), fixed(5), 0.5).prompt_met == pytest.approx(3)


@pytest.mark.parametrize("kind", [kind for kind in LENGTHS if "correlated" in kind])
def test_the_quadrature_of_a_copula_is_within_a_thousandth(kind: str) -> None:
    """Against the same rule with sixteen times the points, and against the conditional mean by score."""
    lengths = LENGTHS[kind]
    prompt, output = length_distributions(lengths)
    scores, rho = np.linspace(-9, 9, 8001), 2 * math.sin(math.pi * lengths["correlation"] / 6)
    weights = np.exp(-(scores**2) / 2)
    weights /= weights.sum()
    p = np.minimum(prompt.at(scores), lengths.get("max_prompt_tokens", np.inf))  # type: ignore[misc]
    coarse = np.linspace(-9, 9, 801)
    inner = np.exp(-(coarse**2) / 2)
    inner /= inner.sum()
    beside = rho * scores[:, None] + math.sqrt(1 - rho**2) * coarse
    given = output.at(beside.ravel()).reshape(beside.shape) @ inner  # type: ignore[misc]
    exact = float(weights @ (p * given) / (weights @ given))
    assert pair_of(lengths).prompt_met == pytest.approx(exact, rel=1e-3)


def test_a_joint_table_keeps_its_cells() -> None:
    """Each cell has its share (chi-square, 99.9 %), and within one lengths are uniform in the logarithm and
    independent."""
    prompt, output = drawn(JOINT)
    cells, *_ = np.histogram2d(prompt, output, bins=[JOINT["prompt_edges"], JOINT["output_edges"]])
    expected = COUNT * np.array(JOINT["cells"])
    assert cells[expected == 0].sum() == 0
    distance = ((cells - expected) ** 2 / np.where(expected > 0, expected, 1)).sum()
    assert distance < stats.chi2.ppf(0.999, 4)
    inside = (prompt > 100.5) & (prompt < 1000.5) & (output > 20.5)
    jitter = np.random.default_rng(1).uniform(-0.5, 0.5, inside.sum())
    share = (np.log(prompt[inside] + jitter) - np.log(100.5)) / np.log(1000.5 / 100.5)
    assert stats.kstest(share, "uniform").pvalue > 0.001
    rank = stats.spearmanr(prompt[inside], output[inside]).statistic
    assert abs(rank) * math.sqrt(inside.sum()) < NORMAL_999


@pytest.mark.parametrize("kind", ["lognormal", "mixture", "table", "geometric", "uniform"])
def test_values_by_score_are_the_distribution(kind: str) -> None:
    """At normal scores a length has the distribution of its own draws (Kolmogorov-Smirnov, 99.9 %)."""
    for length in length_distributions(LENGTHS[kind]):
        by_score = length.at(np.random.default_rng(5).standard_normal(COUNT))  # type: ignore[misc]
        assert stats.ks_2samp(by_score, length.draw(2, "x", COUNT)).pvalue > 0.001


@pytest.mark.parametrize("correlation", [0.0, -0.5])
def test_caps_are_counted(tmp_path: Path, correlation: float) -> None:
    """What is longer is set to the cap, of a trace too, whether or not prompt and output go together; notes
    say how often, and below it nothing moves."""
    lengths = LENGTHS["lognormal"] | {"correlation": correlation}
    free, free_out = drawn(lengths)
    asked = lengths | {"max_prompt_tokens": 1000, "max_output_tokens": 250}
    requests = generate(workload_of(asked), {"rate_per_s": 1}, {"requests": COUNT, "seed": 3})
    assert np.array_equal(requests.prompt_tokens, np.minimum(free, 1000))
    assert np.array_equal(requests.output_tokens, np.minimum(free_out, 250))
    assert requests.notes["prompts_capped"] == np.count_nonzero(free > 1000)
    assert requests.notes["outputs_capped"] == np.count_nonzero(free_out > 250)
    path = tmp_path / "pairs.csv"
    path.write_text("prompt_tokens,output_tokens\n4,30\n9,10\n", encoding="utf-8")
    lengths = {"kind": "trace", "path": path, "max_output_tokens": 20}
    prompt, output = drawn(lengths, 2)
    assert (prompt.tolist(), output.tolist()) == ([4, 9], [20, 10])
    assert mean_tokens(workload_of(lengths)) == (6.5, 15)
    assert mean_context_tokens(workload_of(lengths)) == pytest.approx((80 + 90 + 200 + 50) / 30)


def test_uniform_lengths_are_all_alike() -> None:
    """5 to 12, both ends as often as the others (chi-square, 99.9 %)."""
    prompt, _ = drawn(LENGTHS["uniform"])
    observed = np.bincount(prompt, minlength=13)[5:]
    assert observed.sum() == COUNT
    assert ((observed - COUNT / 8) ** 2 / (COUNT / 8)).sum() < stats.chi2.ppf(0.999, 7)


def test_whole_numbers_have_exact_moments_and_ends() -> None:
    """The mean square of 5 to 12 is that of their list; the furthest scores give the ends, never beyond."""
    even = uniform(5, 12)
    assert even.mean_square == pytest.approx(np.mean(np.arange(5, 13) ** 2), rel=1e-12)
    assert even.at is not None
    assert even.at(np.array([-40.0, 40.0])).tolist() == [5, 12]
    rare = geometric(3.0)
    assert rare.at is not None
    assert rare.at(np.array([-40.0]))[0] == 1


@pytest.mark.parametrize(
    ("lengths", "sentences"),
    [
        (JOINT | {"prompt_edges": [9, 9, 10, 11]}, ["lengths.prompt_edges must rise, and be at least 2"]),
        (
            JOINT | {"cells": [[0.4, -0.1], [0.05, 0.25]]},
            [
                "(got a sum of 0.6)",
                "lengths.cells must be 3 rows of 2, one less than the edges (got 2 rows of 2)",
            ],
        ),
        (
            JOINT | {"cells": [[0.4, 0.1], [0.05, 0.35], [0.2, -0.1]]},
            ["lengths.cells must not be negative and add up to 1 (got a sum of 1)"],
        ),
        *(
            (
                JOINT | {"cells": [[0.4, 0.1], [0.05, 0.25], [0.2, more]]},
                [f"lengths.cells must not be negative and add up to 1 (got a sum of {1 + more:g})"],
            )
            for more in (0.1, 0.02)
        ),
        (
            JOINT | {"cells": [[0.4, 0.1], [0.05, 0.05], [0.2, 0.0]]},
            ["lengths.cells must not be negative and add up to 1 (got a sum of 0.8)"],
        ),
        (JOINT | {"correlation": 0.5}, ["lengths.correlation does not go with workload.lengths.kind joint"]),
        (
            LENGTHS["lognormal"] | {"correlation": 1},
            ["lengths.correlation must be a number >= -0.99 and <= 0.99"],
        ),
        (
            LENGTHS["uniform"] | {"prompt_min": 50},
            ["lengths.prompt_min must be <= lengths.prompt_max 12 (got 50)"],
        ),
        ({"kind": "uniform", "prompt_min": 5, "prompt_max": 9, "output_min": 1}, ["output_max is missing"]),
    ],
)
def test_faults_of_pairs(lengths: dict[str, Any], sentences: list[str]) -> None:
    """What does not fit together is told all at once, with the key, the requirement and what came."""
    asked = {"hardware": "h100-80gb-sxm", "model": "llama-3.1-8b", "load": {"rate_per_s": 1}}
    with pytest.raises(InputFault) as caught:
        load(asked | {"workload": {"lengths": lengths}})
    assert len(caught.value.faults) == len(sentences), caught.value.faults
    for sentence, fault in zip(sentences, caught.value.faults, strict=True):
        assert sentence in fault


def test_answers_need_prompts_of_their_own() -> None:
    """Several answers to a prompt go with a correlation, not with a joint table."""
    asked = {"hardware": "h100-80gb-sxm", "model": "llama-3.1-8b", "load": {"rate_per_s": 1}}
    with pytest.raises(InputFault, match=r"answers must be 1 with lengths\.kind joint"):
        load(asked | {"workload": {"lengths": JOINT, "answers": 2}})
    workload = workload_of(LENGTHS["correlated"]) | {"answers": 3}
    requests = generate(workload, {"rate_per_s": 1}, {"requests": 3 * COUNT, "seed": 3})
    assert np.array_equal(requests.prompt_tokens, np.repeat(drawn(LENGTHS["correlated"])[0], 3))
    low, high = spearman_bounds(0.6, COUNT)
    assert low < stats.spearmanr(requests.prompt_tokens[::3], requests.output_tokens[1::3]).statistic < high
