"""Parquet: columns of whole numbers and times as they are, anything else as text; read by row groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.faults import InputFault
from sim.workload.readers.blocks import BLOCK_ROWS, Block, Table
from sim.workload.readers.cells import Cells, cell_of
from sim.workload.readers.formats import recognise
from sim.workload.readers.reading import Reading
from sim.workload.readers.source import Source

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def parquet_table(source: Source, reading: Reading) -> Table:
    """The file's columns; a row's line is its number, from 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source.path if source.content is None else pa.BufferReader(source.content))
    except (OSError, pa.ArrowException) as error:
        raise InputFault(f"{source.path} is no whole Parquet file ({error})") from None
    header = tuple(file.schema_arrow.names)
    return Table(recognise(header, "parquet", reading), "parquet", header, 1, _blocks(source.path, file))


def _blocks(path: str, file: pq.ParquetFile) -> Iterator[Block]:
    import pyarrow as pa

    line = 1
    try:
        for batch in file.iter_batches(batch_size=BLOCK_ROWS):
            yield _block(line, batch)
            line += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        raise InputFault(f"{path}: row {line} and those after cannot be read ({error})") from None


def _block(line: int, batch: pa.RecordBatch) -> Block:
    return Block(range(line, line + batch.num_rows), lambda name: _cells(batch.column(name)))


def _cells(column: pa.Array) -> Cells:
    import pyarrow as pa

    if column.null_count == 0 and pa.types.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False)
    if column.null_count == 0 and pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False).view(f"datetime64[{column.type.unit}]")
    return list(map(cell_of, column.to_pylist()))
