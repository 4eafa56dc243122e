"""docs/engines.md says what the presets say, and what recordings say of them."""

from __future__ import annotations

import engines
import pytest


def test_the_page_is_what_the_presets_say() -> None:
    """`python docs/engines.py` would write the page that is there."""
    assert engines.PAGE.read_text(encoding="utf-8") == engines.page()


def test_without_recordings_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed copy, say, has none."""
    monkeypatch.setattr(engines, "RECORDINGS", engines.PAGE.with_name("nowhere"))
    assert engines.conformance() == ["There is no recording in tests/recordings."]


def test_every_recorded_case_matches() -> None:
    """The table's last row: as many matched as there are cases, at least 200 of each of eight kinds."""
    rows = [row.split(" | ") for row in engines.conformance()[0].splitlines()[2:]]
    kinds = [row for row in rows if row[0] == "| vllm 0.32.0"]
    assert len(kinds) == 8
    assert all(row[-1].strip(" |") == row[4] for row in rows)
    assert min(int(row[4]) for row in kinds) >= 200
