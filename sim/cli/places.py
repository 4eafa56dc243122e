"""Where a run's files go, seen to before the run."""

from __future__ import annotations

from pathlib import Path

from sim.faults import InputFault
from sim.files import make_folder, may_write

WRITTEN_TO_OUT = ("summary.json", "requests.csv", "requests.parquet", "steps.parquet", "metrics.csv")


def see_to_places(
    out: Path | None, trace: Path | None, scrape_interval: float | None, streamed: bool = False
) -> None:
    """See that all that is asked for can be written, each in its own place; raises `InputFault` where not."""
    if streamed and (trace is not None or scrape_interval is not None):
        asked = "--trace" if trace is not None else "--scrape-interval"
        raise InputFault(f"{asked} needs all records at once; leave it out, or --stream (run.stream_records)")
    if scrape_interval is not None:
        from sim.report.metrics import check_interval

        check_interval(scrape_interval)
        if out is None:
            raise InputFault("--scrape-interval is of metrics.csv, which goes with --out only; give both")
    if out is not None:
        make_folder(out)
    if trace is not None:
        may_write(trace)
    if out is not None and trace is not None and trace.name in WRITTEN_TO_OUT and trace.parent.samefile(out):
        raise InputFault(f"--trace {trace} is a file that --out {out} writes; give it another name")
