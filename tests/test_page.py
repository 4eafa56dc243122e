"""The page: what a reviewer reads, that it holds together, and that nothing leaves it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import browser, in_browser, wrapped

import sim
from sim.faults import InputFault
from sim.planning.knee import Knee, find_knee
from sim.report import page_sections
from sim.report.answer import answer
from sim.report.page import CONTENTS, page, write_page
from sim.report.page_runs import BINS, SLOWER, LoadRun, loads_of, run_loads
from sim.report.page_story import Story
from sim.results import Result
from sim.simulation import ledger_of, simulate

SHORT = ("run.requests=300", "run.most_replications=2", "run.precision=0.2")
VOID = {"meta", "link", "br", "hr", "img", "wbr"}


def found(*changes: str) -> Knee:
    """A knee of short runs, without elasticities and total interval."""
    chat = sim.load("chat-8b-a100", [*SHORT, *changes])
    return find_knee(chat, simulate=lambda scenario: Result(simulate(scenario)))


@pytest.fixture(scope="module")
def knee() -> Knee:
    return find_knee(sim.load("chat-8b-a100", SHORT))


@pytest.fixture(scope="module")
def runs(knee: Knee) -> tuple[LoadRun, ...]:
    return run_loads(knee)


@pytest.fixture(scope="module")
def ledger(knee: Knee) -> dict[str, Any]:
    return ledger_of(knee.scenario).as_dict()


@pytest.fixture(scope="module")
def html(knee: Knee, runs: tuple[LoadRun, ...], ledger: dict[str, Any]) -> str:
    return page(knee, runs, ledger)


class Reader(HTMLParser):
    """Open elements, headings, ids and what is linked or fetched, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.levels: list[int] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(html)

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, key, value or "") for key, value in attrs]
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if re.fullmatch(r"h[1-6]", name):
            self.levels.append(int(name[1]))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name


def words(html: str) -> str:
    """What is read, without markup and style."""
    return unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", html, flags=re.S)))


def test_the_answer_comes_first_and_is_the_figures_sentence(html: str, knee: Knee) -> None:
    """The one h1 is the title of knee.png; the sections follow in the order in which a reviewer asks."""
    heading = re.search(r"<h1>(.*?)</h1>", html)
    assert heading is not None
    assert unescape(re.sub("<[^>]+>", "", heading[1])) == f"{answer(knee)}."
    places = [html.index(f'<section id="{name}"') for name in CONTENTS]
    assert places == sorted(places)


def test_the_markup_is_well_formed(html: str) -> None:
    """Every element is closed, ids are unique, headings never skip a level, links within the page arrive."""
    reader = Reader(html)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(reader.levels, reader.levels[1:], strict=False))
    targets = {value[1:] for _, key, value in reader.attributes if key == "href" and value.startswith("#")}
    assert targets
    assert targets <= set(reader.ids)


def test_nothing_is_fetched(html: str) -> None:
    """No script, no address to fetch from in attributes or style, and a policy that says so."""
    reader = Reader(html)
    fetching = {"src", "srcset", "href", "action", "poster", "data", "xlink:href"}
    fetched = [value for _, key, value in reader.attributes if key in fetching]
    assert [value for value in fetched if not value.startswith(("#", "data:"))] == []
    assert not [name for name, key, _ in reader.attributes if key.startswith("on") or name == "script"]
    assert "<script" not in html
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in html


def test_pictures_have_words(html: str) -> None:
    """Every chart and bar says what it shows; tables have captions and headers with a scope."""
    pictures = re.findall(r"<(?:svg|div) [^>]*role=\"img\"[^>]*>", html)
    assert len(pictures) > 15
    assert all(re.search(r'aria-label="[^"]{10,}"', picture) for picture in pictures)
    assert html.count("<table>") == html.count("<caption>") > 8
    assert re.search(r"<th(?![^>]*scope=)[ >]", html) is None


def test_equal_knees_give_equal_bytes(knee: Knee, ledger: dict[str, Any], html: str) -> None:
    """The runs made again give the same page."""
    assert page(knee, run_loads(knee), ledger) == html


def test_the_page_is_small_and_written_whole(
    html: str, knee: Knee, ledger: dict[str, Any], tmp_path: Path
) -> None:
    """Well under 1.5 MB, in UTF-8; a place that cannot be written is a sentence."""
    path = write_page(knee, tmp_path, ledger)
    assert path.name == "page.html"
    assert path.read_text(encoding="utf-8") == html
    assert path.stat().st_size < 1_000_000
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    with pytest.raises(InputFault, match="cannot be written"):
        write_page(knee, tmp_path / "taken", ledger)


def test_three_loads_are_looked_into(knee: Knee, runs: tuple[LoadRun, ...]) -> None:
    """Below, at and beyond the knee: 0.7 of it, itself, and 1.25 of the capacity, where the queue grows."""
    assert knee.rate_per_s is not None
    assert knee.capacity_rate_per_s is not None
    assert [run.load.kind for run in runs] == ["below", "knee", "beyond"]
    expected = [0.7 * knee.rate_per_s, knee.rate_per_s, 1.25 * knee.capacity_rate_per_s]
    assert [run.rate_per_s for run in runs] == pytest.approx(expected, rel=1e-4)


def test_parts_of_ttft_add_up(runs: tuple[LoadRun, ...]) -> None:
    """Front end, queue and prefill are each request's TTFT, to the last digit of the clock's grid."""
    for run in runs:
        assert np.array_equal(sum(run.parts_s.values()), run.ttft_s)
        assert run.ttft_s.mean() == pytest.approx(run.summary["ttft_s"]["mean"])
        assert set(run.slowest(0.01)) == set(np.flatnonzero(run.ttft_s >= np.sort(run.ttft_s)[-3]))


def test_tails_agree_with_the_summary(runs: tuple[LoadRun, ...]) -> None:
    """The value that a tenth, or a hundredth, of a latency exceeds is the summary's p90, or p99."""
    for run in runs:
        for name, tail in run.tails.items():
            assert tail is not None
            assert np.all(np.diff(tail) >= 0)
            for share, percentile in ((0.1, "p90"), (0.01, "p99")):
                value_s = tail[int(np.argmin(np.abs(np.array(SLOWER) - share)))]
                assert value_s == pytest.approx(run.summary[f"{name}_s"][percentile], rel=1e-6)


def test_over_time_nothing_is_lost(runs: tuple[LoadRun, ...]) -> None:
    """Binned tokens are all tokens; the mean of the bins' KV use is the summary's, weighted by busy time."""
    for run in runs:
        line, summary = run.timeline, run.summary
        width_s = np.diff(line.edges_s)
        assert len(width_s) == BINS
        counts = summary["requests"]
        assert counts["completed"] + counts["never_schedulable"] == counts["offered"]
        made = summary["makespan"]
        generated = float(line.series["generation"].mean @ width_s)
        assert generated == pytest.approx(made["output_throughput"] * made["duration_s"], rel=1e-9)
        prompts = float(line.series["prompt"].mean @ width_s)
        in_all = made["total_token_throughput"] * made["duration_s"]
        assert prompts + generated == pytest.approx(in_all + summary["recomputed_tokens"], rel=1e-9)
        busy_s = summary["utilization"]["busy"] * made["duration_s"]
        held = float(line.series["kv"].mean @ width_s) / busy_s
        assert held == pytest.approx(summary["kv_cache"]["usage_mean"], rel=0.02)
        assert all(np.all(s.most >= s.mean - 1e-9) for n, s in line.series.items() if n in ("running", "kv"))


def with_answer(knee: Knee, runs: tuple[LoadRun, ...], ledger: dict[str, Any], **changes: Any) -> Story:
    """A story whose answer's `knee` has other parts; None takes one away."""
    answer = knee.as_dict()
    at = {key: value for key, value in {**answer["knee"], **changes}.items() if value is not None}
    return Story(knee, {**answer, "knee": at}, runs, ledger)


def test_the_total_interval_stands_beside_the_answer(
    knee: Knee, runs: tuple[LoadRun, ...], ledger: dict[str, Any]
) -> None:
    """The total is quoted first and sampling named apart; each part is a row of the error budget."""
    parts = {
        "sampling": {"relative": 0.02, "replications": 12, "requests_each": 2000},
        "gemm": {"relative": 0.18, "elasticity": 1.3, "uncertainty": 0.07, "source": "held-out error"},
    }
    interval = {"confidence": 0.95, "sampling": [5.4, 5.6], "total": [4.6, 6.7], "parts": parts}
    story = with_answer(knee, runs, ledger, interval=interval)
    said = words(page_sections.answer(story))
    assert "Between 4.6 and 6.7 requests/s (95 % confidence), all known errors included" in said
    assert "sampling of requests alone, between 5.4 and 5.6" in said
    budget = words(page_sections.how_sure(story))
    assert budget.index("linear layers") < budget.index("12 replications of 2,000 requests")


@pytest.mark.parametrize(
    ("interval", "sentence"),
    [
        (None, "This answer has no error bar"),
        ({"sampling": [5.4, 5.6]}, "what the model leaves open is not in it"),
    ],
    ids=["none", "sampling alone"],
)
def test_a_missing_error_bar_is_said(
    knee: Knee,
    runs: tuple[LoadRun, ...],
    ledger: dict[str, Any],
    interval: Mapping[str, Any] | None,
    sentence: str,
) -> None:
    """An answer without a total interval says so instead of looking exact."""
    story = with_answer(knee, runs, ledger, interval=interval, binding=None)
    assert sentence in words(page_sections.answer(story))
    assert page_sections.how_sure(story) == ""
    assert "What binds" not in words(page_sections.gives_way(story))


def test_limits_at_the_knee_hold(html: str, knee: Knee) -> None:
    """At the knee every limit holds, the one just met too; at the first load that fails one is missed."""
    verdicts = html[html.index("Verdict on each limit") :]
    rows = re.findall(r"<tr>(.*?)</tr>", verdicts[: verdicts.index("</table>")])[1:]
    assert len(rows) == len(knee.limits) + 1  # and the queue
    assert all(re.search("holds|steady", row.split("</td>")[0]) for row in rows)
    assert any("missed" in row for row in rows)


def test_cost_follows_the_duty_cycle(knee: Knee, runs: tuple[LoadRun, ...], ledger: dict[str, Any]) -> None:
    """At 30 % of the knee a million tokens cost what they do at the knee over 0.3; the price is dated."""
    story = Story(knee, knee.as_dict(), runs, ledger)
    rows = dict(
        re.findall(
            r"<tr><th[^>]*>([^<]+)</th><td[^>]*>[^<]*</td><td[^>]*>\$([\d.]+)", page_sections.cost(story)
        )
    )
    full, little = (float(rows[f"{share} % of the knee"]) for share in (100, 30))
    assert knee.at is not None
    assert full == pytest.approx(knee.at.summary["cost"]["usd_per_1m_output_tokens"], abs=0.006)
    assert little == pytest.approx(full / 0.3, rel=0.03)
    assert knee.scenario.hardware["price"]["date"] in page_sections.cost(story)


def test_littles_law_is_shown_where_it_applies(html: str) -> None:
    """The steady loads show how far X R is from N; beyond the capacity the law is not claimed."""
    checks = words(html[html.index('id="checks"') : html.index('id="memory"')])
    assert "does not apply: the queue grows" in checks
    assert len(re.findall(r"[+-]\d\.\d %", checks)) >= 2
    assert "NOT CONSERVED" not in checks


def test_every_coefficient_in_use_has_its_origin(html: str, knee: Knee) -> None:
    """Kernels that the answer uses are listed with kind and error; other types' are folded away."""
    grounds = html[html.index('id="grounds"') : html.index('id="warnings"')]
    in_use, _, folded = grounds.partition("<details>")
    assert "kernels.<wbr>gemm.<wbr>bf16" in in_use
    assert "<b>estimated</b>" in in_use
    error = knee.scenario.hardware["provenance"]["kernels.gemm.bf16"]["error_median_pct"]
    assert f"{error:g} % / " in in_use
    assert "kernels.<wbr>all_reduce.<wbr>8" not in in_use
    assert "kernels.<wbr>all_reduce.<wbr>8" in folded


def test_the_scenario_on_the_page_is_the_scenario(html: str, knee: Knee, tmp_path: Path) -> None:
    """The YAML, saved to a file, has the same hash; sources are comments."""
    shown = re.search(r"<pre[^>]*><code>(.*?)</code></pre>", html, flags=re.S)
    assert shown is not None
    saved = tmp_path / "saved.yaml"
    saved.write_text(unescape(shown[1]), encoding="utf-8")
    assert sim.load(saved).sha256 == knee.scenario.sha256
    assert "max_num_seqs: 256  # chat-8b-a100.yaml:" in shown[1]


def test_warnings_are_announced_at_the_top(html: str, knee: Knee) -> None:
    """Their number stands before the figure, and what is only estimated is among them."""
    story_warnings = words(html[html.index('id="warnings"') : html.index('id="loads"')])
    assert "stimated, not measured" in story_warnings
    assert re.search(r"\d+ warnings?: read them", html[: html.index('id="figure"')])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("slo.ttft_p99_s=0.001",), "no load meets"),
        (("slo={e2e_p95_s: 500000}",), "the queue gives way first"),
        (("workload={lengths: {kind: fixed, prompt_tokens: 64, output_tokens: 1}}",), "not evaluated"),
        (("cost.gpu_hour_usd=0",), "$0.00"),
    ],
    ids=["infeasible", "queue first", "undefined metric", "free"],
)
def test_awkward_answers_have_pages_too(changes: tuple[str, ...], sentence: str) -> None:
    """Without a knee, a limit that binds, a metric or a price there is a well-formed page that says so."""
    knee = found(*changes)
    html = page(knee, run_loads(knee), ledger_of(knee.scenario).as_dict())
    assert Reader(html).open == []
    assert sentence in words(html)
    assert "nan" not in words(html).lower().split()


def test_without_a_knee_two_loads_are_looked_into() -> None:
    """The lowest load tried stands for what lies below."""
    knee = found("slo.ttft_p99_s=0.001")
    assert [load.kind for load in loads_of(knee)] == ["below", "beyond"]
    assert loads_of(knee)[0].load == knee.points[0].load


def test_text_is_escaped(knee: Knee, runs: tuple[LoadRun, ...], ledger: dict[str, Any]) -> None:
    """A scenario's name cannot become markup."""
    named = replace(knee, scenario=replace(knee.scenario, name='<img src="http://a.example/x">&'))
    html = page(named, runs, ledger)
    assert "<img" not in html
    assert "&lt;img src=" in html


@browser
def test_the_browser_has_nothing_to_say(html: str, tmp_path: Path) -> None:
    """Headless Chromium loads the page, light and dark, without a word on its console."""
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    for options in ((), ("--blink-settings=preferredColorScheme=0",)):
        shown, console = in_browser(path, "--dump-dom", *options)
        assert console == ""
        assert shown.count("<section") == len(CONTENTS)


@browser
def test_the_browser_would_have_said_so(html: str, tmp_path: Path) -> None:
    """The check above sees a picture from elsewhere and a script: the page's policy refuses both, loudly."""
    path = tmp_path / "page.html"
    worse = '<img src="http://a.example/x.png"><script>1</script></body>'
    path.write_text(html.replace("</body>", worse), encoding="utf-8")
    _, console = in_browser(path, "--dump-dom")
    assert "a.example" in console
    assert "script" in console


@browser
@pytest.mark.parametrize("width", [360, 390, 1100])
def test_no_width_makes_the_page_scroll_sideways(html: str, width: int, tmp_path: Path) -> None:
    """On a phone and on a desk the page is as wide as its window: only tables scroll, in their boxes."""
    path = tmp_path / "frame.html"
    path.write_text(wrapped(html, width), encoding="utf-8")
    shown, _ = in_browser(path, "--dump-dom", "--window-size=1300,1000", "--virtual-time-budget=5000")
    found_width = re.search(r"<title>width (\d+)</title>", shown)
    assert found_width is not None
    assert int(found_width[1]) <= width


@browser
def test_it_prints_on_a4(html: str, tmp_path: Path) -> None:
    """Printed, the page is a PDF of a dozen sheets at most."""
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    in_browser(path, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
