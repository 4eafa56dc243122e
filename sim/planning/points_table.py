"""One table of many runs: a row a run, its summary laid flat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Columns = dict[str, list[Any]]

_LEFT_OUT = frozenset(
    {"kneesim", "scenario", "seed", "by_class", "simulator.wall_s", "simulator.requests_per_s"}
)
_PANDAS = {"bool": "boolean", "int": "Int64", "float": "float64", "text": "object"}
_ARROW = {"bool": "bool_", "int": "int64", "float": "float64", "text": "string"}
_WITHOUT_GAPS = {"bool": "bool", "int": "int64"}


def flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A run's summary as dotted names and single values, `{"ttft_s.p99": 0.5, ...}`; *warnings* counted."""
    values = dict(_flat(summary, ""))
    if "warnings" in values:
        values["warnings"] = len(values["warnings"])
    return values


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if name in _LEFT_OUT:
            continue
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{name}.")
        else:
            yield name, inner


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """The rows turned into columns of one type each, in the order in which names first appear."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: _plain(name, [row.get(name) for row in rows]) for name in names}


def _plain(name: str, values: list[Any]) -> list[Any]:
    """*values*, as text (of lists and mappings: JSON) if they are not all of one kind."""
    if _kind(name, values) != "text":
        return values
    return [x if x is None or isinstance(x, str) else json.dumps(x, sort_keys=True) for x in values]


def _kind(name: str, values: Sequence[Any]) -> str:
    """`bool`, `int` (of 64 bits), `float` or `text`: what holds all values that are there."""
    there = [x for x in values if x is not None]
    if not there:
        return "text" if name.endswith(("fault", "reason")) else "float"
    if all(isinstance(x, bool) for x in there):
        return "bool"
    if any(isinstance(x, bool) or not isinstance(x, int | float) for x in there):
        return "text"
    whole = all(isinstance(x, int) for x in there)
    if whole and max(map(abs, there)) < 2**63:
        return "int"
    return "text" if whole else "float"


def frame(columns: Columns) -> pd.DataFrame:
    """A DataFrame; what is not there is NA."""
    import pandas as pd

    types = {name: _dtype(name, values) for name, values in columns.items()}
    return pd.DataFrame({name: pd.Series(values, dtype=types[name]) for name, values in columns.items()})


def _dtype(name: str, values: Sequence[Any]) -> str:
    kind = _kind(name, values)
    return _PANDAS[kind] if None in values else _WITHOUT_GAPS.get(kind, _PANDAS[kind])


def load_writers() -> None:
    """Import what writes files; it takes a second."""
    import pandas  # noqa: F401 (pyarrow asks for it)
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401


def csv_bytes(columns: Columns) -> bytes:
    """A CSV file with a header; what is not there is empty."""
    import pyarrow as pa
    from pyarrow import csv

    sink = pa.BufferOutputStream()
    csv.write_csv(_arrow(columns), sink)
    return sink.getvalue().to_pybytes()


def parquet_bytes(columns: Columns) -> bytes:
    """A Parquet file; what is not there is null."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(_arrow(columns), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _arrow(columns: Columns) -> Any:
    import pyarrow as pa

    types = {name: getattr(pa, _ARROW[_kind(name, values)])() for name, values in columns.items()}
    return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
