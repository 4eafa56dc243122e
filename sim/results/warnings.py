"""What a reader of a run's numbers must know, in sentences."""

from __future__ import annotations

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
    "turns_not_sent": "{} requests of sessions were not sent: within the run they would have come only if "
    "answers took no time",
    "prompts_capped": "{} prompts were drawn longer and end at lengths.max_prompt_tokens",
    "outputs_capped": "{} answers were drawn longer and end at lengths.max_output_tokens",
    "output_capped": "{} answers end at admission.max_output_tokens",
    "output_cut_at_max_model_len": "{} answers end at max_model_len",
}


def warnings_of(run: Run, stable: bool, has_windows: bool) -> list[str]:
    """What a reader of the numbers must know."""
    warnings = []
    if run.scenario.slo and not has_windows and has_no_steady_state(run.scenario.workload):
        warnings.append(
            f"the run is judged as a whole, for it has not two windows of run.window_s "
            f"({run.scenario.run['window_s']:g} s) with enough requests: traffic without a steady state "
            "hides its worst minutes so"
        )
    if run.scheduler.caching is None and run.requests.contents is not None:
        warnings.append("prefix caching is off: prompts that share their beginnings compute it each")
    by_priority = run.scenario.engine["scheduling_policy"] == "priority"
    if by_priority and run.requests.priorities is None:
        warnings.append("engine.scheduling_policy priority has no effect: the workload has no priorities")
    if not by_priority and run.requests.priorities is not None:
        warnings.append("that requests differ in priority has no effect: engine.scheduling_policy is fcfs")
    if not stable:
        warnings.append(
            "unstable: the queue grows for as long as the load lasts; percentiles depend on the run's length"
        )
    gpus = run.scenario.engine["tensor_parallel_size"]
    if gpus > 1 and run.profile.link.kind == "pcie":
        origin = run.profile.provenance(f"kernels.all_reduce.{gpus}")
        warnings.append(
            f"{gpus} GPUs over PCIe are as fast as the machine's topology lets them; the all-reduce of "
            f"{run.profile.name} is {origin.kind} ({origin.source.strip()})"
        )
    if not run.scenario.engine["cuda_graphs"] and not run.scenario.engine["eager_layer_s"]:
        warnings.append("without CUDA graphs launching takes its time: engine.eager_layer_s is 0")
    if estimated_keys := run.profile.estimated_keys():
        warnings.append(f"estimated, not measured, in {run.profile.name}: {', '.join(estimated_keys)}")
    engine, scheduler = run.scenario.engine, run.scheduler
    origins = engine.get("provenance") or {}
    if estimated := [key for key, origin in origins.items() if origin["kind"] == "estimated"]:
        warnings.append(f"estimated, not measured, in engine {engine.get('name')}: {', '.join(estimated)}")
    if isinstance(scheduler, StaticScheduler) and scheduler.group_size < engine["max_num_seqs"]:
        warnings.append(
            f"groups have at most {scheduler.group_size} requests, not max_num_seqs "
            f"{engine['max_num_seqs']}: the KV cache has no room for more reservations of max_model_len "
            f"{engine['max_model_len']}"
        )
    warnings += people_warnings(run.scenario.workload)
    warnings += [NOTES.get(note, "{}: " + note).format(f"{n:,}") for note, n in run.requests.notes.items()]
    return warnings
