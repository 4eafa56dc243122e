"""The bytes of a trace's file, opened, unpacked, and as lines of text."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from sim.faults import InputFault

_PACKED = {
    b"PK\x03\x04": "a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it, or pack it by gzip",
    b"BZh": "packed by bzip2; unpack it, or pack it by gzip",
    b"\xfd7zXZ": "packed by xz; unpack it, or pack it by gzip",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
    b"SQLite format 3": "a database of SQLite; write the requests to a CSV file",
}


@dataclass(frozen=True)
class Source:
    """The file at *path*, which names it in faults; or its *content* where that is at hand."""

    path: str
    content: bytes | None = None

    def open(self) -> BinaryIO:
        """The file's bytes, as they are."""
        return open(self.path, "rb") if self.content is None else io.BytesIO(self.content)

    @property
    def name(self) -> str:
        """The file's name in lower case, without .gz."""
        return self.path.lower().removesuffix(".gz")

    def head(self, size: int = 4096) -> bytes:
        """The first bytes, unpacked."""
        with unpacked(self) as file:
            return file.read(size)


@contextmanager
def unpacked(source: Source) -> Iterator[BinaryIO]:
    """The file's bytes, whether it is packed by gzip or not; what goes wrong on the way becomes a fault."""
    try:
        with source.open() as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[misc]
    except EOFError:
        raise InputFault(f"{source.path}: the compressed data end early; the file is cut off") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputFault(f"{source.path}: the compressed data are damaged ({error})") from None
    except OSError as error:
        raise InputFault(f"{source.path} cannot be read: {error.strerror or error}") from None


def refuse_binary(source: Source, head: bytes) -> None:
    """Raises InputFault where the first bytes *head* are those of no text."""
    for mark, what in _PACKED.items():
        if head.startswith(mark):
            raise InputFault(f"{source.path} is {what}")
    if b"\0" in head:
        raise InputFault(
            f"{source.path} is a binary file; a trace is text in UTF-8 (CSV, JSON lines, a log) or Parquet"
        )


def text_lines(source: Source) -> Iterator[str]:
    """The lines of a text in UTF-8, with their ends; a byte order mark is left out."""
    with unpacked(source) as file:
        try:
            with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                yield from text
        except UnicodeDecodeError:
            line = _undecodable(source)
            raise InputFault(
                f"{source.path}:{line}: a trace must be text in UTF-8; save it as UTF-8"
            ) from None


def _undecodable(source: Source) -> int:
    """The first line that is not UTF-8."""
    with unpacked(source) as file:
        for line, text in enumerate(file, start=1):
            try:
                text.decode("utf-8")
            except UnicodeDecodeError:
                return line
    return 1
