"""Records of a run in files, part by part."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.simulation.recorder import GAP, STEP, STRETCH, TURN, Recorder
from sim.workload import Requests

_LOGS = {"steps": STEP, "stretches": STRETCH, "gaps": GAP, "turns": TURN}
_SENT = ("arrival_s", "prompt_tokens", "output_tokens", "priorities", "classes")
_RECORDED = (
    "status",
    "queued_s",
    "first_scheduled_s",
    "first_token_s",
    "finish_s",
    "preemptions",
    "cached_tokens",
)


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of a part without its file."""

    count: int
    last_arrival_s: float
    rows: int
    shared_rows: int
    settled_s: float


class Parts:
    """Requests that are over and their records, in a *folder*: one Arrow file a table, one batch a part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts: list[_Part] = []
        self._writers: dict[str, Any] = {}
        self._class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(part.count for part in self._parts)

    def add(self, requests: Requests, recorder: Recorder) -> None:
        """Write the next part: what a run hands over (`sim.simulation.handover.Sink`)."""
        self._class_names = requests.class_names
        sent = {name: getattr(requests, name) for name in _SENT}
        recorded = {name: recorder.column(name) for name in _RECORDED}
        present = {name: column for name, column in sent.items() if column is not None}
        self._write("requests", present | recorded)
        for name, dtype in _LOGS.items():
            log = np.frombuffer(getattr(recorder, name), dtype)
            self._write(name, {column: log[column] for column in dtype.names or ()})
        partial = recorder.partial_answers
        rows, tokens = (np.array([*values], dtype=np.int64) for values in (partial, partial.values()))
        self._write("partial", {"row": rows, "tokens": tokens})
        last_s = float(requests.arrival_s.max(initial=0.0))
        self._parts.append(
            _Part(len(requests), last_s, recorder.num_rows, recorder.shared_rows, recorder.settled_s)
        )

    def _write(self, name: str, columns: dict[str, np.ndarray]) -> None:
        import pyarrow as pa

        batch = pa.record_batch({name: np.ascontiguousarray(column) for name, column in columns.items()})
        if name not in self._writers:
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            self._writers[name] = pa.ipc.new_file(self._path(name), batch.schema, options=options)
        self._writers[name].write_batch(batch)

    def _path(self, name: str) -> str:
        return str(self.folder / f"{name}.arrow")

    def close(self) -> None:
        """No more parts come."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def last_arrival_s(self) -> float:
        """When the last request arrived, in s."""
        return max(part.last_arrival_s for part in self._parts)

    def arrival_s(self, request: int) -> float:
        """When *request* (its row in the run) arrived, in s."""
        number = 0
        while request >= self._parts[number].count:
            request -= self._parts[number].count
            number += 1
        return float(self._read("requests", number)["arrival_s"][request])

    def __iter__(self) -> Iterator[tuple[Requests, Recorder]]:
        """The parts that were added, read back."""
        for number, part in enumerate(self._parts):
            columns = self._read("requests", number)
            sent: dict[str, Any] = {name: columns.get(name) for name in _SENT}
            yield Requests(**sent, class_names=self._class_names), self._recorder(part, number, columns)

    def _recorder(self, part: _Part, number: int, columns: dict[str, np.ndarray]) -> Recorder:
        recorder = Recorder(part.count)
        for name in _RECORDED:
            typecode = getattr(recorder, name).typecode
            setattr(recorder, name, array(typecode, columns[name].tobytes()))
        for name, dtype in _LOGS.items():
            read = self._read(name, number)
            log = np.empty(len(read[(dtype.names or ("",))[0]]), dtype)
            for column, values in read.items():
                log[column] = values
            setattr(recorder, name, bytearray(log.tobytes()))
        partial = self._read("partial", number)
        pairs = zip(partial["row"].tolist(), partial["tokens"].tolist(), strict=True)
        recorder.given_up.update(pairs)
        recorder.num_rows, recorder.shared_rows = part.rows, part.shared_rows
        recorder.settled_s = part.settled_s
        return recorder

    def _read(self, name: str, number: int) -> dict[str, np.ndarray]:
        import pyarrow as pa

        with pa.OSFile(self._path(name)) as file:
            batch = pa.ipc.open_file(file).get_batch(number)
            columns = zip(batch.schema.names, batch.columns, strict=True)
            return {name: column.to_numpy(zero_copy_only=False) for name, column in columns}
