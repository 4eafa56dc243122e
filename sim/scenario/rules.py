"""Requirements that more than one key has a part in. A rule whose keys are at fault already stays silent."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from sim.scenario.arrival_rules import arrival_rules, endless_rule
from sim.scenario.class_rules import class_load_rules, class_rules
from sim.scenario.engine_rules import engine_rules
from sim.scenario.length_rules import length_rules, rises_to_one
from sim.scenario.people_rules import people_rules, people_run_rules
from sim.scenario.session_rules import session_rules
from sim.scenario.tree import Faults, KeyPath, Tree, leaves, spell

Values = Mapping[str, Any]


class Report:
    """Adds faults on paths of one tree."""

    def __init__(self, tree: Tree, faults: Faults, shown: KeyPath = ()) -> None:
        self.tree = tree
        self.faults = faults
        self.shown = shown

    def __call__(self, path: str, sentence: str) -> None:
        parts = tuple(path.split("."))
        self.faults.add(self.tree.place(parts), f"{spell((*self.shown, *parts))} {sentence}")


def file_rules(kind: str, value: Values, report: Report) -> None:
    """The rules within one hardware profile, model, workload or engine file."""
    if kind == "engines":
        _engine_origin_rules(value, report)
    if kind == "hardware":
        _provenance_rules(value, report)
    if kind == "models":
        _model_rules(value, report)
    if kind == "workloads":
        _priority_rules((value.get("priorities") or {}).get("weights"), report)
    if kind in ("workloads", "classes"):
        arrival_rules(value.get("arrivals") or {}, report)
        if kind == "classes" or value.get("sessions"):
            endless_rule(value.get("arrivals") or {}, report)
        class_rules(kind, value, report)
        people_rules(value, report)
    if kind in ("workloads", "classes") and isinstance(value.get("lengths"), dict):
        length_rules(value["lengths"], report)
        _sharing_rules(value, report)


def _provenance_rules(profile: Values, report: Report) -> None:
    """Every number has an origin: an entry of its own key, or of one around it."""
    origins = report.tree.get(("provenance",))
    if not isinstance(origins, dict):
        return
    for path, number in leaves({key: inner for key, inner in profile.items() if key != "provenance"}):
        covered = any(spell(path[:end]) in origins for end in range(1, len(path) + 1))
        if isinstance(number, int | float) and not covered:
            report(spell(path), "must have its origin under provenance (kind and source)")


def _engine_origin_rules(engine: Values, report: Report) -> None:
    """An origin is of a setting that is there, and its interval holds that."""
    for key, origin in (engine.get("provenance") or {}).items():
        value, interval = engine.get(key), origin.get("interval")
        if value is None:
            report(f"provenance.{key}", "is of no setting of this file")
        elif interval and not isinstance(value, int | float):
            report(f"provenance.{key}.interval", "goes with a number only")
        elif interval and (len(interval) != 2 or not interval[0] <= value <= interval[1]):
            words = " to ".join(f"{bound:g}" for bound in interval)
            report(f"provenance.{key}.interval", f"must be two numbers around {value:g} (got {words})")


def _model_rules(model: Values, report: Report) -> None:
    heads, kv_heads = model.get("heads"), model.get("kv_heads")
    if heads and kv_heads and heads % kv_heads:
        report("kv_heads", f"must divide heads {heads} (got {kv_heads})")


def _priority_rules(weights: list[float] | None, report: Report) -> None:
    if weights and abs(sum(weights) - 1) >= 0.01:
        report("priorities.weights", f"must add up to 1 (got {sum(weights):g})")


def _sharing_rules(workload: Values, report: Report) -> None:
    """What prefixes, sessions and answers need of each other, of the lengths and of the arrivals."""
    prefixes, sessions, answers = (workload.get(key) for key in ("prefixes", "sessions", "answers"))
    recorded = "trace" in (workload["lengths"].get("kind"), workload.get("arrivals", {}).get("kind"))
    kind = (prefixes or {}).get("kind")
    if kind == "trace" and workload["lengths"].get("kind") != "trace":
        report("prefixes.kind", "trace needs lengths.kind trace: the ids are those of its prompts")
    if kind == "groups":
        _head_rules(report.tree.get(("prefixes",)), report)
    if prefixes and kind == "reuse":
        _reuse_rules(prefixes, report)
    if kind == "reuse" and (sessions or (answers or 1) > 1):
        report("prefixes.kind", "reuse does not go with sessions or several answers, which have their own")
    if workload.get("trace") and not recorded:
        report("trace", "goes with arrivals.kind or lengths.kind trace only: it says how their file is read")
    if answers and answers > 1 and recorded:
        report("answers", f"must be 1 with a trace, which has a line for each request (got {answers})")
    if answers and answers > 1 and workload["lengths"].get("kind") == "joint":
        report("answers", f"must be 1 with lengths.kind joint, of whose prompts each has one (got {answers})")
    if answers and answers > 1 and sessions:
        report("answers", "does not go with sessions, which go on from one answer")
    if sessions and recorded:
        report("sessions", "goes with drawn lengths and arrivals only: a trace has its own turns")
    if sessions:
        session_rules(sessions, report)


def _head_rules(written: Values, report: Report) -> None:
    tokens, mean = written.get("tokens"), written.get("tokens_mean")
    if (tokens is None) == (mean is None):
        report("prefixes.tokens", "and prefixes.tokens_mean: exactly one must be there")
    elif mean is None and written.get("tokens_cv") is not None:
        report("prefixes.tokens_cv", "goes with prefixes.tokens_mean only")


def _reuse_rules(prefixes: Values, report: Report) -> None:
    seen, age = prefixes.get("seen") or {}, prefixes.get("age") or {}
    bounds, shares = seen.get("up_to_tokens") or [], seen.get("rows")
    if any(low >= high for low, high in pairwise(bounds)):
        report("prefixes.seen.up_to_tokens", "must rise")
    for name, quantiles in (("seen", seen.get("quantiles")), ("age", age.get("quantiles"))):
        if quantiles and not rises_to_one(quantiles):
            report(f"prefixes.{name}.quantiles", "must rise from 0 to 1")
    if shares and len(shares) != len(bounds) + 1:
        report("prefixes.seen.rows", f"must have a row for each of {len(bounds) + 1} classes of lengths "
               f"(got {len(shares)})")  # fmt: skip
    rows = [("seen.rows", row, seen.get("quantiles")) for row in shares or ()]
    for name, values, quantiles in (*rows, ("age.seconds", age.get("seconds"), age.get("quantiles"))):
        if values and quantiles and len(values) != len(quantiles):
            report(f"prefixes.{name}", f"must have a number for each quantile (got {len(values)} "
                   f"for {len(quantiles)})")  # fmt: skip
        if values and any(low > high for low, high in pairwise(values)):
            report(f"prefixes.{name}", "must never fall")
    if shares and not all(0 <= share <= 1 for row in shares for share in row):
        report("prefixes.seen.rows", "must lie between 0 and 1")


def scenario_rules(sections: Mapping[str, Values], report: Report) -> None:
    """The rules between the sections of a scenario; what is at fault is not in *sections*."""
    if report.tree.get(("base",)) is not None:  # in a file or a mapping it has been followed by now
        report("base", "must stand in the scenario's file; on the command line name that scenario instead")
    _load_rules(sections, report)
    people_run_rules(sections, report)
    _version_rules(sections, report)
    _warmup_rule(sections["run"], report)
    _parallel_rules(sections["engine"], sections["model"], report)
    _all_reduce_rule(sections["engine"], sections["hardware"], report)
    _length_limit_rules(sections["engine"], sections["model"], report)
    _admission_rules(sections["engine"], sections["admission"], report)
    engine_rules(sections["engine"], report)


def _load_rules(sections: Mapping[str, Values], report: Report) -> None:
    load = report.tree.get(("load",))
    if not isinstance(load, dict):
        return
    known = ("rate_per_s", "mode", "concurrency")
    strange = load.keys() - {*known, "think", "time_scale"}  # told already, and perhaps one of them misspelt
    if sections["workload"].get("classes"):
        class_load_rules(sections, load, report)
    elif not strange and all(load.get(key) is None for key in known):
        report("load", f"must have one of {', '.join(known)}")
    if load.get("time_scale") is not None and load.get("mode") is None:
        report("load.time_scale", "goes with load.mode trace only")
    arrivals = sections["workload"].get("arrivals", {}).get("kind")
    if load.get("mode") == "trace" and arrivals not in (None, "trace"):
        report("load", f"trace needs a workload with the times of a trace (its arrivals.kind is {arrivals}); "
               "give load.rate_per_s, or a trace as the workload")  # fmt: skip
    _sharing_load_rules(sections["workload"], load, report)
    if load.get("think") is not None and load.get("concurrency") is None:
        report("load.think", "goes with load.concurrency only; write that, how many users, instead of the "
               "rate")  # fmt: skip
    if load.get("concurrency") is not None and sections["run"].get("duration_s") is not None:
        report("run.duration_s", "does not go with load.concurrency; write run.requests, such as 2000")
    if load.get("mode") == "burst" and sections["run"].get("duration_s") is not None:
        report(
            "run.duration_s",
            "does not go with load.mode burst, which is over at once; write run.requests, such as 2000",
        )


def _warmup_rule(run: Values, report: Report) -> None:
    warmup, duration_s = run.get("warmup"), run.get("duration_s")
    if isinstance(warmup, dict) and duration_s is not None and warmup["seconds"] >= duration_s:
        warmup_s = warmup["seconds"]
        report("run.warmup", f"must be shorter than run.duration_s {duration_s:g} (got {warmup_s:g} s)")


def _sharing_load_rules(workload: Values, load: Values, report: Report) -> None:
    if workload.get("sessions") and load.get("rate_per_s") is None:
        report("load", "must have rate_per_s: the workload's sessions come at a rate")
    timeless = load.get("concurrency") is not None or load.get("mode") == "burst"
    if (workload.get("prefixes") or {}).get("kind") == "reuse" and timeless:
        report("load", "must have rate_per_s or mode trace: ages of workload.prefixes are between arrivals")
    if (workload.get("answers") or 1) > 1 and load.get("concurrency") is not None:
        report("load.concurrency", "does not go with workload.answers: users send one request at a time")


def _version_rules(sections: Mapping[str, Values], report: Report) -> None:
    """What later versions will do."""
    if (replicas := sections["deployment"].get("replicas", 1)) > 1:
        report("deployment.replicas", f"must be 1: more is not in this version (got {replicas})")


def _parallel_rules(engine: Values, model: Values, report: Report) -> None:
    size, heads, kv_heads = engine.get("tensor_parallel_size"), model.get("heads"), model.get("kv_heads")
    if not (size and heads and kv_heads):
        return
    if heads % size:
        report("engine.tensor_parallel_size", f"must divide the model's {heads} heads (got {size})")
    elif kv_heads % size and size % kv_heads:
        report("engine.tensor_parallel_size",
               f"must divide the model's {kv_heads} KV heads or be their multiple (got {size})")  # fmt: skip


def _all_reduce_rule(engine: Values, hardware: Values, report: Report) -> None:
    size, known = engine.get("tensor_parallel_size"), hardware.get("kernels", {}).get("all_reduce", {})
    if size and size > 1 and hardware and str(size) not in known:
        sizes = ", ".join(sorted(known, key=int)) or "none"
        report(
            "engine.tensor_parallel_size",
            f"must be 1 or a number of GPUs that the hardware's kernels.all_reduce has: {sizes} (got {size})",
        )


def _length_limit_rules(engine: Values, model: Values, report: Report) -> None:
    length, longest = engine.get("max_model_len"), model.get("max_position_embeddings")
    if length and longest and length > longest:
        report(
            "engine.max_model_len", f"must be <= the model's max_position_embeddings {longest} (got {length})"
        )
    threshold = engine.get("long_prefill_token_threshold")
    if threshold and length and threshold > length:
        report("engine.long_prefill_token_threshold", f"must be <= max_model_len {length} (got {threshold})")


def _admission_rules(engine: Values, admission: Values, report: Report) -> None:
    if admission.get("refuse_late") and admission.get("queue_deadline_s") is None:
        report("admission.refuse_late", "needs admission.queue_deadline_s, the deadline to be met")
    if engine.get("kv_layout") == "contiguous" and admission.get("reserve") == "expected":
        report("admission.reserve", "does not go with engine.kv_layout contiguous, which sets aside "
               "max_model_len for each request (got expected)")  # fmt: skip
    if engine.get("preset") == "static" and admission.get("max_reserved_tokens") is not None:
        report("admission.max_reserved_tokens", "does not go with engine.preset static, whose groups are "
               "limited by max_num_seqs")  # fmt: skip
