"""The answer of one run: a summary, two tables, and the files that keep them."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.files import write_whole
from sim.results.files import csv_parts, parquet_parts
from sim.results.parts import Parts
from sim.results.records import Records
from sim.results.requests import RequestTable
from sim.results.summary import summarise
from sim.simulation import Run
from sim.simulation.clients import Progress

if TYPE_CHECKING:
    import pandas as pd

_STEP_COLUMNS = (
    "start_s",
    "end_s",
    "iterations",
    "decodes",
    "context_tokens",
    "prefill_tokens",
    "prefill_sequences",
    "blocks_first",
    "blocks_last",
    "waiting",
)


class Result:
    """What a run answers.

    `summary()` is the document of ``kneesim run --json``; `requests` and `steps` are DataFrames, one
    row a request and one row a batch (iterations that repeat the same decodes share one). Where the records
    are in files (*parts*), there is the summary and `write` alone.
    """

    def __init__(self, run: Run, parts: Parts | None = None, progress: Progress | None = None) -> None:
        self.run = run
        self._records = Records(run, parts, progress)

    @property
    def _table(self) -> RequestTable:
        return self._records.whole

    def __repr__(self) -> str:
        return f"<Result of {self.run.scenario.name}: {len(self._records)} requests>"

    @property
    def in_files(self) -> bool:
        """Whether the records are in files, and not at hand as a whole."""
        return self._records.parts is not None

    def summary(self) -> dict[str, Any]:
        """Latencies, throughputs, goodput, KV occupancy and what held up the queue; no NaN in it."""
        return self._summary

    @cached_property
    def _summary(self) -> dict[str, Any]:
        return summarise(self._records)

    def series(self, metric: str) -> np.ndarray:
        """A latency *metric* (`ttft`, `tpot`, ..) of every request, in order of arrival, in s.

        NaN where it is undefined or the request did not complete. For `itl`, which is no number of a
        request, its largest gap.
        """
        name = "stall" if metric == "itl" else metric
        return np.where(self._table.completed, getattr(self._table, f"{name}_s"), np.nan)

    def sample(self, metric: str, first: int | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """The values of a latency *metric* in the window, in s, and their weights (None: one each).

        *first* is the first request that counts; without it the scenario's warm-up decides. `itl` has
        weights: equal gaps are counted together.
        """
        measured = self._table.measured
        if first is not None:
            measured = self._table.completed & (np.arange(len(self._table)) >= first)
        if metric == "itl":
            return self._table.log.gaps(measured).pairs()
        return self._table.values(metric, measured), None

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, warm-up included."""
        import pandas as pd

        return pd.DataFrame(self._table.columns())

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row a batch: times in s, tokens, sequences, KV blocks in use, queue length at its end."""
        import pandas as pd

        return pd.DataFrame(_step_columns(self._table))

    def write(self, directory: str | Path) -> list[Path]:
        """Write summary.json, requests.csv, requests.parquet and steps.parquet; returns their paths.

        Each file is there whole or not at all.
        """
        folder = Path(directory)
        text = json.dumps(self.summary(), indent=1, allow_nan=False) + "\n"
        return [
            write_whole(folder / "summary.json", text),
            write_whole(folder / "requests.csv", csv_parts(t.columns() for t in self._records)),
            write_whole(folder / "requests.parquet", parquet_parts(t.columns() for t in self._records)),
            write_whole(folder / "steps.parquet", parquet_parts(map(_step_columns, self._records))),
        ]


def _step_columns(table: RequestTable) -> dict[str, np.ndarray]:
    recorder = table.run.recorder
    return {name: recorder.column(name)[: recorder.own_rows] for name in _STEP_COLUMNS}
