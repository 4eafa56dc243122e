"""What a reader of a run's numbers must know, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from sim.results.people import people_warnings
from sim.serving.static import StaticScheduler
from sim.simulation import Run
from sim.workload.steady import has_no_steady_state

NOTES = {
    "zero_output_dropped": "{} rows of the trace without an answer were left out",
    "trace_rows_sorted": "{} rows of the trace were not in order of time, and were sorted",
    "failed_dropped": "{} requests of the trace that failed were left out (trace.failed: keep has them)",
    "log_lines_unmatched": "{} lines of the log are no request by trace.pattern, and were left out",
    "trace_rows_alike": "{} rows of the trace are another one's double in time and tokens; all were sent",
    "times_of_another_zone": "{} times of the log are of another time zone than the first; all count as UTC",
    "tokens_estimated_from_bytes": "{} lengths are estimates from bytes (trace.bytes_per_token)",
    "trace_repeated": "the trace was sent {} times over, one after the other",
    "trace_rows_resampled": "{} requests have the lengths of rows drawn again from the trace",
    "prompt_tokens_seen_before": "{} prompt tokens begin a prompt as an earlier request has them: the most "
    "that prefix caching could save",
    "requests_beyond_trace": "{} requests of run.requests were not sent: the trace has no more rows",
    "trace_rows_not_sent": "{} rows of the trace were not sent: the run ends before them (without "
    "run.requests and run.duration_s the whole trace is sent)",
    "turns_not_sent": "{} requests of sessions were not sent: within the run they would have come only if "
    "answers took no time",
    "prompts_capped": "{} prompts were drawn longer and end at lengths.max_prompt_tokens",
    "outputs_capped": "{} answers were drawn longer and end at lengths.max_output_tokens",
    "output_capped": "{} answers end at admission.max_output_tokens",
    "prompts_beyond_max_model_len": "{} prompts have engine.max_model_len tokens or more, and were "
    "turned away: raise it where the model has the context, or cap them by lengths.max_prompt_tokens",
    "output_cut_at_max_model_len": "{} answers end at max_model_len",
}


def warnings_of(run: Run, stable: bool, has_windows: bool) -> list[str]:
    """What a reader of the numbers must know: of load, engine, hardware, people and input."""
    return [
        *_of_load(run, stable, has_windows),
        *_of_engine(run),
        *_of_origins(run),
        *people_warnings(run.scenario.workload),
        *(NOTES.get(note, "{}: " + note).format(f"{n:,}") for note, n in run.requests.notes.items()),
    ]


def _of_load(run: Run, stable: bool, has_windows: bool) -> Iterator[str]:
    if run.scenario.slo and not has_windows and has_no_steady_state(run.scenario.workload):
        yield (
            f"the run is judged as a whole, for it has not two windows of run.window_s "
            f"({run.scenario.run['window_s']:g} s) with enough requests: traffic without a steady state "
            "hides its worst minutes so"
        )
    if not stable:
        yield (
            "unstable: the queue grows for as long as the load lasts; percentiles depend on the run's length"
        )


def _of_engine(run: Run) -> Iterator[str]:
    """What its settings make of this traffic."""
    engine, scheduler = run.scenario.engine, run.scheduler
    if scheduler.caching is None and run.requests.contents is not None:
        yield "prefix caching is off: prompts that share their beginnings compute it each"
    by_priority = engine["scheduling_policy"] == "priority"
    if by_priority and run.requests.priorities is None:
        yield "engine.scheduling_policy priority has no effect: the workload has no priorities"
    if not by_priority and run.requests.priorities is not None:
        yield "that requests differ in priority has no effect: engine.scheduling_policy is fcfs"
    if not engine["cuda_graphs"] and not engine["eager_layer_s"]:
        yield "without CUDA graphs launching takes its time: engine.eager_layer_s is 0"
    if isinstance(scheduler, StaticScheduler) and scheduler.group_size < engine["max_num_seqs"]:
        yield (
            f"groups have at most {scheduler.group_size} requests, not max_num_seqs "
            f"{engine['max_num_seqs']}: the KV cache has no room for more reservations of max_model_len "
            f"{engine['max_model_len']}"
        )


def _of_origins(run: Run) -> Iterator[str]:
    """What was not measured."""
    profile, engine = run.profile, run.scenario.engine
    gpus = engine["tensor_parallel_size"]
    if gpus > 1 and profile.link.kind == "pcie":
        origin = profile.provenance(f"kernels.all_reduce.{gpus}")
        yield (
            f"{gpus} GPUs over PCIe are as fast as the machine's topology lets them; the all-reduce of "
            f"{profile.name} is {origin.kind} ({origin.source.strip()})"
        )
    if estimated_keys := profile.estimated_keys():
        yield f"estimated, not measured, in {profile.name}: {', '.join(estimated_keys)}"
    origins = engine.get("provenance") or {}
    if estimated := [key for key, origin in origins.items() if origin["kind"] == "estimated"]:
        yield f"estimated, not measured, in engine {engine.get('name')}: {', '.join(estimated)}"
