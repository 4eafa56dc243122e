"""What a long search has finished, kept on disk line by line, so that it can go on after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from time import monotonic
from typing import Any

from sim.faults import InputFault
from sim.version import __version__

_SYNC_S = 1.0  # a killed process loses nothing that was written; this is for the machine itself


class Journal:
    """The file `journal.jsonl`: a head that says whose points these are, then one JSON line a point.

    *answers* holds what is finished, by the point's key. A line that a kill cut short is as good as none.
    """

    def __init__(self, path: Path, file: FileIO, answers: dict[str, Any]) -> None:
        self.path = path
        self.answers = answers
        self._file = file
        self._synced_s = monotonic()

    def add(self, key: str, answer: str) -> None:
        """Keep *answer*, which is JSON, under *key*. Raises `InputFault` where there is no room."""
        try:
            _write(self._file, f'{{"key": "{key}", "answer": {answer}}}')
            if monotonic() - self._synced_s > _SYNC_S:
                os.fsync(self._file.fileno())
                self._synced_s = monotonic()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.answers[key] = json.loads(answer)

    def written(self) -> dict[str, Any]:
        """What stands in the file: also an answer that an interrupt kept from being known here."""
        return dict(_answers(_whole_lines(self._file)))


@contextmanager
def opened(path: Path, scenario: str, sha256: str) -> Iterator[Journal]:
    """The journal at *path* for points of the *scenario* of that fingerprint, new or gone on with.

    Raises `InputFault` if it belongs to another scenario, is no journal, is being written by another
    process, or cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(path, "a+")
    except OSError as error:
        raise _unwritable(path, error) from error
    with file:
        _lock(file, path)
        try:
            lines = _whole_lines(file)
            if not lines:
                head = {"version": __version__, "scenario": scenario, "sha256": sha256}
                _write(file, json.dumps(head))
        except OSError as error:
            raise _unwritable(path, error) from error
        if lines:
            _same_scenario(path, lines.pop(0), scenario, sha256)
        yield Journal(path, file, dict(_answers(lines)))
        os.fsync(file.fileno())


def _write(file: FileIO, line: str) -> None:
    """All of *line*: a disk takes what it still has room for before it says that it is full."""
    rest = f"{line}\n".encode()
    while rest:
        rest = rest[file.write(rest) :]


def _whole_lines(file: FileIO) -> list[bytes]:
    """The lines of *file*, which is cut after the last whole one."""
    file.seek(0)
    data = file.read()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        file.truncate(end)
    return data[:end].splitlines()


def _answers(lines: list[bytes]) -> Iterator[tuple[str, Any]]:
    for line in lines:
        try:
            entry = json.loads(line)
            yield entry["key"], entry["answer"]
        except (ValueError, KeyError, TypeError):
            continue  # a disk that was full, a hand that edited: the point is run again


def _same_scenario(path: Path, line: bytes, scenario: str, sha256: str) -> None:
    try:
        head = json.loads(line)
        theirs, name, version = head["sha256"], head["scenario"], head["version"]
    except (ValueError, KeyError, TypeError):
        raise InputFault(f"{path} is no journal of finished runs; name another folder") from None
    if version != __version__:
        raise InputFault(
            f"{path} was written by kneesim {version}, whose numbers may differ from those of {__version__}; "
            "name another folder, or remove that file to start anew"
        )
    if theirs != sha256:
        raise InputFault(
            f"{path} belongs to another scenario ({name}, sha256 {theirs[:12]}; asked for is {scenario}, "
            f"{sha256[:12]}); name another folder, or remove that file to start anew"
        )


def _lock(file: FileIO, path: Path) -> None:
    """Two processes must not write one journal; the system lifts the lock however its holder ends."""
    try:
        import fcntl
    except ImportError:  # not on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputFault(f"another process is writing {path}; wait for it, or name another folder") from None
    except OSError:
        return  # a file system without locks


def _unwritable(path: Path, error: OSError) -> InputFault:
    return InputFault(
        f"{path} cannot be written: {error.strerror or error}; points finished before are kept in it"
        if path.is_file()
        else f"{path} cannot be written: {error.strerror or error}"
    )
