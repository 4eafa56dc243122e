"""The page: one HTML file that holds everything a reviewer asks of a knee, and fetches nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.files import write_whole
from sim.planning.knee import Knee
from sim.report import page_loads, page_sections, page_sources
from sim.report.answer import answer
from sim.report.page_html import Html, joined, paragraph, tag
from sim.report.page_runs import LoadRun, run_loads
from sim.report.page_story import Story

NAME = "page.html"
BESIDE = ("knee.png", "knee.svg", "knee.md", "knee.json", "points.csv")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
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
    """The page as text; equal knees and *runs* (`run_loads`) give equal text.

    No script, no font, no picture from elsewhere: a policy in its head forbids the browser to fetch.
    """
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
    return f'<!DOCTYPE html>\n<html lang="en">\n{_head(knee)}\n{tag("body", body)}\n</html>\n'


def _sections(story: Story) -> list[Html]:
    return [
        page_sections.figure(story),
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


def _head(knee: Knee) -> Html:
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    lines = [
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        Html('<link rel="icon" href="data:,">'),
        tag("title", f"{knee.scenario.name}: {answer(knee)}"),
        tag("style", Html(style)),
    ]
    return tag("head", joined(lines, "\n"))


def _contents(story: Story) -> Html:
    absent = set() if page_sections.how_sure(story) else {"sure"}
    there = {name: title for name, title in CONTENTS.items() if name not in absent}
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, title in there.items())
    count = len(page_sources.warnings_of(story))
    warned = f"{count} warning{'s' if count != 1 else ''}: read them before quoting the answer."
    note = paragraph(tag("a", warned, href="#warnings")) if count else Html("")
    return joined([note, tag("nav", tag("ul", joined(links)), aria_label="Contents")])
