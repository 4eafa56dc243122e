"""The single place that takes a scenario apart and builds the parts of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from simpy import Environment

from sim.clock import HORIZON_S
from sim.faults import InputFault
from sim.hardware import HardwareProfile, MemoryLedger, memory_ledger
from sim.model import ModelSpec
from sim.scenario import Scenario
from sim.serving.compile import compile_step_time
from sim.serving.scheduler import Scheduler
from sim.simulation.clients import Progress, open_loop
from sim.simulation.front_end import FrontEnd
from sim.simulation.recorder import Recorder
from sim.simulation.replica import Clockwork, Replica
from sim.workload import Requests, generate, mean_context_tokens

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
    scheduler: Scheduler
    front_end: FrontEnd
    events: int
    wall_s: float


def ledger_of(scenario: Scenario) -> MemoryLedger:
    """What fits in the memory of one GPU of *scenario*."""
    return memory_ledger(
        HardwareProfile.from_mapping(scenario.hardware),
        ModelSpec.from_mapping(scenario.model),
        scenario.engine,
        mean_context_tokens(scenario.workload),
    )


def simulate(
    scenario: Scenario,
    max_leap: int | None = None,
    *,
    requests: Requests | None = None,
    step_time: Clockwork | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run *scenario* to the end of its last request.

    *max_leap* bounds the iterations that one event may stand for; 1 steps through every iteration,
    with the same result. *requests* and *step_time* take the place of the scenario's own. Raises
    InputFault where the model or one full context does not fit.
    """
    began = perf_counter()
    engine = scenario.engine
    ledger = ledger_of(scenario)
    if not ledger.fits:
        raise InputFault(f"{scenario.name}: does not fit: {ledger.reason}")
    profile = HardwareProfile.from_mapping(scenario.hardware)
    model = ModelSpec.from_mapping(scenario.model)
    clockwork = step_time or compile_step_time(profile, model, engine, ledger.kv_cache_tokens)
    scheduler = Scheduler(
        num_blocks=ledger.num_gpu_blocks - 1,  # one is the engine's null block
        block_size=engine["block_size"],
        max_num_seqs=engine["max_num_seqs"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        long_prefill_token_threshold=engine["long_prefill_token_threshold"],
        reserve_full_isl=engine["scheduler_reserve_full_isl"],
    )
    if requests is None:
        requests = generate(scenario.workload, scenario.load, scenario.run)
    requests = _within(requests, engine["max_model_len"])
    front_end = FrontEnd(
        engine["front_end_latency_s"], engine["front_end_service_s"], engine["front_end_prompt_token_s"]
    )
    env = Environment()
    recorder = Recorder(len(requests))
    replica = Replica(env, scheduler, clockwork, recorder, max_leap or NO_LIMIT)
    possible = _schedulable(requests, engine, scheduler.num_blocks)
    env.process(open_loop(env, requests, possible, front_end, replica, recorder, progress))
    env.run()
    return Run(
        scenario,
        profile,
        model,
        ledger,
        requests,
        recorder,
        clockwork,
        scheduler,
        front_end,
        events=next(env._eid),
        wall_s=perf_counter() - began,
    )


def _within(requests: Requests, max_model_len: int) -> Requests:
    """Answers end where the context does; counted in the notes."""
    if len(requests) and requests.arrival_s[-1] > HORIZON_S:
        raise InputFault(
            f"the last request arrives at {requests.arrival_s[-1]:.6g} s; a run may last {HORIZON_S:.6g} s"
        )
    room = np.maximum(max_model_len - requests.prompt_tokens, 1)
    cut = (requests.output_tokens > room) & (requests.prompt_tokens < max_model_len)
    if not cut.any():
        return requests
    notes: dict[str, Any] = {**requests.notes, "output_cut_at_max_model_len": int(cut.sum())}
    return replace(requests, output_tokens=np.minimum(requests.output_tokens, room), notes=notes)


def _schedulable(requests: Requests, engine: dict[str, Any], num_blocks: int) -> np.ndarray:
    """Which requests the engine could ever run to their end: those within max_model_len and the pool.

    The last sampled token's KV is never written.
    """
    length = requests.prompt_tokens + requests.output_tokens
    blocks = -(-(length - 1) // engine["block_size"])
    return (requests.prompt_tokens < engine["max_model_len"]) & (blocks <= num_blocks)
