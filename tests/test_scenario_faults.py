"""Faults of a scenario: file and line, path, requirement, what came, what is possible."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_inputs import SCENARIO, Catalogue, starting

from sim.faults import InputFault
from sim.scenario import load


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("engine: {max_seqs: 9}", "engine.max_seqs is unknown; did you mean max_num_seqs?"),
        ("engin: {max_num_seqs: 9}", "engin is unknown; did you mean engine?"),
        ("max_num_seqs: 9", "max_num_seqs is unknown; did you mean engine.max_num_seqs?"),
        ("rate_per_s: 9", "rate_per_s is unknown; did you mean load.rate_per_s?"),
        ("max_seqs: 9", "max_seqs is unknown; did you mean engine.max_num_seqs?"),
        ("ttft_p99_s: 1", "ttft_p99_s is unknown; did you mean slo.ttft_p99_s?"),
        ("engine: {seed: 1}", "engine.seed is unknown; did you mean run.seed?"),
        ("slo: {ttft_p99: 1}", "slo.ttft_p99 is unknown; did you mean ttft_p99_s?"),
        ("slo: {ttft_p100_s: 1}", "slo.ttft_p100_s is unknown"),
        ("run.seed: 1", "run.seed is unknown; write run: {seed: ...}"),
        ("run: {seed:1}", "run.seed:1 is unknown; write a space after the colon: `seed: 1`"),
        ("on: 1", "on is unknown; possible: admission, base, cost"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest(catalogue: Catalogue, line: str, sentence: str) -> None:
    """The nearest sibling; a right key at the wrong level, where it belongs."""
    starting(f"chat.yaml:5: {sentence}", catalogue.faults(SCENARIO + line))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "engine: {cuda_graphs: on}",
            "engine.cuda_graphs must be true or false (got on); write true or false",
        ),
        ("engine: {cuda_graphs: 1}", "engine.cuda_graphs must be true or false (got 1)"),
        ("engine: {max_num_seqs: true}", "engine.max_num_seqs must be a whole number >= 1 (got true)"),
        ("engine: {max_num_seqs: 2.5}", "engine.max_num_seqs must be a whole number >= 1 (got 2.5)"),
        ("engine: {max_num_seqs: 0}", "engine.max_num_seqs must be a whole number >= 1 (got 0)"),
        (
            "engine: {max_num_seqs: 1K}",
            "engine.max_num_seqs must be a whole number >= 1 (got 1K); K is ambiguous",
        ),
        (
            "engine: {block_size: [16]}",
            "engine.block_size must be a whole number of tokens >= 1 (got a list of 1)",
        ),
        (
            "engine: {gpu_memory_utilization: 92}",
            "engine.gpu_memory_utilization must be a share of one > 0 and <= 1, such as "
            "92% (got 92); write 0.92 or 92%",
        ),
        ("engine: {kv_cache_dtype: fp9}", "engine.kv_cache_dtype must be auto, bf16,"),
        ("engine: {weight_dtype: int9}", "engine.weight_dtype must be"),
        ("engine: 5", "engine must be a mapping of keys to values (got 5)"),
        ("engine: {preset: vlm-v1}", "engine.preset vlm-v1 is unknown; did you mean vllm-v1@0.33?"),
        ("engine: {preset: vllm-v1@0.9}", "engine.preset vllm-v1@0.9 is unknown; did you mean vllm-v1@0.33?"),
        ("engine: {preset: 1}", "engine.preset must be text (got 1); put it in quotes"),
        ("engine: {watermark: 1}", "engine.watermark must be"),
        ("engine: {tensor_parallel_size: 3}", "engine.tensor_parallel_size must divide the model's 32 heads"),
        ("engine: {tensor_parallel_size: 4}", "engine.tensor_parallel_size must be 1 or a number of GPUs"),
        (
            "engine: {max_model_len: 8k}",
            "engine.max_model_len must be <= the model's max_position_embeddings 4096 (got 8000)",
        ),
        (
            "engine: {long_prefill_token_threshold: 5000}",
            "engine.long_prefill_token_threshold must be <= max_model_len 4096 (got 5000)",
        ),
        (
            "run: {requests: 1_000}",
            "run.requests must be a whole number >= 1 and <= 1e+08 (got 1_000); underscores",
        ),
        (
            "run: {duration_s: 1:30:00}",
            "run.duration_s must be a time in seconds > 0, such as 250ms (got 1:30:00)",
        ),
        ("run: {seed: 017}", "run.seed must be a whole number >= 0 (got 017); a leading zero looks octal"),
        ("run: {duration_s: .inf}", "run.duration_s must be a time in seconds > 0, such as 250ms (got .inf)"),
        ("run: {requests: 5, duration_s: 5}", "run.duration_s excludes requests; write one of them"),
        (
            "run: {warmup: 30}",
            "run.warmup must be a share in [0, 1) or a time, such as 30s (got 30); write 30s",
        ),
        ("run: {warmup: -30s}", "run.warmup must be a share in [0, 1) or a time"),
        ("slo: {ttft_p99_s: -1}", "slo.ttft_p99_s must be a time in seconds > 0, such as 250ms (got -1)"),
        ("deployment: {replicas: 2}", "deployment.replicas must be 1: more is not in this version (got 2)"),
        ("load: {rate_per_s: 4}", "load is written twice (first on line 4)"),
    ],
)
def test_a_wrong_value_is_told_with_what_it_must_be(catalogue: Catalogue, line: str, sentence: str) -> None:
    """One sentence: path, requirement, what came, what to write."""
    starting(f"chat.yaml:5: {sentence}", catalogue.faults(SCENARIO + line))


@pytest.mark.parametrize(
    ("load_line", "sentence"),
    [
        ("load: {}", "load must have one of rate_per_s, mode, concurrency"),
        ("load: {rate_per_s: null}", "load must have one of"),
        ("load:", "load is missing: how much traffic"),
        ("load: {rate_per_s: 0}", "load.rate_per_s must be a rate per second > 0 (got 0)"),
        (
            "load: {rate_per_s: .nan}",
            "load.rate_per_s must be a rate per second > 0 (got .nan); it must be finite",
        ),
        ("load: {rate_per_s: 4, mode: burst}", "load.mode excludes rate_per_s; write one of them"),
        ("load: {rate_per_s: 4, concurrency: 64}", "load.concurrency excludes rate_per_s; write one of them"),
        ("load: {concurrency: 0}", "load.concurrency must be a whole number >= 1 (got 0)"),
        ("load: {concurrency: 64, time_scale: 2}", "load.time_scale goes with load.mode trace only"),
        (
            "load: {rate_per_s: 4, think: {kind: fixed, mean_s: 1}}",
            "load.think goes with load.concurrency only",
        ),
        (
            "load: {mode: burst, think: {kind: fixed, mean_s: 1}}",
            "load.think goes with load.concurrency only",
        ),
        ("load: {concurrency: 64, think: {kind: fixed}}", "load.think.mean_s is missing"),
        (
            "load: {concurrency: 64, think: {kind: normal, mean_s: 1}}",
            "load.think.kind must be fixed or expon",
        ),
        ("load: {rate_per_s: 4, time_scale: 2}", "load.time_scale goes with load.mode trace only"),
        ("load: {mode: burst, time_scale: 2}", "load.time_scale does not go with load.mode burst"),
        (
            "load: trace",
            "load trace needs a workload with the times of a trace (its arrivals.kind is poisson)",
        ),
        ("load: traces", "load.mode must be trace or burst (got traces)"),
        ("load: 4", "load must be a mapping of keys to values (got 4)"),
    ],
)
def test_the_load_is_exactly_one(catalogue: Catalogue, load_line: str, sentence: str) -> None:
    """A rate, the trace's own times, a burst, or users, who alone think; nothing twice."""
    text = SCENARIO.replace("load: {rate_per_s: 4}", load_line)
    assert starting("chat.yaml:4:", catalogue.faults(text)).startswith(f"chat.yaml:4: {sentence}")


def test_a_burst_has_no_duration(catalogue: Catalogue) -> None:
    """It is over at once, so only requests can say how long it is."""
    text = SCENARIO.replace("{rate_per_s: 4}", "burst") + "run: {duration_s: 9}\n"
    starting("chat.yaml:5: run.duration_s does not go with load.mode burst", catalogue.faults(text))


def test_a_closed_loop_has_no_duration(catalogue: Catalogue) -> None:
    """How long it takes is what it is run for."""
    text = SCENARIO.replace("{rate_per_s: 4}", "{concurrency: 8}") + "run: {duration_s: 9}\n"
    starting("chat.yaml:5: run.duration_s does not go with load.concurrency", catalogue.faults(text))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "admission: {refuse_late: true}",
            "admission.refuse_late needs admission.queue_deadline_s, the deadline to be met",
        ),
        (
            "admission: {expected_output_tokens: 9}",
            "admission.expected_output_tokens does not go with admission.reserve prompt",
        ),
        (
            "admission: {reserve: max, expected_output_tokens: 9}",
            "admission.expected_output_tokens does not go with admission.reserve max",
        ),
        ("admission: {reserve: most}", "admission.reserve must be prompt, expected or max (got most)"),
        ("admission: {max_queued_requests: 0}", "admission.max_queued_requests must be a whole number >= 1"),
        ("admission: {queue_deadline_s: 0}", "admission.queue_deadline_s must be a time in seconds > 0"),
        ("admission: {max_queue: 9}", "admission.max_queue is unknown; did you mean max_queued_"),
        (
            "engine: {kv_layout: contiguous}\nadmission: {reserve: expected}",
            "admission.reserve does not go with engine.kv_layout contiguous",
        ),
        (
            "engine: {preset: static}\nadmission: {max_reserved_tokens: 900}",
            "admission.max_reserved_tokens does not go with engine.preset static",
        ),
        (
            "engine: {preset: static, kv_layout: paged}",
            "engine.kv_layout must be contiguous with engine.preset",
        ),
        (
            "engine: {preset: static, max_num_batched_tokens: 4}",
            "engine.max_num_batched_tokens must be >= max_num_seqs 8 with engine.preset static",
        ),
        (
            "engine: {preset: static, enable_prefix_caching: true}",
            "engine.enable_prefix_caching is no setting of engine.preset static; sglang@0.5, tensorrt",
        ),
        (
            "engine: {batch_wait_s: 1}",
            "engine.batch_wait_s is no setting of engine.preset vllm-v1@0.32; static has it",
        ),
        (
            "engine: {preset: vllm-v0, max_num_queued_reqs: 9}",
            "engine.max_num_queued_reqs is no setting of engine.preset vllm-v0@0.6.6; vllm-v1@0.32 and",
        ),
        (
            "engine: {preset: vllm-v0, max_num_batched_tokens: 512, max_model_len: 1024}",
            "engine.max_num_batched_tokens must be >= max_model_len 1024 with engine.preset vllm-v0@0.6.6",
        ),
        (
            "engine: {max_num_batched_tokens: 512, long_prefill_token_threshold: 513}",
            "engine.long_prefill_token_threshold must be <= max_num_batched_tokens 512, or it is no limit",
        ),
        ("engine: {max_num_queued_reqs: -1}", "engine.max_num_queued_reqs must be a whole number >= 0"),
    ],
)
def test_rules_of_admission_that_cannot_hold_are_told(catalogue: Catalogue, line: str, sentence: str) -> None:
    """What would be passed over in silence is a fault."""
    place = 4 + len(line.splitlines())
    starting(f"chat.yaml:{place}: {sentence}", catalogue.faults(SCENARIO + line))


def test_all_faults_come_at_once_from_top_to_bottom(catalogue: Catalogue) -> None:
    """Of every sort: a name, a key, a value, a key twice, a rule, and the command line's."""
    text = "hardware: smal-24gb\nmodel: tiny-1b\nworkload: chat\nload: {}\nrun: {seed: -1}\nslo: {x: 1}\n"
    text += "model: a\n"
    faults = catalogue.faults(text, ["engine.block_size=0"])
    lines = [f"chat.yaml:{line}" for line in (1, 4, 5, 6, 7)]
    assert [sentence.split(": ")[0] for sentence in faults] == [*lines, "command line"]


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("hardware: small-24", "hardware profile small-24 is unknown; did you mean small-24gb?"),
        ("hardware: zzz", "hardware profile zzz is unknown; possible: small-24gb"),
        ("hardware: ./a.yaml", "hardware profile ./a.yaml is not there"),
        ("hardware: 7", "hardware must be a name, a path or a mapping (got 7); put the name in quotes"),
        ("hardware: {base: small-24}", "hardware profile small-24 is unknown"),
        ("hardware: {base: 7}", "hardware.base must be a name or a path (got 7)"),
        (
            "hardware: {base: small-24gb, memory_bytes: 80G}",
            "hardware.memory_bytes must be a size in bytes > 0",
        ),
        (
            "hardware: {base: small-24gb, memory: 80GB}",
            "hardware.memory is unknown; did you mean memory_bytes?",
        ),
        ("hardware: {bas: small-24gb}", "hardware.bas is unknown; did you mean base?"),
        ("model: org/tiny-1b-instruc", "model org/tiny-1b-instruc is unknown; did you mean"),
        ("model: {base: tiny-1b, kv_heads: 7}", "model.kv_heads must divide heads 32 (got 7)"),
        ("workload: nope.csv", "workload nope.csv is not there"),
        (
            "workload: {lengths: {kind: fixed, prompt_tokens: 5, cv: 1}}",
            "workload.lengths.cv does not go with workload.lengths.kind fixed",
        ),
        (
            "workload: {lengths: {kind: fixed, prompt_tokens: 5}}",
            "workload.lengths.output_tokens is missing: fixed lengths need it",
        ),
        ("workload: {lengths: {kind: fixd}}", "workload.lengths.kind must be fixed, lognormal"),
        ("workload: {arrivals: {kind: poisson}}", "workload.lengths is missing"),
        (
            "workload: {base: chat, lengths: {prompt_cv: 2}}",
            "workload.lengths.prompt_cv and lengths.cv: exactly one",
        ),
        (
            "workload: {base: chat, arrivals: {kind: trace, path: nope.csv}}",
            "workload.arrivals.path must be a file (nope.csv is not there)",
        ),
        ("workload: {base: chat, arrivals: {kind: trace}}", "workload.arrivals.path is missing"),
        (
            "workload: {base: chat, arrivals: {path: nope.csv}}",
            "workload.arrivals.path does not go with workload.arrivals.kind poisson",
        ),
        ("workload: {base: chat, patience: {kind: fixed}}", "workload.patience.mean_s is missing"),
        (
            "workload: {base: chat, lengths: {kind: mixture, prompt: "
            "{weights: [0.5, 0.1], mu: [1, 2], sigma: [1, -1]}}}",
            "workload.lengths.prompt.sigma[1] must be a number >= 0 (got -1)",
        ),
        (
            "workload: {base: chat, lengths: {kind: table, prompt: "
            "{quantiles: [0, 0.5, 0.9], tokens: [1, 2, 3]}}}",
            "workload.lengths.prompt.quantiles must rise from 0 to 1",
        ),
    ],
)
def test_a_named_section_is_told_where_it_is_named(catalogue: Catalogue, section: str, sentence: str) -> None:
    """Unknown names with the nearest; patches and sections written out with their own lines."""
    line = {"hardware": 1, "model": 2, "workload": 3}[section.partition(":")[0]]
    lines = SCENARIO.splitlines()
    lines[line - 1] = section
    starting(f"chat.yaml:{line}: {sentence}", catalogue.faults("\n".join(lines)))


def test_the_fault_of_a_named_file_names_that_file(catalogue: Catalogue) -> None:
    """File and line of the profile, not of the scenario that uses it."""
    catalogue.write("hardware/broken.yaml", "memory_bytes: 80GiB\nmemory_bandwith_bytes_per_s: 2e12\n")
    faults = catalogue.faults(SCENARIO.replace("small-24gb", "broken"))
    starting("broken.yaml:2: memory_bandwith_bytes_per_s is unknown; did you mean memory_band", faults)
    starting("broken.yaml: kernels is missing", faults)
    assert not any("chat.yaml" in sentence for sentence in faults)


def test_every_number_of_a_profile_has_an_origin(catalogue: Catalogue) -> None:
    """Results that rest on estimates can only say so if the profile does."""
    path = catalogue.root / "hardware" / "small-24gb.yaml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("  power_w:")]
    path.write_text("\n".join(lines))
    assert catalogue.faults() == [
        "small-24gb.yaml:8: power_w must have its origin under provenance (kind and source)"
    ]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("engine", "`engine` must be key=value"),
        ("=5", "`=5` must be key=value"),
        ("engine..x=5", "`engine..x=5` must be key=value"),
        ("engin.max_num_seqs=5", "engin is unknown; did you mean engine?"),
        ("engine.max_seqs=5", "engine.max_seqs is unknown; did you mean max_num_seqs?"),
        ("engine.max_num_seqs=[", "engine.max_num_seqs=[: is not YAML"),
        ("engine={block_size: 1, block_size: 2}", "engine.block_size is written twice"),
        ("load.rate_per_s=-1", "load.rate_per_s must be a rate per second > 0 (got -1)"),
        ("hardware=nope", "hardware profile nope is unknown"),
        ("engine.max_num_seqs.x=1", "engine.max_num_seqs must be a whole number >= 1 (got a mapping)"),
    ],
)
def test_the_command_line_is_told_as_such(catalogue: Catalogue, override: str, sentence: str) -> None:
    """Its faults have no file nor line."""
    starting(f"command line: {sentence}", catalogue.faults(SCENARIO, [override]))


def test_a_scenario_that_is_not_there_is_one_sentence(catalogue: Catalogue) -> None:
    """An unknown name with the nearest; a path; a folder."""
    for source, sentence in (
        ("usua", "scenario usua is unknown; did you mean usual?"),
        ("usua.yaml", "usua.yaml is not there; name a scenario file"),
        (catalogue.root, f"{catalogue.root} is a folder; name a scenario file"),
    ):
        with pytest.raises(InputFault) as caught:
            load(source, folders=catalogue.folders)
        assert str(caught.value) == sentence


def test_values_from_python_are_checked_alike(catalogue: Catalogue) -> None:
    """Mappings and replacements: the same sentences, with the source's name for the place."""
    with pytest.raises(InputFault, match=r"^scenario: load\.rate_per_s must be finite \(got nan\)$"):
        load({"load": {"rate_per_s": float("nan")}}, folders=catalogue.folders)
    with pytest.raises(InputFault, match=r"^knee search: load\.rate_per_s must be a rate per second > 0"):
        catalogue.load().replace({"load.rate_per_s": -1.0}, source="knee search")
