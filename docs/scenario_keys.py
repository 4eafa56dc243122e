"""Writes docs/scenario.md: every key of the input files, from the tables that check them."""

from __future__ import annotations

from pathlib import Path

from sim.scenario import reference_markdown

PAGE = Path(__file__).with_name("scenario.md")

if __name__ == "__main__":
    PAGE.write_text(reference_markdown(), encoding="utf-8")
