"""What every format of a trace comes to: columns, and faults by line of the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from sim.faults import InputFault

if TYPE_CHECKING:
    from sim.workload.chains import Chains

SHOWN_FAULTS = 20
ARRIVAL_SECONDS = ("arrival_s", "arrived_at", "arrival_time_s")
PROMPT = ("prompt_tokens", "ContextTokens", "num_prefill_tokens", "input_tokens", "input_length")
OUTPUT = ("output_tokens", "GeneratedTokens", "num_decode_tokens", "output_length")

LineFaults = list[tuple[int, str]]
"""(line in the file, sentence without the place)."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The requests of a file in its order. arrival_ns: int64, exact, or None. lines: where each stands."""

    header: tuple[str, ...]
    lines: Sequence[int]
    arrival_ns: np.ndarray | None
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    chains: Chains | None = None


def at_lines(path: str, faults: LineFaults) -> InputFault:
    """The faults of the file *path* in its order, the first 20 in full."""
    faults = sorted(faults, key=lambda fault: fault[0])
    sentences = [f"{path}:{line}: {sentence}" for line, sentence in faults[:SHOWN_FAULTS]]
    if (more := len(faults) - SHOWN_FAULTS) > 0:
        sentences.append(f"{path}: and {more} more")
    return InputFault(sentences)


def named(header: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns of *header* that are called one of *names*, in any case."""
    wanted = [name.lower() for name in names]
    return [column for column in header if column.lower() in wanted]


def missing(meaning: str, names: Sequence[str], header: Sequence[str]) -> str:
    """The sentence on a column that is not there, with the names it may have and near ones that are."""
    spelt = {name.lower(): name for name in names}
    near = [(column, get_close_matches(column.lower(), spelt, n=1, cutoff=0.75)) for column in header]
    meant = "".join(f"; {column}: did you mean {spelt[match[0]]}?" for column, match in near if match)
    return f"no column for {meaning} ({', '.join(names)}); the columns are {', '.join(header)}{meant}"
