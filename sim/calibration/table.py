"""Measured kernels in one tidy table: reading it, and everything that can be wrong with one.

Each row is one timing in microseconds: a linear layer `Y[m,n] = X[m,k] W[n,k]^T`; causal attention of `batch`
prompts of `q_len` new tokens after `kv_len` cached ones; attention of one new token for each of `batch`
sequences with `kv_len` cached; an all-reduce of `bytes` a rank over `n_gpus`. All sizes are those of one GPU.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.datasheet import judge_speeds
from sim.calibration.table_files import TEXTS, read_cells
from sim.faults import InputFault
from sim.files import write_whole
from sim.hardware import HardwareProfile
from sim.model import KV_DTYPE_BYTES, WEIGHT_DTYPE_BYTES
from sim.scenario.catalogue import find
from sim.scenario.references import entry

if TYPE_CHECKING:
    import pandas as pd

_ATTENTION = ("batch", "kv_len", "heads", "kv_heads", "head_dim", "kv_dtype")
NEEDED = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("q_len", *_ATTENTION),
    "attention_decode": _ATTENTION,
    "all_reduce": ("bytes", "n_gpus"),
}
"""By operation: the columns that must be filled, beside those of every row."""
_ALWAYS = ("gpu", "source", "op", "dtype", "time_us")
COLUMNS = (
    *("gpu", "source", "op", "dtype", "m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads"),
    *("head_dim", "kv_dtype", "bytes", "n_gpus", "time_us"),
)

LineFaults = list[tuple[int, str]]

_SHOWN = 20
_WHOLE_COPY = 0.5  # of the rows: more copies, and a table was given twice


@dataclass(frozen=True, eq=False)
class KernelTable:
    """The rows of one card's table or tables.

    rows: those of known operations and dtypes; sizes and time_us are floats (NaN where the operation has no
    such size), names are texts. left_out: the others, with a column `reason`. notes: sentences for the person
    who measured.
    """

    card: HardwareProfile
    rows: pd.DataFrame
    left_out: pd.DataFrame
    notes: tuple[str, ...] = ()

    @property
    def skipped(self) -> dict[str, int]:
        """How many rows were left out, by reason."""
        counts = self.left_out["reason"].value_counts(sort=False)
        return {str(reason): int(count) for reason, count in counts.items()}


def read_tables(
    paths: Iterable[str | Path], card: HardwareProfile | None = None, *, stands_in: bool = False
) -> KernelTable:
    """One or several tables (.csv, .csv.gz, .parquet) of one card, as one.

    Without *card* it is the hardware profile that has the table's `gpu` as its name or alias; with it, the
    table must be of that card, or, where it *stands_in*, of one that no profile is of. Raises InputFault with
    the faults of all files, the first 20 of each in full: missing columns, cells without the number an
    operation needs, an unknown, mixed or other card, times whose unit cannot be microseconds, a table given
    twice. Rows faster than the card's peak, and unknown operations and dtypes, are left out and said.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise InputFault("name at least one kernel table")
    faults = [f"{path} is given twice" for path in dict.fromkeys(files) if files.count(path) > 1]
    cells: dict[Path, pd.DataFrame] = {}
    notes: list[str] = []
    for path in dict.fromkeys(files):
        try:
            cells[path], remarks = read_cells(path)
            notes += remarks
        except InputFault as fault:
            faults += fault.faults
    return table_of(cells, card, faults, notes, stands_in=stands_in)


def table_of(
    cells: Mapping[Path, pd.DataFrame],
    card: HardwareProfile | None = None,
    faults: Iterable[str] = (),
    notes: Iterable[str] = (),
    *,
    stands_in: bool = False,
) -> KernelTable:
    """The table of the rows of files, each indexed by its line there; as `read_tables`.

    *faults* and *notes* of reading them come before its own.
    """
    import pandas as pd

    faults, notes = list(faults), list(notes)
    tables: dict[Path, pd.DataFrame] = {}
    for path, rows in cells.items():
        try:
            tables[path] = _checked(rows.copy(), path)
        except InputFault as fault:
            faults += fault.faults
    try:
        card = _one_card(tables, card, stands_in)
    except InputFault as fault:
        raise InputFault([*faults, *fault.faults]) from None
    for path, table in tables.items():
        known = np.flatnonzero(table["reason"] == "")
        impossible, sentences, remarks = judge_speeds(table.iloc[known], card, path)
        reason = table["reason"].to_numpy(dtype=object, copy=True)
        reason[known[impossible]] = "faster than the card's peak"
        table["reason"] = reason
        faults += sentences
        notes += remarks
    if faults:
        raise InputFault(faults)
    whole = pd.concat(tables.values(), ignore_index=True)
    _refuse_copies(whole, list(tables))
    out = whole["reason"] != ""
    return KernelTable(card, whole[~out].drop(columns="reason"), whole[out], tuple(notes))


def write_table(rows: pd.DataFrame, path: Path) -> Path:
    """Write *rows* as a kernel table, to the suffix's kind of file, whole or not at all."""
    ordered = rows.reindex(columns=[*COLUMNS, *(name for name in rows.columns if name not in COLUMNS)])
    if path.suffix == ".parquet":
        return write_whole(path, ordered.to_parquet(index=False))
    text = ordered.to_csv(index=False, lineterminator="\n", float_format="%.12g").encode()
    return write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def profile_of(gpu: str) -> HardwareProfile:
    """The profile called *gpu*, or with that alias. Raises InputFault with the nearest name."""
    return HardwareProfile.from_mapping(entry("hardware", find("hardware", gpu).stem))


def _checked(rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """*rows* with every column in its type and a `reason` to leave a row out; InputFault where one is bad."""
    ops = set(rows["op"]) if "op" in rows else set()
    wanted = [*_ALWAYS, *(name for op in NEEDED if op in ops for name in NEEDED[op])]
    if absent := [name for name in dict.fromkeys(wanted) if name not in rows.columns]:
        raise InputFault(
            f"{path}:1: no column {', '.join(absent)}; the columns are {', '.join(rows.columns)}"
        )
    faults = []
    for name in COLUMNS:
        if name not in rows.columns:
            rows[name] = "" if name in TEXTS else np.nan
        elif name not in TEXTS:
            faults += _as_number(rows, name)
    faults += _row_faults(rows)
    if faults:
        raise InputFault(_at_lines(path, faults))
    rows["reason"] = _unknown(rows)
    return rows


def _as_number(rows: pd.DataFrame, name: str) -> LineFaults:
    """Make the column *name* floats; a fault for each cell that is no number."""
    import pandas as pd

    cells = rows[name]
    rows[name] = pd.to_numeric(cells, errors="coerce").astype(float)
    bad = cells[rows[name].isna() & cells.notna()]
    return [
        (line, f"{name} must be a number (got {cell})") for line, cell in zip(bad.index, bad, strict=True)
    ]


def _row_faults(rows: pd.DataFrame) -> LineFaults:
    """(line, sentence) of each cell that its row's operation cannot do with."""
    faults = _number_faults(rows, "time_us", "a number above 0")
    for op, needed in NEEDED.items():
        own = rows[rows["op"] == op]
        for name in needed:
            if name in TEXTS:
                faults += [(line, f"{name} is missing; {op} needs it") for line in own.index[own[name] == ""]]
            else:
                least = {"kv_len": 0 if op == "attention_prefill" else 1, "n_gpus": 2}.get(name, 1)
                faults += _number_faults(own, name, f"a whole number of at least {least}", least)
    more = rows["kv_heads"] > rows["heads"]
    faults += [(line, "kv_heads must not be more than heads") for line in rows.index[more]]
    for name in _ALWAYS[:-1]:
        faults += [(line, f"{name} is missing") for line in rows.index[rows[name] == ""]]
    return faults


def _number_faults(rows: pd.DataFrame, name: str, what: str, least: int | None = None) -> LineFaults:
    values = rows[name]
    good = np.isfinite(values) & ((values > 0) if least is None else (values >= least) & (values % 1 == 0))
    bad = values[~good]
    return [
        (line, f"{name} is missing" if np.isnan(value) else f"{name} must be {what} (got {value:g})")
        for line, value in zip(bad.index, bad, strict=True)
    ]


def _at_lines(path: Path, faults: LineFaults) -> list[str]:
    where = "row " if path.suffix == ".parquet" else ""
    first: dict[tuple[int, str], str] = {}
    for line, sentence in sorted(faults, key=lambda fault: fault[0]):
        first.setdefault((line, sentence.split()[0]), sentence)  # one of a cell is enough
    faults = [(line, sentence) for (line, _), sentence in first.items()]
    sentences = [f"{path}:{where}{line}: {sentence}" for line, sentence in faults[:_SHOWN]]
    return sentences + ([f"{path}: and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else [])


def _unknown(rows: pd.DataFrame) -> pd.Series:
    """Why each row is of no use to a fit, or an empty text."""
    reason = rows["op"].where(~rows["op"].isin(NEEDED), "")
    reason = reason.where(reason == "", "operation " + reason + " is unknown")
    attention = rows["op"].isin(("attention_prefill", "attention_decode"))
    for name, possible, where in (
        ("dtype", WEIGHT_DTYPE_BYTES, reason == ""),
        ("kv_dtype", KV_DTYPE_BYTES, (reason == "") & attention),
    ):
        odd = where & ~rows[name].isin(possible)
        reason = reason.where(~odd, rows["op"] + f": {name} " + rows[name] + " is unknown")
    return reason


def _one_card(
    tables: dict[Path, pd.DataFrame], card: HardwareProfile | None, stands_in: bool
) -> HardwareProfile:
    """The card of all *tables*. Raises InputFault for an unknown, a second, and another one than *card*.

    A card that *stands_in* is taken for the one that no profile is of.
    """
    own = {name.casefold() for name in (card.name, *card.aliases)} if card else set()
    cards: dict[str, HardwareProfile] = {}
    new: list[str] = []
    faults = []
    for path, table in tables.items():
        for gpu in table["gpu"].unique():
            try:
                found = card if card and gpu.casefold() in own else profile_of(gpu)
            except InputFault as fault:
                new.append(gpu)
                hint = "" if card else " (for a card without a profile: `calibrate fit --base NAME`)"
                if not (card and stands_in):
                    faults += [f"{path}: gpu: {what}{hint}" for what in fault.faults]
                continue
            cards[found.name] = found
            if card and found.name != card.name:
                faults.append(f"{path}: the table is of {found.name}, the profile of {card.name}")
    names = sorted({*cards, *new})
    if not faults and len(names) > 1:
        faults = [f"the tables are of several cards ({', '.join(names)}); give one card's"]
    if faults or not names:
        raise InputFault(faults)
    return card or cards[names[0]]


def _refuse_copies(whole: pd.DataFrame, files: Sequence[Path]) -> None:
    copies = int(whole.duplicated(keep=False).sum())
    if copies > _WHOLE_COPY * len(whole):
        names = ", ".join(map(str, files))
        raise InputFault(f"{names}: {copies} of {len(whole)} rows have copies; give each table once")
