"""What every kind of file comes to: a header, and the rows in blocks, so that none is in memory whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sim.workload.readers.cells import Cells
from sim.workload.readers.formats import Format

BLOCK_ROWS = 1 << 14


@dataclass(frozen=True)
class Block:
    """Some rows of a file. lines: where each stands. column: the cells of one, by its name in the header."""

    lines: Sequence[int] | np.ndarray
    column: Callable[[str], Cells]


@dataclass(frozen=True)
class Table:
    """A file: its format, its kind (csv, json, parquet or log), its columns, the line of its header, its
    rows."""

    form: Format
    kind: str
    header: tuple[str, ...]
    line: int
    blocks: Iterator[Block]
