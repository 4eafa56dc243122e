"""The README's example runs, and its numbers are what is simulated now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import readme

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@pytest.fixture(scope="module")
def answers() -> dict[readme.Place, str]:
    return readme.answers(readme.block(TEXT, readme.EXAMPLE))


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def test_the_example_is_ten_lines() -> None:
    """As the README says."""
    assert len([line for line in readme.block(TEXT, readme.EXAMPLE).splitlines() if line.strip()]) <= 10


def test_the_run_prints_what_the_readme_says(answers: dict[readme.Place, str]) -> None:
    """One run is the same on every machine: its line is there to the letter."""
    assert readme.block(TEXT, readme.OUTPUT).splitlines()[0] == answers[readme.OUTPUT].splitlines()[0]


@pytest.mark.parametrize("place", [readme.OUTPUT, readme.KNEE], ids=lambda place: place[0])
def test_the_knee_is_the_one_the_readme_says(place: readme.Place, answers: dict[readme.Place, str]) -> None:
    """Word for word; knee, intervals and capacity to the 2 % that the search is asked for.

    The example's last line tells of the first load tried that fails; which one that is the search decides.
    `make docs` writes all of them again.
    """
    said, found = readme.block(TEXT, place), answers[place]
    assert NUMBER.sub("#", said) == NUMBER.sub("#", found)
    lines = zip(said.splitlines()[:2], found.splitlines()[:2], strict=True)
    assert all(numbers(old) == pytest.approx(numbers(new), rel=0.02) for old, new in lines)


def test_the_example_and_make_knee_tell_of_one_knee() -> None:
    """Both are of the scenario as it is shipped: equal knees, to the digits that are printed."""
    from sim.planning.wording import number

    knee = float(re.search(r"knee ([\d.]+)/s", readme.block(TEXT, readme.OUTPUT))[1])
    assert f"Serves {number(knee)} requests/s" in readme.block(TEXT, readme.KNEE)


def test_writing_the_readme_changes_its_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make docs` writes differs from what is there in the two blocks, and nowhere else."""
    other = {readme.OUTPUT: "other output\n", readme.KNEE: "other knee \\1\n"}
    monkeypatch.setattr(readme, "answers", lambda code: other)
    new = readme.written(TEXT)
    assert {place: readme.block(new, place) for place in other} == other
    for place, content in other.items():
        new = new.replace(content, readme.block(TEXT, place))
    assert new == TEXT


def test_the_scenario_shown_is_the_scenario_shipped() -> None:
    """The README's YAML says what scenarios/chat-8b-a100.yaml says, comments aside."""
    from sim.scenario import load

    shown = re.search(r"```yaml\n# scenarios/chat-8b-a100.yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    assert shown is not None
    shipped = ROOT / "scenarios" / "chat-8b-a100.yaml"
    without_comments = [
        re.sub(r"\s*#.*", "", text) for text in (shown[1], shipped.read_text(encoding="utf-8"))
    ]
    assert without_comments[0].split() == without_comments[1].split()
    assert load(shipped).name == "chat-8b-a100"


def test_links_lead_somewhere() -> None:
    """Every relative link of the README exists."""
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
