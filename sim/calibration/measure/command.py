"""What `kneesim calibrate measure` does, and `python -m sim.calibration.measure` too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sim.calibration.measure.grids import DEFAULT_MODELS, all_classes
from sim.calibration.measure.plan import ordered
from sim.calibration.measure.progress import bar
from sim.calibration.measure.session import Record, run_session
from sim.calibration.measure.table_file import TableFile, conditions_path
from sim.faults import InputFault
from sim.files import may_write
from sim.model import ModelSpec

DEFAULT_MINUTES = 6.0


def measure(device: str, out: Path, models: Sequence[str] = (), minutes: float = DEFAULT_MINUTES) -> str:
    """Measure this machine's *device* (`cuda` or `cpu`) into the kernel table *out*; what to tell the user.

    Raises `InputFault` where the device, a model, the time or the place cannot be used.
    """
    if not (math.isfinite(minutes) and minutes > 0):
        raise InputFault(f"--minutes must be a number above 0 (got {minutes:g})")
    if out.suffix == ".json":
        raise InputFault(
            f"--out {out} must not end with .json: the conditions are kept beside it under that name"
        )
    may_write(out)
    specs = _models(models or DEFAULT_MODELS)
    from sim.calibration.measure.torch_device import open_device

    opened = open_device(device)
    opened.gpu = _card(opened.gpu)
    try:
        with bar() as progress:
            points = ordered(all_classes(specs, opened.n_gpus))
            table, record = run_session(opened, points, out, minutes, progress)
    finally:
        opened.close()
    return report(table, record)


def report(table: TableFile, record: Record) -> str:
    """What a session did, in a few lines."""
    rows = ", ".join(f"{op} {count}" for op, count in table.counts().items())
    lines = [
        f"{record.measured} points measured on {record.device['name']}",
        f"{table.path} has {len(table)} rows: {rows}",
        f"clocks, power and what was left out: {conditions_path(table.path)}",
    ]
    if record.sustained:
        slower = record.sustained["sustained_us"] / record.sustained["burst_us"] - 1
        lines.append(f"{record.sustained['point']}: {slower:+.1%} in time when run on and on, against bursts")
    for kind, entry in record.cannot.items():
        lines.append(f"not measured: {kind} ({entry['points']} points): {entry['reason']}")
    for kind, words in (("memory", "did not fit in memory"), ("failed", "failed")):
        skipped = [entry for entry in record.skipped if entry["kind"] == kind]
        if skipped:
            lines.append(
                f"{len(skipped)} points {words}, such as {skipped[0]['point']}: {skipped[0]['reason']}"
            )
    if record.left:
        lines.append(f"{record.left} points are left; the same command goes on with them")
    return "\n".join(lines)


def _card(name: str) -> str:
    """The hardware profile that knows the driver's *name* of a card, or that name."""
    from sim.scenario import find

    try:
        return find("hardware", name).stem
    except InputFault:
        return name


def _models(names: Sequence[str]) -> list[ModelSpec]:
    from sim.scenario import entry

    specs, faults = [], []
    for name in names:
        try:
            specs.append(ModelSpec.from_mapping(entry("models", name)))
        except InputFault as fault:
            faults += [f"--models: {sentence}" for sentence in fault.faults]
    if faults:
        raise InputFault(faults)
    return specs
