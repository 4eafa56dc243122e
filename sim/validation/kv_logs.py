"""What an inference engine's start-up log says of its memory, a row of a table each."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sim.faults import InputFault

GIB = 2**30
NEEDED = (
    "id",
    "engine_version",
    "gpu",
    "tp",
    "model",
    "max_model_len",
    "reported_kv_tokens",
    "reported_blocks",
)

_POOL = re.compile(r"\b(?:KV|kv_cache_size)(?: memory| budget| =)? ?(-?[\d.]+) ?GiB")
_POOL_IN_BYTES = re.compile(r"\b(\d{9,}) bytes for k/v cache")
_CPU_BLOCKS = re.compile(r"CPU blocks (\d+)(?: ?(?:\(=|= ?floor\(|=) ?(\d+) ?GiB)?")
_SWAP_GIB = 4  # vLLM's default swap_space
_BLOCKS_OF = re.compile(r"blocks of (\d+) tokens")
_SETTING = re.compile(r"(max[-_]num[-_](?:batched[-_]tokens|seqs))[ =]+(\d+)")
_SPLIT = re.compile(r"\btp ?= ?(\d+)")
_REFUSED = re.compile(r"refused|must-reject|impossible", re.IGNORECASE)
_VERSION = re.compile(r"vLLM v?(\d+)\.(\d+)(?!\.dev)", re.IGNORECASE)
_DATE = re.compile(r"\b(20\d\d)-(\d\d)")
_RELEASED = (
    ((2024, 7), (0, 5)),
    ((2024, 9), (0, 6)),
    ((2025, 1), (0, 7)),
    ((2025, 3), (0, 8)),
    ((2025, 7), (0, 10)),
    ((2025, 10), (0, 11)),
    ((2025, 12), (0, 12)),
    ((2026, 4), (0, 19)),
    ((2026, 5), (0, 20)),
    ((2026, 8), (0, 27)),
)
"""(year, month) from which on a version was the current one."""
_FIRST_V1 = (0, 8)


@dataclass(frozen=True)
class Log:
    """One row; None and "" are unknown.

    pool_bytes: the logged memory of the KV cache; pool_digit_bytes: half of its last printed digit. settings:
    what the notes say of the engine section.
    """

    id: str
    source: str
    engine: str
    gpu: str
    gpu_bytes: float | None
    tp: int | None
    model: str
    weight_dtype: str
    kv_dtype: str
    utilization: float | None
    max_model_len: int | None
    block_size: int
    tokens: int | None
    concurrency: float | None
    pool_bytes: float | None
    pool_digit_bytes: float
    cpu_blocks: int | None
    swap_bytes: float
    refused: bool
    settings: Mapping[str, int | bool]

    @property
    def is_vllm(self) -> bool:
        """Whether vLLM itself wrote the log."""
        return self.engine.startswith("vLLM") and "plugin" not in self.engine

    @property
    def version(self) -> tuple[int, ...]:
        """Its version; if the log only tells a month, what was released then; () where it tells neither."""
        if found := _VERSION.search(self.engine):
            return int(found[1]), int(found[2])
        dates = _DATE.findall(f"{self.engine} {self.source}")
        if not dates:
            return (0, 6) if "V0" in self.engine else ()
        month = int(dates[0][0]), int(dates[0][1])
        return max((version for since, version in _RELEASED if since <= month), default=(0, 4))

    @property
    def is_v0(self) -> bool:
        """Whether it is the V0 engine, by name or because there was no other."""
        return "V0" in self.engine or ("V1" not in self.engine and () < self.version < _FIRST_V1)


def is_logs(path: str | Path) -> bool:
    """Whether the header of *path* is that of a table of start-up logs."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return set(NEEDED) <= {name.strip() for name in file.readline().split(",")}
    except (OSError, UnicodeDecodeError):
        return False


def read_logs(path: str | Path) -> list[Log]:
    """The rows of a table of start-up logs. Raises InputFault for a file that is none and for bad numbers."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputFault(f"{path} cannot be read: {error}") from None
    rows = csv.DictReader(io.StringIO(text, newline=""))
    if absent := [name for name in NEEDED if name not in (rows.fieldnames or ())]:
        raise InputFault(f"{path}:1: no column {', '.join(absent)}; it is no table of start-up logs")
    logs, faults = [], []
    for row in rows:
        try:
            logs.append(_log({name: (value or "").strip() for name, value in row.items() if name}))
        except ValueError as error:
            faults.append(f"{path}:{rows.line_num}: {error}")
    if faults:
        raise InputFault(faults)
    return logs


def _log(row: Mapping[str, str]) -> Log:
    notes = row.get("notes", "")
    block_size = _whole(row.get("block_size", "")) or _first(_BLOCKS_OF, notes) or 16
    blocks, tokens = _whole(row["reported_blocks"]), _whole(row["reported_kv_tokens"])
    n_gpus = _whole(row["tp"]) or _first(_SPLIT, notes)
    pool, digit = _pool(notes)
    cpu = _CPU_BLOCKS.search(notes)
    memory_gib = _number(row.get("gpu_mem_gib", ""))
    settings: dict[str, int | bool] = {
        name.replace("-", "_"): int(value) for name, value in _SETTING.findall(notes)
    }
    if "enforce_eager" in notes:
        settings["cuda_graphs"] = False
    return Log(
        id=row["id"],
        source=row.get("source", ""),
        engine=row["engine_version"],
        gpu=row["gpu"],
        gpu_bytes=None if memory_gib is None else memory_gib * GIB,
        tp=n_gpus or (1 if row.get("n_gpu") == "1" else None),
        model=row["model"],
        weight_dtype=row.get("weight_dtype", ""),
        kv_dtype=row.get("kv_dtype", ""),
        utilization=_number(row.get("gpu_memory_utilization", "")),
        max_model_len=_whole(row["max_model_len"]),
        block_size=block_size,
        tokens=tokens if tokens is not None else None if blocks is None else blocks * block_size,
        concurrency=_number(row.get("reported_max_concurrency", "")),
        pool_bytes=pool,
        pool_digit_bytes=digit,
        cpu_blocks=int(cpu[1]) if cpu else None,
        swap_bytes=float(cpu[2] or _SWAP_GIB) * GIB if cpu else 0.0,
        refused=bool(_REFUSED.search(notes)),
        settings=settings,
    )


def _pool(notes: str) -> tuple[float | None, float]:
    if found := _POOL_IN_BYTES.search(notes):
        return float(found[1]), 0.0
    if found := _POOL.search(notes):
        return float(found[1]) * GIB, 0.5 * 10.0 ** -len(found[1].partition(".")[2]) * GIB
    return None, 0.0


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def _whole(cell: str) -> int | None:
    number = _number(cell)
    return None if number is None else int(number)


def _number(cell: str) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        raise ValueError(f"must be a number (got {cell})") from None
