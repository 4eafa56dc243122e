"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sim.faults import InputFault

_LOG_NAME = re.compile(r"\.log([.-]\d[\d.-]*)?(\.gz)?$", re.IGNORECASE)


def is_log_name(name: str) -> bool:
    """Whether a file is called like a log, be it one put by (`access.log.1`, `access.log-20251026.gz`)."""
    return _LOG_NAME.search(name) is not None


def make_folder(directory: Path) -> None:
    """Make *directory*, and see that a file can be written there, before work is done for it.

    Raises `InputFault` where it cannot.
    """
    _probe(directory, directory / "any")


def may_write(path: Path) -> None:
    """See that a file *path* can be written, before work is done for it; raises `InputFault` where not."""
    if os.path.isdir(path):
        raise InputFault(f"{path} cannot be written: it is a folder")
    _probe(path, path)


def _probe(named: Path, path: Path) -> None:
    """Write what `write_whole` would write beside *path*, and take it away; a fault is one of *named*."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _beside(path).write_bytes(b"")
        _beside(path).unlink()
    except OSError as error:
        raise _fault(named, error) from error


def write_whole(path: Path, content: str | bytes | Iterable[bytes]) -> Path:
    """Write *content* beside *path*, then rename it there: a reader never sees half a file.

    Content in parts is never in memory as a whole. Text is UTF-8 with `\\n` line ends on every system.
    The folder is made if it is missing. Raises `InputFault` where the place cannot be written.
    """
    content = content.encode("utf-8") if isinstance(content, str) else content
    beside = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise _fault(path, error) from error
    except BaseException:  # interrupted
        with suppress(OSError):
            beside.unlink()
        raise
    return path


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _fault(path: Path, error: OSError) -> InputFault:
    return InputFault(f"{path} cannot be written: {error.strerror or error}")
