"""A trace's cells as exact integers: counts of tokens, bytes.

Each reader takes the cells of one column and gives int64 values and the faults by row, as sentences that
follow the column's name. A cell at fault has the value 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

Cells = Sequence[Any]
"""Text (as a file of text has it), or an array of whole numbers or of times (as Parquet has it)."""
Values = tuple[np.ndarray, dict[int, str]]
CellReader = Callable[[Cells], Values]

MOST_TOKENS = 10**9

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?", re.ASCII)


def looks_numeric(cell: object) -> bool:
    """Whether *cell* is a plain decimal number."""
    return bool(_NUMBER.fullmatch(str(cell).strip()))


def all_digits(cells: Cells, most: int) -> bool:
    """Whether every cell is a text of 1 to *most* digits."""
    plain = all(map(str.isdecimal, cells)) and "".join(cells).isascii()
    return plain and max(map(len, cells), default=0) <= most


def token_counts(cells: Cells, least: int = 0) -> Values:
    """Whole numbers of tokens, at least *least*."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iu":
        tokens = cells.astype(np.int64)
    elif not isinstance(cells, np.ndarray) and all_digits(cells, most=9):
        tokens = np.array(list(map(int, cells)), dtype=np.int64)
    else:
        return each(texts(cells), lambda cell: _tokens(cell, least))
    if tokens.min(initial=least) >= least and tokens.max(initial=0) <= MOST_TOKENS:
        return tokens, {}
    return each(texts(cells), lambda cell: _tokens(cell, least))


def tokens_of_bytes(cells: Cells, bytes_per_token: float) -> Values:
    """Tokens of numbers of bytes: the nearest whole number, at least 1 where there is any byte."""
    counts, faults = token_counts(["0" if cell == "-" else cell for cell in texts(cells)])
    tokens = np.rint(counts / bytes_per_token).astype(np.int64)
    return np.where(counts > 0, np.maximum(tokens, 1), 0), faults


def tokens_of_texts(cells: Cells, bytes_per_token: float) -> Values:
    """Tokens of texts, by their length in UTF-8."""
    return tokens_of_bytes([str(len(cell.encode())) for cell in texts(cells)], bytes_per_token)


def cell_of(value: object) -> Any:
    """A JSON or Parquet *value* as a cell: a list as it is, anything else as text, nothing as empty text."""
    return value if isinstance(value, list) else "" if value is None else str(value)


def texts(cells: Cells) -> list[str]:
    """Cells as text."""
    return list(map(str, cells))


def each(cells: Cells, read: Callable[[str], int]) -> Values:
    """*read* of each cell; its ValueError is the cell's fault."""
    values, faults = [], {}
    for row, cell in enumerate(cells):
        try:
            values.append(read(cell))
        except ValueError as fault:
            values.append(1)
            faults[row] = str(fault)
    return np.array(values, dtype=np.int64), faults


def number(cell: str) -> Decimal:
    """The decimal number that *cell* is. Raises ValueError."""
    text = cell.strip()
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    if _THOUSANDS.fullmatch(text):
        raise ValueError(f'is written with thousands commas; write {text.replace(",", "")}, not "{text}"')
    raise ValueError(f"must be a number (got {text!r})" if text else "is empty")


def _tokens(cell: str, least: int) -> int:
    tokens = number(cell)
    if not least <= tokens <= MOST_TOKENS:
        raise ValueError(f"must be at least {least} and at most 1e9 (got {cell.strip()})")
    if tokens != int(tokens):
        raise ValueError(f"must be a whole number of tokens (got {cell.strip()})")
    return int(tokens)
