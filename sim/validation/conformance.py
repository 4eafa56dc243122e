"""Our scheduler against schedules recorded from a real engine, step by step.

The same `Scheduler` that simulates is driven on a step clock: requests join before a step's
schedule, aborts come after it and before its outputs. `sim.validation.recording` reads recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.faults import InputFault
from sim.serving.prefix_cache import Content
from sim.serving.scheduler import Scheduler
from sim.serving.sequence import Sequence
from sim.validation.recording import ROW_FIELDS, read_cases, version_of


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first step of a case at which our scheduler did something else."""

    case: int | str
    step: int
    expected: dict[str, Any]
    got: dict[str, Any]


@dataclass(slots=True)
class Conformance:
    """How many recorded cases our scheduler repeats exactly, and where it first differs."""

    cases: int = 0
    matched: int = 0
    steps: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    unsupported: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The document of ``kneesim conformance --json``."""
        return {
            "cases": self.cases,
            "matched": self.matched,
            "steps": self.steps,
            "mismatches": [
                {"case": m.case, "step": m.step, "expected": m.expected, "got": m.got}
                for m in self.mismatches
            ],
            "not_yet_supported": self.unsupported,
        }

    def text(self) -> str:
        """The same for a person."""
        left_out = sum(self.unsupported.values())
        lines = [
            f"{self.matched} of {self.cases} recorded cases match in every step"
            f" ({self.steps} steps compared), {len(self.mismatches)} differ, {left_out} not yet supported"
        ]
        lines += [f"  not yet supported: {n} cases with {why}" for why, n in self.unsupported.items()]
        for m in self.mismatches:
            lines.append(f"  case {m.case} differs first at step {m.step}:")
            lines += [
                f"    {key}: the engine {m.expected[key]}, ours {m.got[key]}"
                for key in m.expected
                if m.expected[key] != m.got[key]
            ]
        return "\n".join(lines)


def check(path: str | Path) -> Conformance:
    """Drive our scheduler through every supported case of the recording *path* (.jsonl or .jsonl.gz).

    Raises InputFault with file and line where the recording cannot be read.
    """
    report = Conformance()
    for case in read_cases(Path(path)):
        report.cases += 1
        if why := _unsupported(case["config"]):
            report.unsupported[why] = report.unsupported.get(why, 0) + 1
            continue
        steps, mismatch = compare(case)
        report.steps += steps
        if mismatch is None:
            report.matched += 1
        else:
            report.mismatches.append(mismatch)
    if not report.cases:
        raise InputFault(f"{path}: holds no recorded case; one JSON object a line is expected")
    return report


def compare(case: dict[str, Any]) -> tuple[int, Mismatch | None]:
    """Steps compared of one recorded *case*, and its first mismatch (None where all steps agree)."""
    rows = drive(case, len(case["trace"]))
    for number, (recorded, got) in enumerate(zip(case["trace"], rows, strict=False), 1):
        expected = _normal(recorded)
        # Recorders differ in whether an aborted request counts as finished; its blocks tell either way.
        aborted = case.get("aborts", {}).get(str(recorded[0]), ())
        expected["finished"] = [name for name in expected["finished"] if name not in aborted]
        if expected != got:
            return number, Mismatch(case["case"], recorded[0], expected, got)
    return len(case["trace"]), None


def drive(case: dict[str, Any], steps: int) -> Iterator[dict[str, Any]]:
    """What our scheduler does in the first *steps* steps of *case*, one row a step."""
    requests = sorted(case["requests"], key=lambda r: (r["arrival_step"], r["order"]))
    scheduler, sequences = _scheduler(case["config"]), _sequences(requests, case["config"])
    names = {sequence.index: name for name, sequence in sequences.items()}
    ended_before: list[str] = []
    joined: set[str] = set()
    seen: set[int] = set()  # scheduled before
    for step in range(1, steps + 1):
        for request in requests:
            if request["arrival_step"] == step:
                joined.add(request["id"])
                scheduler.add(sequences[request["id"]])
        scheduler.schedule()
        tokens = {names[s.index]: n for s, n in scheduler.scheduled_tokens().items()}
        preempted = sorted(names[s.index] for s in scheduler.preempted)
        aborted = joined.intersection(case.get("aborts", {}).get(str(step), ()))
        for name in case.get("aborts", {}).get(str(step), ()):
            if name in aborted:
                scheduler.abort(sequences[name])
        first = [(names[s.index], before) for s, _, before in scheduler.chunks if s.index not in seen]
        seen.update(s.index for s, _, _ in scheduler.chunks)
        ended = sorted(names[s.index] for s in scheduler.finish())
        if scheduler.asynchronous:  # a step's outputs are known after the next schedule
            ended_before, ended = ended, [name for name in ended_before if name not in aborted]
        yield {
            "step": step,
            "tokens": dict(sorted(tokens.items())),
            "preempted": preempted,
            "finished": ended,
            "free_blocks": scheduler.free_blocks,
            "cached_tokens": {name: before for name, before in first if before},
        }


def _scheduler(config: dict[str, Any]) -> Scheduler:
    return Scheduler(
        num_blocks=config["usable_blocks"],
        block_size=config["block_size"],
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        reserve_full_isl=config["scheduler_reserve_full_isl"],
        by_priority=config["policy"] == "priority",
        prefix_caching=config["enable_prefix_caching"],
        asynchronous=config.get("async_scheduling", False),
        watermark_blocks=int(config.get("watermark", 0.0) * (config["usable_blocks"] + 1)),
        self_preemption_ends_step=version_of(config) < (0, 33),
    )


def _sequences(requests: list[dict[str, Any]], config: dict[str, Any]) -> dict[str, Sequence]:
    """By the request's id."""
    sequences = {}
    for index, r in enumerate(requests):
        sequences[r["id"]] = sequence = Sequence(index, r["prompt_tokens"], r["max_tokens"])
        sequence.priority = r.get("priority", 0)
        if config["enable_prefix_caching"] and r.get("prefix_tokens"):
            sequence.content = _content(r, config["block_size"])
    return sequences


def _content(request: dict[str, Any], block_size: int) -> Content:
    """What the tokens of a recorded *request* are: a group's, then its own.

    Every sampled token is the same, so requests whose prompts are equal have equal answers too.
    """
    group, prompt = 2 * request.get("prefix_group", 0), request["prompt_tokens"]
    common = min(request.get("prefix_tokens", 0), prompt)
    return Content(block_size, ((group, common),), -1 if common < prompt else 1_000_003 * prompt + group + 1)


def _normal(row: list[Any]) -> dict[str, Any]:
    step, tokens, preempted, finished, free_blocks, cached = row
    values = (step, dict(sorted(tokens.items())), sorted(preempted), sorted(finished), free_blocks, cached)
    return dict(zip(ROW_FIELDS, values, strict=True))


def _unsupported(config: dict[str, Any]) -> str | None:
    """Why this version does not run a case with *config*; None where it does."""
    engine = config.get("engine", "vllm")
    return None if engine == "vllm" else f"engine {engine}"
