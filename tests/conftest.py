"""What tests of the command line share: it is called in this process."""

from __future__ import annotations

import sys

import pytest
from support import Called

from sim.cli.main import main


@pytest.fixture
def kneesim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """Call the command line in this process; answers (status, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kneesim", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call
