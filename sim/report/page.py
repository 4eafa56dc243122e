"""The page: one HTML file that holds everything a reviewer asks of a knee, and fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.files import write_whole
from sim.planning.knee import Knee
from sim.report import page_loads, page_sections, page_sources
from sim.report.answer import answer
from sim.report.page_html import Html, contents, document, joined, paragraph, tag
from sim.report.page_runs import LoadRun, run_loads
from sim.report.page_story import Story
from sim.report.windows_figure import windows_section

NAME = "page.html"
BESIDE = ("knee.png", "knee.svg", "knee.md", "knee.json", "points.csv")
CONTENTS = {
    "figure": "The knee",
    "sure": "How sure",
    "gives-way": "What gives way",
    "cost": "Cost",
    "latency": "First token",
    "tails": "Distributions",
    "time": "Over time",
    "checks": "Checks",
    "memory": "Memory",
    "grounds": "Assumptions",
    "warnings": "Warnings",
    "loads": "Loads",
    "scenario": "Scenario",
}


def write_page(knee: Knee, directory: Path, ledger: Mapping[str, Any]) -> Path:
    """Write page.html in *directory*, whole or not at all; three loads are run again for it.

    *ledger* is `memory --json`'s answer for the scenario. Raises `InputFault` if the place cannot be written.
    """
    return write_whole(directory / NAME, page(knee, run_loads(knee), ledger))


def page(knee: Knee, runs: Sequence[LoadRun], ledger: Mapping[str, Any]) -> str:
    """The page as text; equal knees and *runs* (`run_loads`) give equal text."""
    story = Story(knee, knee.as_dict(), tuple(runs), ledger)
    body = joined(
        [
            page_sections.answer(story),
            _contents(story),
            tag("main", joined(_sections(story), "\n")),
            page_sources.identity(story, BESIDE),
        ],
        "\n",
    )
    return document(f"{knee.scenario.name}: {answer(knee)}", body)


def _sections(story: Story) -> list[Html]:
    return [
        page_sections.figure(story),
        windows_section(story),
        page_sections.how_sure(story),
        page_sections.gives_way(story),
        page_sections.cost(story),
        page_loads.latency(story),
        page_loads.tails(story),
        page_loads.over_time(story),
        page_loads.checks(story),
        page_sources.memory(story),
        page_sources.grounds(story),
        page_sources.warnings(story),
        page_sources.loads_tried(story),
        page_sources.scenario_yaml(story),
    ]


def _contents(story: Story) -> Html:
    absent = set() if page_sections.how_sure(story) else {"sure"}
    there = {name: title for name, title in CONTENTS.items() if name not in absent}
    if windows_section(story):
        there = {"figure": there.pop("figure"), "windows": "Windows", **there}
    count = len(page_sources.warnings_of(story))
    warned = f"{count} warning{'s' if count != 1 else ''}: read them before quoting the answer."
    note = paragraph(tag("a", warned, href="#warnings")) if count else Html("")
    return joined([note, contents(there)])
