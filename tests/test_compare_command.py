"""`kneesim compare`: which scenarios it takes, what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest
from browser import browser, in_browser, wrapped
from support import Called
from test_compare import VARIED
from test_page import Reader

import sim
from sim.cli.compare import loaded
from sim.cli.main import main
from sim.faults import InputFault
from sim.planning.compare import Comparison, compare
from sim.report.compare_files import write_comparison
from sim.report.compare_page import compare_page
from sim.report.compare_text import compare_markdown, compare_text

FILES = ("page.html", "compare.md", "compare.csv", "compare.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """base.yaml, and on it two that come before it in the alphabet."""
    (tmp_path / "base.yaml").write_text(json.dumps(VARIED))
    (tmp_path / "a-fast.yaml").write_text("base: base.yaml\nload: {rate_per_s: 8}\n")
    (tmp_path / "aa-few.yaml").write_text("base: base.yaml\nengine: {max_num_seqs: 2}\n")
    return tmp_path


@pytest.fixture(scope="module")
def three() -> Comparison:
    """The first, one that is worse, and one that cannot run."""
    base = sim.load(VARIED)
    few = base.replace({"name": "few <b>", "engine.max_num_seqs": 2})
    large = base.replace({"name": "large", "model": "llama-3.1-70b"})
    return compare([base, few, large, base], seeds=3, workers=1)


def test_a_folder_stands_for_what_is_in_it_with_its_base_first(folder: Path) -> None:
    """By path; changes go to all of them, wherever they stand."""
    found = loaded([str(folder), "run.requests=7"])
    assert [scenario.name for scenario in found] == ["small", "a-fast", "aa-few"]
    assert {scenario.run["requests"] for scenario in found} == {7}


def test_a_file_whose_name_has_an_equals_sign_is_a_file(folder: Path) -> None:
    """What is there is no change."""
    path = folder / "rate=9.yaml"
    path.write_text("base: base.yaml\nload: {rate_per_s: 9}\n")
    assert [one.load["rate_per_s"] for one in loaded([str(folder / "base.yaml"), str(path)])] == [4, 9]


def test_json_is_one_document(folder: Path, kneesim: Called) -> None:
    """With the shape that --help tells."""
    status, out, err = kneesim("compare", str(folder), "--seeds", "2", "--workers", "1", "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert set(document) == {"kneesim", "seeds", "confidence", "scenarios", "missing", "warnings"}
    assert document["seeds"] == [1, 2]
    first, fast, _ = document["scenarios"]
    assert fast["differs"] == {
        "load.rate_per_s": {
            "first": 4.0,
            "here": 8.0,
            "first_source": "base.yaml:1",
            "source": "a-fast.yaml:2",
        }
    }
    assert set(fast["numbers"]["ttft_s.p99"]["difference"]) == {
        "mean",
        "interval",
        "seen",
        "seeds",
        "relative",
    }
    assert "difference" not in first["numbers"]["ttft_s.p99"]


def test_the_text_has_every_number_once(three: Comparison) -> None:
    """In the table with its interval, or by name among those without a difference; faults are told."""
    text = compare_text(three)
    block = text.split("few <b> against small\n")[1].split("\n\nlarge against")[0]
    for number in three.numbers:
        lines = [
            line
            for line in block.splitlines()
            if re.search(rf"(^|  |, ){re.escape(number.name)}(  |,|$)", line)
        ]
        assert len(lines) == 1, number.name
    assert "engine.max_num_seqs: 256 \N{RIGHTWARDS ARROW} 2" in block
    assert "cannot run: " in text.split("large against small\n")[1]
    assert "small (2) against small\n\n  nothing differs" in text


def test_a_pipe_that_knows_ascii_only_gets_ascii(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Arrows too."""
    with open(tmp_path / "out.txt", "w", encoding="ascii") as target:
        monkeypatch.setattr(sys, "stdout", target)
        monkeypatch.setattr(
            sys, "argv", ["kneesim", "compare", str(folder), "--seeds", "1", "--workers", "1"]
        )
        with pytest.raises(SystemExit):
            main()
    assert "load.rate_per_s: 4 -> 8" in (tmp_path / "out.txt").read_text(encoding="ascii")


def test_a_terminal_gets_colours(folder: Path) -> None:
    """Worse lines are red, better ones green: the cells are those of the plain table."""
    from rich.console import Console

    from sim.report.compare_text import coloured

    answer = compare(loaded([str(folder)]), seeds=3, workers=1)
    console = Console(force_terminal=True, color_system="standard", width=200, file=io.StringIO())
    for part in coloured(answer):
        console.print(part)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any("\x1b[31mE2E p99" in line for line in lines)
    assert any("\x1b[32mrequests/s" in line for line in lines)


def test_the_files_say_the_same(three: Comparison, tmp_path: Path) -> None:
    """A row of the spreadsheet for each number of each scenario that ran; Markdown has the tables."""
    assert [path.name for path in write_comparison(three, tmp_path)] == list(FILES)
    rows = list(csv.DictReader((tmp_path / "compare.csv").read_text().splitlines()))
    assert {row["scenario"] for row in rows} == {"few <b>", "small (2)"}
    assert len(rows) == 2 * len(three.numbers)
    document = json.loads((tmp_path / "compare.json").read_text())
    by_path = document["scenarios"][1]["numbers"]
    worse = next(row for row in rows if row["number"] == "ttft_s.p99")
    assert float(worse["difference"]) == by_path["ttft_s.p99"]["difference"]["mean"]
    assert (tmp_path / "compare.md").read_text() == compare_markdown(three)


def test_the_page_is_well_formed_and_fetches_nothing(three: Comparison) -> None:
    """Names are text, links within arrive, and every scenario has its section."""
    html = compare_page(three)
    reader = Reader(html)
    assert reader.open == []
    assert "few &lt;b&gt;" in html
    assert "<b>" not in html.replace("Kneesim <b>", "")
    targets = {value[1:] for _, key, value in reader.attributes if key == "href" and value.startswith("#")}
    assert targets <= set(reader.ids)
    assert {"all", "c1", "c2", "c3", "first"} <= targets
    assert not {key for _, key, _ in reader.attributes} & {"src", "srcset", "action"}


@browser
@pytest.mark.parametrize("width", [360, 1100])
def test_no_width_makes_the_page_scroll_sideways(three: Comparison, width: int, tmp_path: Path) -> None:
    """Only tables scroll, in their boxes; and the console stays silent."""
    path = tmp_path / "frame.html"
    path.write_text(wrapped(compare_page(three), width), encoding="utf-8")
    shown, _ = in_browser(path, "--dump-dom", "--window-size=1300,1000", "--virtual-time-budget=5000")
    found = re.search(r"<title>width (\d+)</title>", shown)
    assert found is not None
    assert int(found[1]) <= width
    path.write_text(compare_page(three), encoding="utf-8")
    assert in_browser(path, "--dump-dom")[1] == ""


def test_all_faults_of_all_scenarios_are_told_at_once(folder: Path, kneesim: Called) -> None:
    """With status 2 and no traceback; an unknown name with the nearest."""
    (folder / "broken.yaml").write_text("base: base.yaml\nload: {rate: 3}\n")
    status, out, err = kneesim(
        "compare", str(folder / "broken.yaml"), "chat-8b-a10", str(folder / "base.yaml")
    )
    assert (status, out) == (2, "")
    assert "broken.yaml:2: load.rate is unknown" in err
    assert "scenario chat-8b-a10 is unknown; did you mean chat-8b-a100?" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["base.yaml"], "compare needs two scenarios or more (got small)"),
        (["run.requests=7"], "compare needs two scenarios or more (got none)"),
        (["empty"], "empty is a folder without scenarios"),
    ],
)
def test_what_is_no_comparison_is_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kneesim: Called, arguments: list[str], sentence: str
) -> None:
    """And status 2."""
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder)
    status, _, err = kneesim("compare", *arguments)
    assert status == 2
    assert sentence in err


def test_a_folder_of_the_catalogue_has_a_name() -> None:
    """`kneesim compare benchmark` is the seven tests and what they stand on."""
    with pytest.raises(InputFault, match="scenario benchmarc is unknown"):
        loaded(["benchmarc"])
    assert loaded(["benchmark"])[0].name == "base"
