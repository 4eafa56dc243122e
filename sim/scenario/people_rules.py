"""Requirements that more than one key about people and their clients has a part in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.scenario.rules import Report

Values = Mapping[str, Any]


def people_rules(workload: Values, report: Report) -> None:
    """The rules within `patience` and `retries`; what is at fault is not in *workload*."""
    written = report.tree.get(("patience",))
    if isinstance(written, dict):
        _patience_rules(written, report)
    retries = workload.get("retries") or {}
    base_s, cap_s = retries.get("base_s"), retries.get("cap_s")
    if base_s is not None and cap_s is not None and base_s > cap_s:
        report("retries.cap_s", f"must be >= base_s {base_s:g} (got {cap_s:g})")


def _patience_rules(written: Values, report: Report) -> None:
    kind = written.get("kind")
    of_kind = [key for key in ("mean_s", "cv", "shape", "share") if written.get(key) is not None]
    if kind is None and of_kind:
        report("patience.kind", f"is missing: the distribution that {of_kind[0]} is of")
    if kind is not None and written.get("total") is not None:
        report("patience.total", "excludes patience.kind, which says the same; write one of them")
    leaves = ("kind", "total", "first_token", "queue", "stop_after")
    if written.get("silent_share") and not of_kind and all(written.get(key) is None for key in leaves):
        report("patience.silent_share", "needs a time after which clients leave: patience.kind, first_token, "
               "queue or stop_after")  # fmt: skip
    if written.get("detection_s") is not None and written.get("silent_share") is None:
        report("patience.detection_s", "goes with patience.silent_share only: others tell the server")


def people_run_rules(sections: Mapping[str, Values], report: Report) -> None:
    """What clients who do more than send and give up need of the run."""
    if not sections["run"].get("stream_records"):
        return
    workload = sections["workload"]
    for name, own in (workload.get("classes") or {"": workload}).items():
        at = f"workload.classes.{name}" if name else "workload"
        patience = (own.get("patience") or {}).keys() - {"kind", "mean_s", "cv", "shape", "share", "total"}
        for key in [*(k for k in ("retries", "connections") if own.get(k) is not None),
                    *(f"patience.{k}" for k in sorted(patience))]:  # fmt: skip
            report(f"{at}.{key}", "does not go with run.stream_records; leave one of them out")
