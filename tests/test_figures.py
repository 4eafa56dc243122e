"""The knee's figure and report: what they show, and that they are whole, equal and headless."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analytic import FakeScenario, queueing

from sim.faults import InputFault
from sim.files import write_whole
from sim.planning.knee import Knee, find_knee
from sim.report.answer import answer
from sim.report.assumptions import assumptions, coefficient_kinds
from sim.report.figures import knee_figure, save
from sim.report.knee_report import knee_markdown, points_csv, write_knee
from sim.report.text import headline, knee_text, memory_text, plain, run_text

LEDGER = {
    "gpu_memory_bytes": 80 * 2**30,
    "weights_bytes": 15 * 2**30,
    "activation_bytes": 2**30,
    "overhead_bytes": 2**30,
    "fragmentation_bytes": 0,
    "kv_cache_bytes": 55 * 2**30,
    "kv_bytes_per_token": 131072,
    "block_size": 16,
    "num_gpu_blocks": 28160,
    "kv_cache_tokens": 450560,
    "max_model_len": 8192,
    "max_concurrency": 55.0,
    "mean_concurrency": 350.3,
    "fits": True,
    "reason": None,
}


def found(**fake: Any) -> Knee:
    return find_knee(FakeScenario(), simulate=queueing(service_s=0.08, tpot_s=0.018, **fake))


@pytest.fixture(scope="module")
def knee() -> Knee:
    return found()


def texts(figure: Any) -> str:
    """All words of a figure, joined."""
    from matplotlib.text import Text

    return " ".join(
        text.get_text().replace("\n", " ").replace("\N{NO-BREAK SPACE}", " ") for text in figure.findobj(Text)
    )


def test_the_title_is_the_answer(knee: Knee) -> None:
    """The figure's title and the report's first words are one sentence, which ends as the terminal's does."""
    figure = knee_figure(knee)
    assert answer(knee) in texts(figure)
    assert f"**{answer(knee)}.**" in knee_markdown(knee)
    assert answer(knee).partition(" within ")[2] == headline(knee).partition(" within ")[2] != ""
    assert knee_text(knee).startswith(headline(knee))
    assert headline(knee).endswith("TPOT p99 gives way first")


def test_panels_share_the_load_axis_and_mark_knee_capacity_and_limits(knee: Knee) -> None:
    """Four panels; in each the knee and the capacity stand at their loads; limits at their bounds."""
    axes = knee_figure(knee).axes
    assert len(axes) == 4
    assert len({axis.get_xlim() for axis in axes}) == 1
    for axis in axes:
        vertical = {line.get_xdata()[0] for line in axis.lines if len(set(line.get_xdata())) == 1}
        assert {knee.rate_per_s, knee.capacity_rate_per_s} <= vertical
    assert 50.0 in {line.get_ydata()[0] for line in axes[2].lines if len(line.get_ydata())}
    assert "limit p99 50 ms" in texts(axes[2].figure)


def test_unstable_points_are_hollow(knee: Knee) -> None:
    """Markers of runs whose queue grows have white faces, all others are filled."""
    axis = knee_figure(knee).axes[1]
    curves = [line for line in axis.lines if line.get_linestyle() == "None" and len(line.get_xdata()) > 1]
    hollow = {x for line in curves if line.get_markerfacecolor() == "white" for x in line.get_xdata()}
    filled = {x for line in curves if line.get_markerfacecolor() != "white" for x in line.get_xdata()}
    assert hollow == {point.rate_per_s for point in knee.points if not point.stable}
    assert filled == {point.rate_per_s for point in knee.points if point.stable}


def test_percentiles_differ_without_colour(knee: Knee) -> None:
    """In black and white p50, p90 and p99 still differ by marker and by line."""
    lines = knee_figure(knee).axes[1].get_legend().get_lines()
    assert len({line.get_marker() for line in lines}) == len({line.get_linestyle() for line in lines}) == 3


def test_every_axis_has_a_name_a_unit_and_a_direction(knee: Knee) -> None:
    """A reader never guesses what an axis shows or which way is better."""
    axes = knee_figure(knee).axes
    labels = [axis.get_ylabel() for axis in axes]
    assert all("(" in label for label in labels)
    assert ["lower is better" in label for label in labels] == [False, True, True, False]
    assert axes[-1].get_xlabel() == "offered load (requests/s)"


def test_other_limits_get_a_panel_and_their_statistic() -> None:
    """A limit on E2E p95 adds an E2E panel with a p95 line."""
    scenario = FakeScenario(slo={"e2e_p95_s": 8.0})
    axes = knee_figure(find_knee(scenario, simulate=queueing())).axes
    assert len(axes) == 5
    assert [text.get_text() for text in axes[3].get_legend().get_texts()] == ["p50", "p90", "p99", "p95"]


def test_the_caption_says_what_it_rests_on(knee: Knee) -> None:
    """Hardware with the origin of its coefficients, model, engine, workload, run, and prefix caching off."""
    words = texts(knee_figure(knee))
    phrases = (
        "a100-80gb-sxm (coefficients measured: gemm)",
        "llama-3-8b",
        "vllm-v1@0.32",
        "prefix caching off",
        "azure-2023-conv, arrivals poisson",
        "2,000 requests or more at each load, seed 1, first 10 % left out",
    )
    assert [phrase for phrase in phrases if phrase not in words] == []


def test_a_queue_that_never_grew_is_no_claim() -> None:
    """Where nothing gave way in the search the answer says `at least`."""
    knee = find_knee(FakeScenario(), simulate=queueing(1e12))
    assert headline(knee).startswith("Serves at least ")
    assert headline(knee).endswith("nothing gave way")


def test_warm_up_may_be_a_time() -> None:
    """A warm-up of 30 seconds is said in seconds."""
    run = {"requests": 2000, "seed": 1, "warmup": {"seconds": 30.0}}
    assert assumptions(replace(FakeScenario(), run=run), 2000)["run"].endswith("first 30 s left out")


def test_a_traces_answer_says_how_much_faster() -> None:
    """Where a trace's own times are replayed the headline has the multiplier beside the rate."""
    trace = FakeScenario(load={"mode": "trace"}, slo={"ttft_p99_s": 0.3})
    knee = find_knee(trace, simulate=queueing(trace_rate_per_s=2.0))
    assert headline(knee).startswith(f"Serves this trace {knee.time_scale:.3g} times as fast, ")
    assert f"{knee.rate_per_s:.3g} requests/s, within" in headline(knee)
    assert "the trace replayed faster or slower" in knee_figure(knee).axes[-1].get_xlabel()


def test_a_part_of_a_kernel_has_its_own_origin() -> None:
    """A measured kernel with one estimated coefficient names that coefficient; unused types are left out."""
    provenance = {
        "kernels.attention_prefill": {"kind": "measured", "source": "tables"},
        "kernels.attention_prefill.causal_weight": {"kind": "estimated", "source": "half of the pairs"},
        "kernels.gemm.bf16": {"kind": "measured", "source": "tables"},
        "kernels.gemm.fp8": {"kind": "estimated", "source": "the bf16 rows"},
    }
    scenario = replace(FakeScenario(), hardware={"name": "a100-80gb-sxm", "provenance": provenance})
    assert coefficient_kinds(scenario) == {
        "measured": ["attention_prefill", "gemm"],
        "estimated": ["attention_prefill causal_weight"],
    }


def test_collectives_count_only_where_gpus_share_a_model() -> None:
    """The estimated all-reduce is no part of an answer for one GPU, but of one for two."""
    two = FakeScenario().replace({"engine.tensor_parallel_size": 2})
    assert coefficient_kinds(FakeScenario()) == {"measured": ["gemm"]}
    assert coefficient_kinds(two)["estimated"] == ["all_reduce"]
    assert "2 x a100" in assumptions(two, 2000)["hardware"]


@pytest.mark.parametrize(
    ("slo", "fake"),
    [
        ({"ttft_p99_s": 0.01}, {}),
        ({"ttft_p99_s": 1.0}, {"turned_away": 2000}),
        ({"tpot_p99_s": 0.05}, {"tpot_s": None}),
        ({"ttft_p99_s": 1.0}, {"capacity_per_s": 1e12}),
        ({"ttft_p99_s": 1e6}, {}),
    ],
    ids=["infeasible", "one point, nothing served", "undefined metric", "no capacity", "queue first"],
)
def test_awkward_answers_are_drawn_too(slo: dict[str, float], fake: dict[str, Any], tmp_path: Path) -> None:
    """Without a knee, a second point, a metric or a capacity there is still a figure with a sentence."""
    knee = find_knee(FakeScenario(slo=slo), simulate=queueing(**fake))
    figure = knee_figure(knee)
    save(figure, tmp_path / "knee.png")
    assert answer(knee) in texts(figure)
    assert knee_text(knee).startswith(headline(knee))
    assert answer(knee) in knee_markdown(knee)


def test_equal_knees_give_equal_bytes(tmp_path: Path) -> None:
    """Two searches write the same five files, byte for byte; the SVG has no date."""
    written = [write_knee(found(), tmp_path / name, LEDGER) for name in ("first", "second")]
    names = [path.name for path in written[0]]
    assert names == ["knee.png", "knee.svg", "knee.json", "knee.md", "points.csv"]
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in written[0][1].read_bytes()
    assert json.loads(written[0][2].read_text(encoding="utf-8")) == json.loads(json.dumps(found().as_dict()))


def test_the_png_is_sharp_and_the_svg_is_well_formed(knee: Knee, tmp_path: Path) -> None:
    """At least 150 dots per inch over eight inches; SVG parses."""
    png = save(knee_figure(knee), tmp_path / "knee.png").read_bytes()
    svg = save(knee_figure(knee), tmp_path / "knee.svg")
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") >= 8 * 150
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_figures_need_no_window_system(tmp_path: Path) -> None:
    """With a dead DISPLAY and an interactive backend asked for, pyplot is never loaded."""
    script = (
        "import sys; from pathlib import Path; from analytic import FakeScenario, queueing\n"
        "from sim.planning.knee import find_knee; from sim.report.figures import knee_figure, save\n"
        "save(knee_figure(find_knee(FakeScenario(), simulate=queueing())), Path(sys.argv[1]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    tests = Path(__file__).parent
    environment = {**os.environ, "DISPLAY": ":99", "MPLBACKEND": "tkagg"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent)])
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.png")], env=environment, check=True)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_a_users_matplotlib_settings_change_nothing(knee: Knee, tmp_path: Path) -> None:
    """The figure is drawn with matplotlib's defaults and our choices, whatever is set around it."""
    import matplotlib

    before = save(knee_figure(knee), tmp_path / "before.png").read_bytes()
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 20, "savefig.bbox": "tight"}):
        assert save(knee_figure(knee), tmp_path / "after.png").read_bytes() == before


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    """A place that cannot be written is a sentence, and nothing half-written is left."""
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    with pytest.raises(InputFault, match="cannot be written"):
        write_whole(tmp_path / "taken" / "knee.md", "text")
    write_whole(tmp_path / "new" / "folder" / "knee.md", "text")
    assert not list(tmp_path.rglob("*.part"))


def test_points_csv_has_a_row_for_each_load(knee: Knee) -> None:
    """Columns carry units; rows are sorted by load; undefined values are empty."""
    rows = list(csv.DictReader(points_csv(knee).splitlines()))
    assert [float(row["rate_per_s"]) for row in rows] == [point.rate_per_s for point in knee.points]
    assert {"ttft_p99_s", "tpot_p99_s", "output_throughput", "kv_usage_max"} <= set(rows[0])
    undefined = csv.DictReader(points_csv(found_without_tpot()).splitlines())
    assert {row["tpot_p99_s"] for row in undefined} == {""}


def found_without_tpot() -> Knee:
    return find_knee(FakeScenario(), simulate=queueing(tpot_s=None))


def test_the_report_has_memory_in_words_assumptions_and_warnings() -> None:
    """knee.md explains the ledger, lists what the answer rests on and warns of what was not evaluated."""
    report = knee_markdown(found_without_tpot(), LEDGER)
    assert "28,160 blocks of 16 tokens" in report
    assert "350 of this workload's mean context" in report
    assert "## Assumptions" in report
    assert "not evaluated" in report


def test_terminal_tables_are_aligned(knee: Knee) -> None:
    """Every row of the table of loads is as long as its rule, give or take what is blank at the end."""
    lines = knee_text(knee).splitlines()
    rule = next(index for index, line in enumerate(lines) if line.startswith("----"))
    rows = lines[rule + 1 : rule + 1 + len(knee.points)]
    assert {len(row) for row in rows} == {len(lines[rule])}


def test_plain_text_is_ascii(knee: Knee) -> None:
    """Terminals that know only ASCII get <= for its sign."""
    text = plain(knee_text(knee))
    assert text.isascii()
    assert "TTFT p99 <= 1 s" in text
    assert "?" not in text


def test_an_unstable_run_is_called_so() -> None:
    """A run above capacity is labelled, with its slope, before any percentile."""
    summary = queueing()(FakeScenario(load={"rate_per_s": 12.0})).summary()
    text = run_text(summary)
    assert text.index("UNSTABLE: the queue grows by 2 requests/s") < text.index("TTFT")


def test_memory_adds_up_in_words() -> None:
    """The terminal's ledger names what is left to others, so that the column sums to the card."""
    assert "left to others            8.00 GiB" in memory_text(LEDGER)
    assert memory_text({**LEDGER, "fits": False, "reason": "KV is -2.14 GiB"}).endswith("KV is -2.14 GiB")


def test_kernels_that_no_iteration_runs_are_no_part_of_an_answer() -> None:
    """An eager collective's rows are there for `calibrate check`; one GPU or two, no answer rests on them."""
    provenance = {
        "kernels.gemm.bf16": {"kind": "measured", "source": "tables"},
        "kernels.all_reduce_eager.2": {"kind": "measured", "source": "tables"},
        "kernels.attention_prefill_fp8_compute": {"kind": "estimated", "source": "tables"},
    }
    for gpus in (1, 2):
        scenario = replace(FakeScenario(), hardware={"name": "a100-80gb-sxm", "provenance": provenance})
        scenario = scenario.replace({"engine.tensor_parallel_size": gpus})
        assert coefficient_kinds(scenario) == {"measured": ["gemm"]}
