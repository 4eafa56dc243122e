"""Headless Chromium for the tests that look at a page as a browser does."""

from __future__ import annotations

import shutil
import subprocess
from base64 import b64encode
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def in_browser(path: Path, *options: str) -> tuple[str, str]:
    """The page as Chromium has it after loading, and its console; every host but this file is unknown."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={path.parent / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command += ["--disable-background-networking", "--no-first-run", *options, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, "\n".join(x for x in done.stderr.splitlines() if ":CONSOLE" in x)


def wrapped(html: str, width: int) -> str:
    """A document that shows *html* in a frame of so many pixels; its title becomes the width that needs."""
    encoded = b64encode(html.encode("utf-8")).decode("ascii")
    return (
        f'<iframe id="f" style="width:{width}px;height:900px;border:0"></iframe><script>'
        "const f = document.getElementById('f'); f.onload = () => { "
        "document.title = 'width ' + f.contentDocument.documentElement.scrollWidth; };"
        f"f.srcdoc = decodeURIComponent(escape(atob('{encoded}')));</script>"
    )
