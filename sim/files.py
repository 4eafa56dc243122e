"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sim.faults import InputFault


def make_folder(directory: Path) -> None:
    """Make *directory*, and see that a file can be written there, before work is done for it.

    Raises `InputFault` where it cannot.
    """
    write_whole(directory / ".writable", "").unlink()


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write *content* beside *path*, then rename it there: a reader never sees half a file.

    Text is UTF-8 with `\\n` line ends on every system. The folder is made if it is missing.
    Raises `InputFault` where the place cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise InputFault(f"{path} cannot be written: {error.strerror or error}") from error
    return path
