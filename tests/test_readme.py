"""The README's example runs, and prints what the README says it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def block(text: str, after: str, language: str) -> str:
    """The fenced block of *language* that follows the comment *after*."""
    found = re.search(rf"<!-- {after} -->\n```{language}\n(.*?)```", text, flags=re.DOTALL)
    assert found is not None, f"README.md has no {language} block after <!-- {after} -->"
    return found[1]


def shape(text: str) -> str:
    """*text* with every number replaced: figures may move with a profile, words may not."""
    return re.sub(r"\d[\d,]*(?:\.\d+)?", "#", text)


def test_the_example_prints_what_the_readme_says() -> None:
    """The ten lines of Python run as they stand; their output differs in figures at most."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = block(readme, "example", "python")
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shape(ended.stdout) == shape(block(readme, "its output", "text"))
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_the_scenario_shown_is_the_scenario_shipped() -> None:
    """The README's YAML says what scenarios/chat-8b-a100.yaml says, comments aside."""
    from sim.scenario import load

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```yaml\n# scenarios/chat-8b-a100.yaml\n(.*?)```", readme, flags=re.DOTALL)
    assert shown is not None
    shipped = ROOT / "scenarios" / "chat-8b-a100.yaml"
    without_comments = [
        re.sub(r"\s*#.*", "", text) for text in (shown[1], shipped.read_text(encoding="utf-8"))
    ]
    assert without_comments[0].split() == without_comments[1].split()
    assert load(shipped).name == "chat-8b-a100"


def test_links_lead_somewhere() -> None:
    """Every relative link of the README exists."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
