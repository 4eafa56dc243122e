"""The engine of a scenario, built from its parts, and the run that it leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from simpy import Environment

from sim.clock import HORIZON_S, on_grid
from sim.faults import InputFault
from sim.hardware import HardwareProfile, MemoryLedger, memory_ledger
from sim.model import ModelSpec
from sim.scenario import GROUPS, PREFILL_FIRST, Preset, Scenario, engine_preset
from sim.serving.adaptive import AdaptiveScheduler
from sim.serving.compile import compile_step_time
from sim.serving.estimating import LONGEST_ESTIMATE, EstimatingScheduler
from sim.serving.prefill_first import PrefillFirstScheduler
from sim.serving.queue_rules import QueueRules
from sim.serving.reservation import Reservation
from sim.serving.scheduler import Scheduler
from sim.serving.static import StaticScheduler
from sim.simulation.clockwork import Clockwork
from sim.simulation.front_end import FrontEnd
from sim.simulation.pipelined import PipelinedReplica
from sim.simulation.prefill_first import PipelinedPrefillFirstReplica, PrefillFirstReplica
from sim.simulation.recorder import Recorder
from sim.simulation.replica import Replica
from sim.workload import (
    Requests,
    mean_context_tokens,
    mean_tokens,
)

NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: what went in, and the columns that came out."""

    scenario: Scenario
    profile: HardwareProfile
    model: ModelSpec
    ledger: MemoryLedger
    requests: Requests
    recorder: Recorder
    step_time: Clockwork
    scheduler: Scheduler | StaticScheduler
    front_end: FrontEnd
    events: int
    wall_s: float


def ledger_of(scenario: Scenario) -> MemoryLedger:
    """What fits in the memory of one GPU of *scenario*."""
    return _ledger(
        scenario, HardwareProfile.from_mapping(scenario.hardware), ModelSpec.from_mapping(scenario.model)
    )


def _ledger(scenario: Scenario, profile: HardwareProfile, model: ModelSpec) -> MemoryLedger:
    return memory_ledger(profile, model, scenario.engine, mean_context_tokens(scenario.workload))


@dataclass(frozen=True, slots=True)
class Server:
    """The parts of a run that take requests, before the first comes."""

    scenario: Scenario
    profile: HardwareProfile
    model: ModelSpec
    ledger: MemoryLedger
    scheduler: Scheduler | StaticScheduler
    front_end: FrontEnd
    cut: dict[str, int] = field(default_factory=dict)  # answers and prompts, so far

    @classmethod
    def of(cls, scenario: Scenario) -> Server:
        """Raises InputFault where the model or one full context does not fit."""
        engine = scenario.engine
        profile = HardwareProfile.from_mapping(scenario.hardware)
        model = ModelSpec.from_mapping(scenario.model)
        ledger = _ledger(scenario, profile, model)
        if not ledger.fits:
            raise InputFault(f"{scenario.name}: does not fit: {ledger.reason}")
        preset = engine_preset(engine["preset"])
        scheduler = _scheduler(scenario, preset, ledger.num_gpu_blocks - preset.null_blocks)
        front_end = FrontEnd(
            engine["front_end_latency_s"], engine["front_end_service_s"], engine["front_end_prompt_token_s"]
        )
        return cls(scenario, profile, model, ledger, scheduler, front_end)

    def within(self, requests: Requests) -> Requests:
        """*requests* with their answers cut to what the engine lets them have."""
        return _within(
            requests,
            self.scenario.engine["max_model_len"],
            self.scenario.admission.get("max_output_tokens"),
            self.cut,
        )

    def schedulable(self, requests: Requests) -> np.ndarray:
        """Which *requests* could ever run to their end (bool)."""
        return _schedulable(requests, self.scenario, self.scheduler)

    def step_time(self, requests: Requests, longest_tokens: int | None = None) -> Clockwork:
        """How long its steps take; *longest_tokens* is the most context where *requests* are not all."""
        beyond = _most_context_tokens(self.scheduler, requests, longest_tokens)
        tokens = self.ledger.kv_cache_tokens
        return compile_step_time(self.profile, self.model, self.scenario.engine, tokens, beyond)

    def replica(
        self, env: Environment, step_time: Clockwork, recorder: Recorder, max_leap: int | None
    ) -> Replica:
        """Its event loop in *env*."""
        engine = self.scenario.engine
        rules = _queue_rules(self.scenario.admission, engine)
        loop = _loop(engine_preset(engine["preset"]), engine)
        return loop(env, self.scheduler, step_time, recorder, max_leap or NO_LIMIT, rules)

    def run(self, requests: Requests, replica: Replica, began: float) -> Run:
        """The run that is over."""
        return Run(
            self.scenario,
            self.profile,
            self.model,
            self.ledger,
            requests,
            replica.recorder,
            replica.step_time,
            self.scheduler,
            self.front_end,
            events=next(replica.env._eid),
            wall_s=perf_counter() - began,
        )


def _loop(preset: Preset, engine: Mapping[str, Any]) -> type[Replica]:
    """The event loop that goes with the engine's way of scheduling."""
    if preset.scheduler == PREFILL_FIRST:
        return PipelinedPrefillFirstReplica if engine["async_scheduling"] else PrefillFirstReplica
    return PipelinedReplica if engine["async_scheduling"] else Replica


def _scheduler(scenario: Scenario, preset: Preset, num_blocks: int) -> Scheduler | StaticScheduler:
    """The engine's scheduler over *num_blocks* usable KV blocks, as preset and admission have it."""
    engine = scenario.engine
    longest_blocks = -(-engine["max_model_len"] // engine["block_size"])
    if engine["kv_layout"] == "contiguous" and longest_blocks > num_blocks:
        raise InputFault(
            f"{scenario.name}: does not fit: one reservation of max_model_len {engine['max_model_len']} "
            f"takes {longest_blocks} KV blocks, {num_blocks} are usable: lower max_model_len, or make room "
            "for the KV cache"
        )
    if preset.scheduler == GROUPS:
        return StaticScheduler(
            num_blocks,
            engine["block_size"],
            engine["max_num_seqs"],
            longest_blocks,
            on_grid(engine["batch_wait_s"]),
        )
    common = {
        "num_blocks": num_blocks,
        "block_size": engine["block_size"],
        "max_num_seqs": engine["max_num_seqs"],
        "max_num_batched_tokens": engine["max_num_batched_tokens"],
        "reservation": _reservation(scenario, preset, num_blocks),
        "watermark_blocks": int(engine["watermark"] * (num_blocks + preset.null_blocks)),
        "chunked_prefill": engine["enable_chunked_prefill"],
        "prefix_caching": engine["enable_prefix_caching"] and engine["kv_layout"] == "paged",
        "asynchronous": engine["async_scheduling"],
    }
    if preset.scheduler == PREFILL_FIRST:
        return (EstimatingScheduler if preset.estimates_answers else PrefillFirstScheduler)(**common)
    return (AdaptiveScheduler if engine["long_prefill_token_threshold_adaptive"] else Scheduler)(
        **common,
        long_prefill_token_threshold=engine["long_prefill_token_threshold"],
        reserve_full_isl=engine["scheduler_reserve_full_isl"],
        by_priority=engine["scheduling_policy"] == "priority",
        self_preemption_ends_step=preset.self_preemption_ends_step,
    )


def _most_context_tokens(
    scheduler: Scheduler | StaticScheduler, requests: Requests, longest: int | None = None
) -> int:
    """What a step can read beyond the pool: padding, or blocks that sequences share; 0 where it cannot.

    *longest* is the most context that one has where *requests* are not all.
    """
    if isinstance(scheduler, StaticScheduler):
        return scheduler.most_context_tokens
    if scheduler.caching is None or requests.contents is None or not len(requests):
        return 0
    if longest is not None:
        return scheduler.max_num_seqs * longest
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    return min(scheduler.max_num_seqs, len(requests)) * longest


def _reservation(scenario: Scenario, preset: Preset, num_blocks: int) -> Reservation | None:
    """What admission sets aside beyond what the engine itself does; None where it is nothing."""
    admission, engine = scenario.admission, scenario.engine
    longest = engine["max_model_len"]
    contiguous = engine["kv_layout"] == "contiguous"
    reserve = "max" if contiguous else admission.get("reserve", "prompt")
    most = admission.get("max_reserved_tokens")
    own = preset.reserves_answer and reserve == "prompt"
    if reserve == "prompt" and most is None and not own:
        return None
    longest_output = longest if contiguous else admission.get("max_output_tokens") or longest
    output: int | None
    if own:
        output = None
    elif reserve == "expected":
        expected = admission.get("expected_output_tokens") or round(mean_tokens(scenario.workload)[1])
        output = min(expected, longest_output)
    elif reserve == "max":
        output = longest_output
    else:  # the engine itself sees to the prompt's blocks
        output, num_blocks = 0, NO_LIMIT
    return Reservation(output, longest, num_blocks, engine["block_size"], most)


def _queue_rules(admission: Mapping[str, Any], engine: Mapping[str, Any]) -> QueueRules | None:
    rules = QueueRules(
        admission.get("max_queued_requests"),
        admission.get("max_queued_tokens"),
        on_grid(admission.get("queue_deadline_s", float("inf"))),
        admission.get("refuse_late", False),
        engine["max_num_queued_reqs"],
        engine["max_num_queued_tokens"],
    )
    return None if rules == QueueRules() else rules


def _within(
    requests: Requests, max_model_len: int, max_output_tokens: int | None, cut: dict[str, int]
) -> Requests:
    """Answers end at the cap, and where the context does; counted in *cut*, and that in the notes, as prompts
    are that leave an answer no room."""
    if len(requests) and requests.arrival_s[-1] > HORIZON_S:
        raise InputFault(
            f"the last request arrives at {requests.arrival_s[-1]:.6g} s; a run may last {HORIZON_S:.6g} s"
        )
    fits = requests.prompt_tokens < max_model_len
    if not fits.all():
        beyond = "prompts_beyond_max_model_len"
        cut[beyond] = cut.get(beyond, 0) + int(np.count_nonzero(~fits))
    room = np.maximum(max_model_len - requests.prompt_tokens, 1)
    output = requests.output_tokens
    for name, most in (("output_capped", max_output_tokens), ("output_cut_at_max_model_len", room)):
        if most is not None and (longer := (output > most) & fits).any():
            cut[name] = cut.get(name, 0) + int(longer.sum())
            output = np.minimum(output, most)
    return replace(requests, output_tokens=output, notes={**requests.notes, **cut})


def _schedulable(
    requests: Requests, scenario: Scenario, scheduler: Scheduler | StaticScheduler
) -> np.ndarray:
    """Which requests the engine could ever run to their end: those within max_model_len and the pool.

    The last sampled token's KV is never written; a reservation holds its whole promise.
    """
    possible = requests.prompt_tokens < scenario.engine["max_model_len"]
    if isinstance(scheduler, StaticScheduler):
        return possible
    if not scheduler.chunked_prefill:  # a prompt is one step
        possible &= requests.prompt_tokens <= scheduler.max_num_batched_tokens
    tokens = requests.prompt_tokens + requests.output_tokens - 1
    if (reservation := scheduler.reservation) is not None:
        output = requests.output_tokens if reservation.output_tokens is None else reservation.output_tokens
        promised = np.minimum(requests.prompt_tokens + output, reservation.longest_tokens)
        tokens = np.maximum(promised, tokens)
        if reservation.most_tokens is not None:
            possible &= tokens <= reservation.most_tokens
    most_blocks = scheduler.num_blocks
    if isinstance(scheduler, PrefillFirstScheduler):  # it drops whoever leaves no watermark
        most_blocks -= scheduler.watermark_blocks
    if isinstance(scheduler, EstimatingScheduler):  # an empty engine must have more than that
        whole = requests.prompt_tokens + np.minimum(requests.output_tokens, LONGEST_ESTIMATE)
        possible &= whole + scheduler.block_size < scheduler.num_blocks * scheduler.block_size
    return possible & (-(-tokens // scheduler.block_size) <= most_blocks)
