"""The cells of a kernel table's file (.csv, .csv.gz, .parquet), each row with its line."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from sim.faults import InputFault, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".csv.gz", ".parquet")
TEXTS = ("gpu", "source", "op", "dtype", "kv_dtype")

_TOO_MANY = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


def read_cells(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The rows of *path*, indexed by their line (a parquet's by row, from 1), and notes on them.

    Names are texts, a blank one empty; other columns are what they look like, a blank cell NaN. Blank lines
    are left out. Raises InputFault for a file that is not there, of another kind, damaged, or cut off.
    """
    if not str(path).lower().endswith(SUFFIXES):
        raise InputFault(f"{path}: a kernel table is a file {', '.join(SUFFIXES)}")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        near = [other.name for other in path.parent.glob("*") if other.name.endswith(SUFFIXES)]
        raise InputFault(f"{path} is not there{did_you_mean(path.name, near)}") from None
    except OSError as error:
        raise InputFault(f"{path} cannot be read: {error.strerror}") from None
    rows, notes = (read_parquet(content, path), []) if path.suffix == ".parquet" else _csv(content, path)
    if not len(rows):
        raise InputFault(f"{path} has no rows; a kernel table has a header and a line for each timing")
    for name in set(TEXTS) & set(rows.columns):
        rows[name] = rows[name].fillna("").astype(str).str.strip()
    return rows, notes


def text_of(content: bytes, path: Path) -> bytes:
    """*content* without its gzip, if it has one."""
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except EOFError:
        raise InputFault(f"{path}: the compressed data end early; the file is cut off") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputFault(f"{path}: the compressed data are damaged ({error})") from None


def _csv(content: bytes, path: Path) -> tuple[pd.DataFrame, list[str]]:
    content = text_of(content, path)
    rows = parse_csv(content, path, dict.fromkeys(TEXTS, str))
    width = len(rows.columns)
    lines = content.rstrip(b"\r\n").split(b"\n")
    if len(lines) > 1 and (fields := lines[-1].count(b",") + 1) < width:
        raise InputFault(
            f"{path}:{len(lines)}: the last line has {fields} of {width} fields; the file is cut off"
        )
    rows = rows[rows.notna().any(axis=1)]
    if content.endswith(b"\n"):
        return rows, []
    return rows, [f"{path}: the file ends within a line; if it was cut off, its last row is wrong"]


def parse_csv(content: bytes, path: Path, dtypes: dict[str, type] | None = None) -> pd.DataFrame:
    """The rows of a CSV text, indexed by line. Raises InputFault where it is none."""
    import pandas as pd

    try:
        rows = pd.read_csv(
            io.BytesIO(content),
            encoding="utf-8-sig",
            dtype=dtypes,
            keep_default_na=False,
            na_values=[""],
            skip_blank_lines=False,
            skipinitialspace=True,
            low_memory=False,
        )
    except pd.errors.EmptyDataError:
        raise InputFault(f"{path} is empty; it needs a header and a line for each timing") from None
    except pd.errors.ParserError as error:
        raise InputFault(_parser_sentence(str(error), path)) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputFault(f"{path}:{line}: a table must be text in UTF-8; save it as UTF-8") from None
    if not isinstance(rows.index, pd.RangeIndex):
        fields = content.split(b"\n")[1].count(b",") + 1
        raise InputFault(_too_many(path, len(rows.columns), 2, fields))
    rows.columns = rows.columns.str.strip()
    for name, sign in (("semicolons", ";"), ("tabs", "\t")):
        if len(rows.columns) == 1 and sign in rows.columns[0]:
            raise InputFault(f"{path}:1: the fields are separated by {name}; separate them by commas")
    rows.index = pd.RangeIndex(2, len(rows) + 2)
    return rows


def _parser_sentence(error: str, path: Path) -> str:
    found = _TOO_MANY.search(error)
    if found is None:
        return f"{path}: the text cannot be split into fields ({error.strip()})"
    width, line, fields = map(int, found.groups())
    return _too_many(path, width, line, fields)


def _too_many(path: Path, width: int, line: int, fields: int) -> str:
    hint = "a number must not have thousands commas (1024, not 1,024)"
    return f"{path}:{line}: {fields} fields, but the header has {width}; {hint}"


def read_parquet(content: bytes, path: Path) -> pd.DataFrame:
    """The rows of a parquet file's *content*, indexed from 1. Raises InputFault where it is none."""
    import pandas as pd
    import pyarrow as pa

    try:
        rows = pd.read_parquet(io.BytesIO(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputFault(f"{path} is no whole parquet file ({reason}); it may be cut off") from None
    rows.index = pd.RangeIndex(1, len(rows) + 1)
    return rows
