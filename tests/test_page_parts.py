"""The page's parts: charts that keep within their frame, round ticks, tables that scroll, YAML that loads."""

from __future__ import annotations

import re
from pathlib import Path

import sim
from sim.report.page_charts import Chart, Scale, linear_scale, log_scale
from sim.report.page_html import table, tag
from sim.report.page_sources import resolved_yaml


def test_wide_tables_scroll_on_their_own() -> None:
    """A table sits in a box that keyboards can reach and scroll, named after it."""
    drawn = table("Loads & limits", ["load", "value"], [["a", "1 < 2"]])
    assert drawn.startswith('<div class="scroll" role="region" aria-label="Loads &amp; limits" tabindex="0">')
    assert "1 &lt; 2" in drawn


def test_ticks_are_round_and_few() -> None:
    """Ticks lie within the scale at round values, linear or logarithmic, whatever the range."""
    for high in (0.003, 0.97, 7.0, 12.2, 830.0, 5e6):
        ticks = linear_scale([high], str).ticks(5)
        assert 2 <= len(ticks) <= 7
        assert all(0 <= tick <= 1.15 * high * 1.001 for tick in ticks)
    for low, high in ((0.01, 0.02), (0.04, 3.0), (1e-4, 1.0), (1e-3, 1e6)):
        ticks = log_scale([low, high], str).ticks(6)
        assert 1 <= len(ticks) <= 6
        assert all(low / 1.5 <= tick <= high * 1.5 for tick in ticks)


def test_a_chart_keeps_within_its_frame() -> None:
    """Values far outside the scale are cut off, not drawn over the page."""
    chart = Chart("a line", Scale(0.0, 1.0, str), Scale(0.1, 1.0, str, log=True))
    chart.line([(0.0, 0.0), (0.5, 0.5), (1.0, 1e30)], "s-knee")
    drawn = chart.svg("x")
    numbers = [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", re.search(r' d="([^"]+)"', drawn)[1])]
    assert max(map(abs, numbers)) < 500
    assert 'aria-label="a line"' in drawn
    assert tag("p", "a < b") == "<p>a &lt; b</p>"


def test_resolved_yaml_of_odd_values_loads_again(tmp_path: Path) -> None:
    """Small numbers, strings that look like numbers, null and lists survive the page's YAML."""
    chat = sim.load("chat-8b-a100")
    changed = chat.replace({"engine.host_step_s": 1e-9, "load.rate_per_s": 1e-3, "run.seed": 0})
    saved = tmp_path / "odd.yaml"
    saved.write_text(resolved_yaml(changed), encoding="utf-8")
    assert sim.load(saved).sha256 == changed.sha256
