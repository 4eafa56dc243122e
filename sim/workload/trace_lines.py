"""Recorded traffic with the ids of its prompts' blocks: a JSON object a line for each request.

Mooncake's traces (Qin et al., FAST 2025) have `timestamp` in milliseconds, `input_length`, `output_length`
and `hash_ids` of blocks of 512 tokens. Qwen-Bailian's (Wang et al., USENIX ATC 2025) have `chat_id` too,
seconds, and blocks of 16.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from sim.faults import InputFault
from sim.workload.chains import Chains
from sim.workload.trace_cells import Cells, milliseconds, seconds, token_counts
from sim.workload.trace_columns import ARRIVAL_SECONDS, OUTPUT, PROMPT, Columns, LineFaults, missing, named

STAMP, IDS, CHAT = "timestamp", "hash_ids", "chat_id"
MOONCAKE_BLOCK_TOKENS, BAILIAN_BLOCK_TOKENS = 512, 16

Reader = Callable[[Cells], tuple[np.ndarray, dict[int, str]]]
Record = dict[str, Any]


def is_lines(path: str) -> bool:
    """Whether *path* is called like a file of JSON lines."""
    return path.lower().removesuffix(".gz").endswith(".jsonl")


def read_lines(text: str, path: str) -> tuple[Columns, LineFaults]:
    """The columns of a file's *text*, and what is at fault in them. Raises InputFault where the first
    request says that the file is no such trace."""
    lines, records, faults = _records(text)
    if not records:
        if faults:
            return Columns((), [], None, np.array([]), np.array([])), faults
        raise InputFault(f"{path} is empty; a trace needs a line for each request")
    header = tuple(records[0])
    arrival, prompt, output = _roles(header, f"{path}:{lines[0]}")
    columns: list[np.ndarray] = []
    roles: tuple[tuple[str, Reader], ...] = (
        (prompt, lambda cells: token_counts(cells, least=1)),
        (output, token_counts),
        *([(arrival, _clock(arrival, header))] if arrival else []),
    )
    for name, reader in roles:
        values, in_cells = reader([_cell(record.get(name)) for record in records])
        columns.append(values)
        faults += [(lines[row], f"{name} {sentence}") for row, sentence in in_cells.items()]
    chains, in_ids = _chains(lines, records, _block_tokens(header))
    arrival_ns = columns[2] if arrival else None
    return Columns(header, lines, arrival_ns, columns[0], columns[1], chains), faults + in_ids


def _records(text: str) -> tuple[list[int], list[Record], LineFaults]:
    """The objects, the line of each, and the lines that are none."""
    decode = json.JSONDecoder(parse_float=Decimal, parse_constant=str).decode
    lines, records = [], []
    faults: LineFaults = []
    for line, row in enumerate(text.split("\n"), start=1):
        if not row or row.isspace():
            continue
        try:
            record = decode(row)
        except (ValueError, RecursionError) as error:
            faults.append((line, f"is not JSON ({error})"))
            continue
        if isinstance(record, dict):
            lines.append(line)
            records.append(record)
        else:
            faults.append((line, "must be a JSON object with the keys of a request"))
    return lines, records, faults


def _roles(header: tuple[str, ...], place: str) -> tuple[str, str, str]:
    """The keys of the arrival (may be empty), the prompt and the output."""
    if "requests" in header:
        raise InputFault(
            f"{place}: a line holds a whole session (its key requests); write a line for each request, with "
            f"{STAMP} in milliseconds, input_length, output_length and {IDS}, and set prefixes.block_tokens"
        )
    arrivals = named(header, (STAMP, *ARRIVAL_SECONDS))
    prompts, outputs = named(header, PROMPT), named(header, OUTPUT)
    faults = [
        f"{place}: {missing(f'the {meaning} tokens', names, header)}"
        for meaning, found, names in (("prompt", prompts, PROMPT), ("output", outputs, OUTPUT))
        if not found
    ]
    for meaning, found in (("the arrival", arrivals), ("the prompt", prompts), ("the output", outputs)):
        if len(found) > 1:
            faults.append(f"{place}: more than one column for {meaning}: {', '.join(found)}; keep one")
    if faults:
        raise InputFault(faults)
    return (arrivals or [""])[0], prompts[0], outputs[0]


def _clock(arrival: str, header: Sequence[str]) -> Reader:
    return milliseconds if arrival.lower() == STAMP and CHAT not in header else seconds


def _block_tokens(header: Sequence[str]) -> int | None:
    if CHAT in header:
        return BAILIAN_BLOCK_TOKENS
    return MOONCAKE_BLOCK_TOKENS if STAMP in header else None


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _chains(
    lines: list[int], records: list[Record], block_tokens: int | None
) -> tuple[Chains | None, LineFaults]:
    """The ids; None where no request has any."""
    ids: list[Sequence[Hashable]] = []
    faults: LineFaults = []
    for line, record in zip(lines, records, strict=True):
        own = record.get(IDS) or []
        if isinstance(own, list) and set(map(type, own)) <= {int, str}:
            ids.append(own)
        else:
            faults.append((line, f"{IDS} must be a list of whole numbers or texts"))
    return (Chains.of(ids, lines, block_tokens) if any(ids) and not faults else None), faults
