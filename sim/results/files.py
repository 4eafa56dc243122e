"""Tables as the bytes of files, part by part, so that a long one is never in memory as a whole."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]


def csv_parts(tables: Iterable[Columns]) -> Iterator[bytes]:
    """One CSV file of *tables*, one below the other; NaN (did not happen) is empty."""
    from pyarrow import csv

    for number, columns in enumerate(tables):
        sink = _Passing()
        csv.write_csv(_arrow(columns), sink, csv.WriteOptions(include_header=number == 0))
        yield sink.taken()


def parquet_parts(tables: Iterable[Columns]) -> Iterator[bytes]:
    """One Parquet file of *tables*, a row group or more each; NaN (did not happen) is null."""
    from pyarrow import parquet

    sink, writer = _Passing(), None
    for columns in tables:
        table = _arrow(columns)
        writer = writer or parquet.ParquetWriter(sink, table.schema, compression="zstd")
        writer.write_table(table)
        yield sink.taken()
    if writer is not None:
        writer.close()
        yield sink.taken()


class _Passing(io.RawIOBase):
    """A file whose bytes are taken away as they come."""

    def __init__(self) -> None:
        self._at, self._parts = 0, list[bytes]()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, content: Any) -> int:
        part = bytes(content)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def taken(self) -> bytes:
        """What was written since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _arrow(columns: Columns) -> Any:
    import pyarrow as pa

    return pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
