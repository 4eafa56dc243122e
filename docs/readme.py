"""Writes the numbers of README.md: what its example prints, and the sentence that `make knee` opens with.

`python docs/readme.py` writes them; tests/test_readme.py holds the README to what this prints.
"""

from __future__ import annotations

import re
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from sim.report.text import headline

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
EXAMPLE, OUTPUT, KNEE = ("example", "python"), ("its output", "text"), ("make knee prints", "text")
Place = tuple[str, str]


def pattern(place: Place) -> re.Pattern[str]:
    """A fenced block: what stands in the comment before it, and its language."""
    after, language = place
    return re.compile(rf"(<!-- {after} -->\n```{language}\n)(.*?)(```)", flags=re.DOTALL)


def block(text: str, place: Place) -> str:
    """The content of the one block of *text* at *place*."""
    (found,) = pattern(place).findall(text)
    return str(found[1])


def answers(code: str) -> dict[Place, str]:
    """What the README must say at each place, by running its example's *code* in the project's folder."""
    names: dict[str, Any] = {}
    with chdir(ROOT), redirect_stdout(StringIO()) as printed:
        exec(compile(code, "the README's example", "exec"), names)
    return {OUTPUT: printed.getvalue(), KNEE: f"{headline(names['knee'])}.\n"}


def written(text: str) -> str:
    """The README's *text* with the blocks as they would be printed now."""
    for place, content in answers(block(text, EXAMPLE)).items():
        text = pattern(place).sub(lambda found, new=content: f"{found[1]}{new}{found[3]}", text)
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
