"""Fits of attention: what they find again, on which shapes they hold, and what they refuse."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from sim.calibration.attention import calls_of, decode_s, fit_decode, fit_prefill, prefill_s
from sim.calibration.surface import fit_surface
from sim.calibration.table import profile_of
from sim.faults import InputFault
from sim.hardware import DecodeAttention, PrefillAttention
from sim.hardware.parts import read_source
from sim.model.fields import Fields

CARD = profile_of("h100-80gb-sxm")
TRUE = DecodeAttention(2.5e12, 2e-8, 1.2, 9e-6, regroup_s=4e-6)
HEADS = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 8), (16, 4), (32, 4), (32, 8)]


def decode_rows(kernel: DecodeAttention, step: float = 1.0) -> pd.DataFrame:
    """What a loop over *kernel* would measure; from 64 sequences x KV heads on it takes *step* times that."""
    grid = product([1, 4, 16, 64, 256], [15, 127, 1023, 4095, 16383], HEADS)
    rows = pd.DataFrame([(b, 1, k, *pair, 128) for b, k, pair in grid], columns=COLUMNS)
    rows = rows.assign(kv_dtype="bf16", dtype="bf16", time_us=1.0)
    steps = np.where(rows["batch"] * rows["kv_heads"] >= 64, step, 1.0)
    return rows.assign(time_us=1e6 * steps * decode_s(kernel, calls_of(rows)))


COLUMNS = ["batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"]


def test_a_decode_kernel_is_found_again() -> None:
    """Times that are of the form give its coefficients back, and need no residuals."""
    fitted = fit_decode(decode_rows(TRUE), "attention_decode", CARD)
    for name in ("bytes_per_s", "head_sequence_s", "exponent", "overhead_s", "regroup_s"):
        assert fitted.section[name] == pytest.approx(getattr(TRUE, name), rel=0.02)
    assert fitted.errors.p90_pct < 0.5
    assert not {"cached_bytes_per_s", "residual"} & fitted.section.keys()


def test_a_step_that_shapes_share_is_carried_to_shapes_not_seen() -> None:
    """Twice the time from 64 sequences x KV heads on: a table carries it to pairs of heads held out."""
    rows = decode_rows(TRUE, step=2.0)
    fitted = fit_decode(rows, "attention_decode", CARD)
    assert "residual" in fitted.section
    assert fitted.errors.median_pct < 3
    kernel = read_source(Fields({"attention_decode": fitted.section}, "here"))["attention_decode"]
    np.testing.assert_allclose(decode_s(kernel, calls_of(rows)), 1e-6 * rows["time_us"], rtol=0.15)


def test_a_longer_context_never_takes_less_by_the_table() -> None:
    """A dip between contexts of one work, which a batch that grows would run through, is levelled."""
    rows = decode_rows(TRUE)
    dip = (rows["kv_len"] == 4095) & (rows["batch"] * rows["kv_heads"] >= 16)
    rows.loc[dip, "time_us"] *= 0.2
    section = fit_decode(rows, "attention_decode", CARD).section
    kernel = read_source(Fields({"attention_decode": section}, "here"))["attention_decode"]
    longer = rows[rows["batch"] == 64].sort_values("kv_len")
    for _, pair in longer.groupby(["heads", "kv_heads"]):
        taken_s = kernel.seconds(64, 64 * calls_of(pair).contexts, calls_of(pair).shape)
        assert (np.diff(taken_s) > -0.05 * taken_s[1:]).all()


@pytest.mark.parametrize("cached", [[0], [0, 512, 2048]])
def test_the_causal_weight_is_fitted_where_tokens_are_cached(cached: list[int]) -> None:
    """Without cached tokens it goes with the rate, and stays half."""
    true = PrefillAttention(5e14, 4e-10, 0.8, 1.1e-5, causal_weight=0.7)
    rows = prefill_rows(true, cached)
    fitted = fit_prefill(rows, "attention_prefill", CARD)
    assert fitted.section["causal_weight"] == pytest.approx(0.7 if cached[1:] else 0.5, rel=0.02)
    assert set(fitted.estimated or ()) == (set() if cached[1:] else {"causal_weight"})
    assert fitted.errors.p90_pct < 0.5


def prefill_rows(
    kernel: PrefillAttention, cached: list[int], heads: list[tuple[int, int]] = HEADS
) -> pd.DataFrame:
    """What a loop over *kernel* would measure."""
    grid = product([1, 2, 4, 8, 16], [64, 256, 1024, 4096], cached, heads)
    rows = pd.DataFrame([(b, q, k, *pair, 128) for b, q, k, pair in grid], columns=COLUMNS)
    rows = rows.assign(kv_dtype="bf16", dtype="bf16", time_us=1.0)
    return rows.assign(time_us=1e6 * prefill_s(kernel, calls_of(rows)))


def test_what_four_kv_heads_cost_is_told_from_what_the_ratio_costs() -> None:
    """Half as much again with 4 KV heads, at every ratio of heads: the second table holds it out better."""
    heads = [(kv_heads * ratio, kv_heads) for kv_heads in (1, 2, 4, 8) for ratio in (1, 2, 4, 8)]
    rows = prefill_rows(PrefillAttention(5e14, 4e-10, 0.8, 1.1e-5), [0], heads)
    rows.loc[rows["kv_heads"] == 4, "time_us"] *= 1.5
    section = fit_prefill(rows, "attention_prefill", CARD).section
    kernel = read_source(Fields({"attention_prefill": section}, "here"))["attention_prefill"]
    assert kernel.kv_residual.factor(new_tokens=1024, kv_heads=4) > 1.2
    assert kernel.kv_residual.factor(new_tokens=1024, kv_heads=2) < 1.1


def test_a_token_opens_a_page_of_its_own() -> None:
    """Pages of 16: the token being decoded is the 16th of one page, or the first of the next."""
    rows = decode_rows(TRUE).head(3).assign(kv_len=[15, 16, 31])
    assert calls_of(rows).contexts.tolist() == [16.0, 32.0, 32.0]


def test_too_few_rows_are_refused_in_a_sentence() -> None:
    """Which section, how many there are, and how many it takes: of rows, and of shapes."""
    few = decode_rows(TRUE).head(20)
    with pytest.raises(InputFault, match=r"attention_decode: 20 rows of .* shapes are too few"):
        fit_decode(few, "attention_decode", CARD)
    alike = decode_rows(TRUE)
    alike = alike[(alike["heads"] == 8) & (alike["kv_heads"] == 8)]
    with pytest.raises(InputFault, match=r"attention_decode: 25 rows of 5 shapes are too few"):
        fit_decode(alike, "attention_decode", CARD)


def test_a_surface_keeps_the_nodes_that_bend_and_fills_where_no_row_is() -> None:
    """A kink at 8 keeps its node, straight stretches keep none; an empty corner takes its neighbour's."""
    x = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    rows = {"x": np.tile(x, 2), "y": np.repeat([1.0, 2.0], 6)}
    logs = np.maximum(np.log(rows["x"] / 8.0), 0.0)
    surface = fit_surface(rows, logs, {"x": x, "y": np.array([1.0, 2.0, 64.0])})
    table = surface.residuals(0.02)
    np.testing.assert_allclose(table.axes["x"], [1.0, 8.0, 32.0])
    assert table.factor(x=32.0, y=1.5) == pytest.approx(4.0, rel=0.02)
    assert table.factor(x=32.0, y=64.0) == pytest.approx(4.0, rel=0.02)
