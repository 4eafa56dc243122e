"""The shipped profiles in workloads/, and the traces they were made from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim.scenario import entry
from sim.workload import Requests, generate, mean_context_tokens, mean_tokens, read_trace, take
from sim.workload.fitting import fit_quantile_table, table_distance
from sim.workload.session_shape import session_shape
from sim.workload.tenants import tenant_shares

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
    """The name is the file's; source and licence are stated; lengths and arrivals have a provenance. Requests
    have the means that are told beforehand, by the spread of their sessions where they have any."""
    workload = entry("workloads", path.stem)
    assert workload["name"] == path.stem
    assert workload["source"]
    assert workload["licence"]
    assert {"lengths", "arrivals"} <= set(workload["provenance"])
    assert {origin["kind"] for origin in workload["provenance"].values()} <= {"measured", "estimated"}
    requests = at_rates(generate(workload, {"rate_per_s": 2}, {"requests": 20_000, "seed": 1}), workload)
    alike = 20_000 / session_shape(workload).requests if workload.get("sessions") else len(requests)
    for tokens, mean in zip(
        (requests.prompt_tokens, requests.output_tokens), mean_tokens(workload), strict=True
    ):
        assert abs(tokens.mean() - mean) <= 3.291 * tokens.std() / math.sqrt(alike) + 1e-3


def at_rates(requests: Requests, workload: dict[str, Any]) -> Requests:
    """Those of the *requests* that come at a rate."""
    if requests.classes is None:
        return requests
    with_users = [value.get("concurrency") is not None for value in workload["classes"].values()]
    return take(requests, np.flatnonzero(~np.array(with_users)[requests.classes]))


def test_a_coding_agent_is_as_published() -> None:
    """Turns a session, calls a turn, prompt and answer of a call as Copilot's means; the waits of people and
    tools at TraceLab's percentiles; almost all of a prompt is known from before."""
    workload = entry("workloads", "coding-agent")
    shape = session_shape(workload)
    assert shape.turns.mean == pytest.approx(1_189_581 / 301_026, rel=0.01)
    assert 1 + shape.calls.mean == pytest.approx(9_310_255 / 1_189_581, rel=0.01)
    assert mean_tokens(workload) == pytest.approx((67_800, 528), rel=0.01)
    for part, known in ((shape.pause, (86, 1260)), (shape.tool_s, (0.3, 13.6))):
        drawn = part.draw(1, "times", 40_000)
        assert tuple(np.quantile(drawn, [0.5, 0.9])) == pytest.approx(known, rel=0.05)
    requests = generate(workload, {"rate_per_s": 2}, {"requests": 5000, "seed": 1})
    assert np.median(requests.output_tokens) == pytest.approx(214, rel=0.05)
    assert requests.notes["prompt_tokens_seen_before"] / requests.prompt_tokens.sum() > 0.9


@pytest.mark.parametrize(
    ("name", "top", "most"),
    [("servegen-language-m-small", 0.2988, 9), ("servegen-language-m-mid", 0.5228, 22),
     ("servegen-language-m-large", 0.1605, 39), ("servegen-deepseek-r1", 0.2859, 25)],
)  # fmt: skip
def test_a_few_clients_of_servegen_send_most(name: str, top: float, most: int) -> None:
    """The largest as many as published, and so many 90 % of the requests; the day's mean is the load's."""
    workload = entry("workloads", name)
    shares = np.sort(tenant_shares(workload))[::-1]
    assert shares[0] == pytest.approx(top)
    assert int(np.searchsorted(np.cumsum(shares), 0.9)) + 1 == most
    assert np.mean(workload["arrivals"]["series"]["rates"]) == pytest.approx(1.0, abs=0.01)


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
