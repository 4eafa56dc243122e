"""What traffic classes need of each other, of the load and of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.scenario.rules import Report

Values = Mapping[str, Any]


def class_rules(kind: str, value: Values, report: Report) -> None:
    """The rules within a workload that has classes (*kind* workloads), or within one of its classes."""
    _tenant_rules(value, report)
    if kind == "classes":
        _own_rules(value, report)
        return
    classes = report.tree.get(("classes",))
    if classes is None:
        return
    if not classes:
        report("classes", "must have at least one class, such as `chat: {share: 1}`")
    if value.get("priorities"):
        report("priorities", "does not go with classes; write the priority of each class")


def _tenant_rules(value: Values, report: Report) -> None:
    tenants, told = value.get("tenants"), value.get("tenant_shares") or []
    for key in ("tenant_zipf", "tenant_shares"):
        if value.get(key) is not None and tenants is None:
            report(key, "goes with tenants only; write how many there are")
    if tenants and len(told) > tenants:
        report("tenant_shares", f"must be of {tenants} tenants at most (got {len(told)})")
    if sum(told) > 1.0 + 1e-9:
        report("tenant_shares", f"must add up to at most 1 (got {sum(told):g})")
    if tenants and (value.get("arrivals") or {}).get("kind") == "trace":
        report("tenants", "does not go with arrivals.kind trace, which has everybody's times")


def _own_rules(value: Values, report: Report) -> None:
    if value.get("concurrency") is None:
        if value.get("think"):
            report("think", "goes with concurrency only; write that, how many users, instead of the share")
        return
    if value.get("sessions"):
        report("concurrency", "does not go with sessions, which begin at a rate; write share")
    if (value.get("answers") or 1) > 1:
        report("concurrency", "does not go with answers: users send one request at a time")
    if (value.get("arrivals") or {}).get("kind") == "trace":
        report("concurrency", "does not go with arrivals.kind trace: users send when they are answered")


def class_load_rules(sections: Mapping[str, Values], load: Values, report: Report) -> None:
    """What a workload with classes needs of the load and the run."""
    classes: Mapping[str, Values] = sections["workload"]["classes"]
    at_a_rate = [name for name, value in classes.items() if value.get("concurrency") is None]
    if load.get("concurrency") is not None:
        report("load.concurrency", "does not go with workload.classes; write concurrency in a class")
    if load.get("mode") == "burst":
        report("load.mode", "must not be burst with workload.classes, which come at rates of their own")
    if at_a_rate and load.get("rate_per_s") is None and load.get("mode") is None:
        report("load", f"must have rate_per_s, which the classes share ({', '.join(at_a_rate)})")
    if not at_a_rate and load.get("rate_per_s") is not None:
        report("load.rate_per_s", "must be absent: every class has a concurrency of its own; write load: {}")
    if not at_a_rate and sections["run"].get("duration_s") is not None:
        report("run.duration_s", "does not go with users alone; write run.requests, such as 2000")
    if load.get("mode") == "trace":
        _recorded_rules(classes, at_a_rate, report)


def _recorded_rules(classes: Mapping[str, Values], at_a_rate: list[str], report: Report) -> None:
    drawn = [name for name in at_a_rate if classes[name]["arrivals"]["kind"] != "trace"]
    if drawn or not at_a_rate:
        report("load", "trace needs classes with the times of a trace "
               f"({', '.join(drawn) or 'all'}: arrivals.kind is none)")  # fmt: skip
