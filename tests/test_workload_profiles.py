"""The shipped profiles in workloads/, and the traces they were made from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim.workload import generate, mean_context_tokens, mean_tokens, read_trace
from sim.workload.fitting import fit_quantile_table, table_distance

ROOT = Path(__file__).parents[1]
PROFILES = sorted((ROOT / "workloads").glob("*.yaml"))
AZURE = ROOT.parent / "shared" / "data" / "traces" / "azure2023"
KS_999 = math.sqrt(-math.log(0.001 / 2) / 2)  # of sqrt(n) D, Kolmogorov's limit
SIDES = ("prompt", "output")

needs_traces = pytest.mark.skipif(not AZURE.is_dir(), reason="the recorded traces are not here")
azure = pytest.mark.parametrize(
    ("name", "rows", "span_s"), [("conv", 19_366, 3501.721937), ("code", 8_819, 3435.948056)]
)


def profile(name: str) -> dict[str, Any]:
    """A shipped profile by name."""
    return yaml.safe_load((ROOT / "workloads" / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_makes_requests_and_says_where_it_is_from(path: Path) -> None:
    """The name is the file's; source and licence are stated; lengths and arrivals have a provenance."""
    workload = profile(path.stem)
    assert workload["name"] == path.stem
    assert workload["source"]
    assert workload["licence"]
    assert {"lengths", "arrivals"} <= set(workload["provenance"])
    assert {entry["kind"] for entry in workload["provenance"].values()} <= {"measured", "estimated"}
    requests = generate(workload, {"rate_per_s": 2}, {"requests": 20_000, "seed": 1})
    for tokens, mean in zip(
        (requests.prompt_tokens, requests.output_tokens), mean_tokens(workload), strict=True
    ):
        assert abs(tokens.mean() - mean) <= 3.291 * tokens.std() / math.sqrt(20_000) + 1e-3


@needs_traces
@azure
def test_azure_replays(name: str, rows: int, span_s: float) -> None:
    """Both files are replayed whole over their own span, exact to 100 ns; no two times are merged."""
    path = AZURE / f"AzureLLMInferenceTrace_{name}.csv"
    workload = {"arrivals": {"kind": "trace", "path": path}, "lengths": {"kind": "trace", "path": path}}
    requests = generate(workload, {"mode": "trace"}, {"seed": 1})
    assert len(requests) == rows
    assert abs(requests.arrival_s[-1] - span_s) <= 2**-33
    trace = read_trace(path)
    assert trace.arrival_ns is not None
    assert np.count_nonzero(np.diff(requests.arrival_s)) == np.count_nonzero(np.diff(trace.arrival_ns))


@needs_traces
@azure
def test_azure_profiles_fit_their_traces(name: str, rows: int, span_s: float) -> None:
    """Each length's table is what `fit_quantile_table` gives, within 0.01 of the trace by Kolmogorov-Smirnov
    and 0.5 % of its mean; drawn requests are no further away than sampling allows at 99.9 %."""
    trace = read_trace(AZURE / f"AzureLLMInferenceTrace_{name}.csv")
    workload = profile(f"azure-2023-{name}")
    requests = generate(workload, {"rate_per_s": rows / span_s}, {"requests": rows, "seed": 1})
    for side, mean in zip(SIDES, mean_tokens(workload), strict=True):
        recorded, table = getattr(trace, f"{side}_tokens"), workload["lengths"][side]
        quantiles, tokens = fit_quantile_table(recorded, points=33)
        assert (table["quantiles"], table["tokens"]) == (quantiles, tokens)
        assert table_distance(quantiles, tokens, recorded) < 0.01
        assert mean == pytest.approx(recorded.mean(), rel=0.005)
        assert distance(getattr(requests, f"{side}_tokens"), recorded) < 0.01 + KS_999 / math.sqrt(rows)


@needs_traces
def test_independent_lengths_cost_some_context() -> None:
    """The conversation profile's mean context is 8 % above its trace's, as its provenance states."""
    path = AZURE / "AzureLLMInferenceTrace_conv.csv"
    recorded = mean_context_tokens({"lengths": {"kind": "trace", "path": path}})
    assert mean_context_tokens(profile("azure-2023-conv")) / recorded == pytest.approx(1.08, abs=0.005)


def test_a_finer_table_is_nearer() -> None:
    """More points never move a fit away; with a point for each length it is exact."""
    recorded = np.repeat([3, 4, 9, 40, 41, 200], [5, 1, 30, 4, 50, 10])
    distances = [table_distance(*fit_quantile_table(recorded, points), recorded) for points in (6, 7, 8, 200)]
    assert distances == sorted(distances, reverse=True)
    shares = np.cumsum([5, 1, 30, 4, 50, 10]) / 100
    quantiles, tokens = fit_quantile_table(recorded, 200)
    assert quantiles == [0, *shares]
    assert tokens == [2.5, 3.5, 4.5, 9.5, 40.5, 41.5, 200.5]


def distance(sample: np.ndarray, recorded: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance between two samples of whole numbers."""
    whole = np.union1d(sample, recorded)
    shares = [np.searchsorted(np.sort(one), whole, side="right") / len(one) for one in (sample, recorded)]
    return float(np.abs(shares[0] - shares[1]).max())
