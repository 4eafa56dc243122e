"""The tables of all keys: of a scenario, a hardware profile, a model, a workload and an engine file.

One row a key. Validation (`check`), defaults, the JSON schema and the reference page (`reference`) are all
made from these rows, so that what is written here is what holds.
"""

from __future__ import annotations

from sim.scenario.arrival_keys import ARRIVAL_KEYS
from sim.scenario.class_keys import CLASSES_KEYS, TENANT_KEYS, class_keys
from sim.scenario.engine_keys import ENGINE_ORIGIN_KEYS, engine_file_keys, engine_settings
from sim.scenario.hardware_keys import HARDWARE_KEYS, PROVENANCE_KEYS
from sim.scenario.keys import Group, Key, Placeholder, grouped
from sim.scenario.length_keys import LENGTH_KEYS
from sim.scenario.people_keys import PEOPLE_KEYS
from sim.scenario.sharing_keys import SHARING_KEYS
from sim.scenario.trace_keys import TRACE_KEYS

MOST_REQUESTS = 100_000_000
DTYPES = ("bf16", "fp16", "fp8", "int8", "int4")
KV_DTYPES = ("auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8")
KERNEL_SOURCES = ("vllm", "sglang", "trtllm", "vidur", "nccl")
METRICS = ("ttft", "server_ttft", "queue", "tpot", "itl", "stall", "e2e")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")

PLACEHOLDERS = {
    "<limit>": Placeholder(
        rf"(?:{'|'.join(METRICS)})_(?:mean|max|p[1-9][0-9]?(?:\.[0-9]+)?)_s",
        tuple(f"{metric}_{statistic}_s" for metric in METRICS for statistic in _STATISTICS),
    ),
    "<dtype>": Placeholder("|".join(DTYPES), DTYPES),
    "<source>": Placeholder("[a-z][a-z0-9_.-]*", ("trtllm", "sglang")),
    "<gpus>": Placeholder("[1-9][0-9]*", ("2", "4", "8")),
    "<class>": Placeholder("[A-Za-z0-9][A-Za-z0-9_-]*", ("chat", "batch")),
    "<key>": Placeholder(".+", ("memory_bytes", "kernels", "lengths.prompt", "host_step_s")),
}


SCENARIO_KEYS = (
    Key("name", "text", "What the scenario is called in results.", otherwise="the file's name"),
    Key("base", "text", "Another scenario, by name or path, that this one is laid over: what is written here "
        "goes before it, mapping by mapping, and null takes a key away. A section that names a file, a "
        "mapping of another kind and a key that excludes others replace what the base has there."),
    Key("hardware", "reference", "The GPU: a name of hardware_profiles/, a path, `{base: NAME, key: value, "
        "...}`, or a whole profile.", required=True),
    Key("model", "reference", "The model: a name or Hugging Face id of the catalogue, a path to a YAML file "
        "or to a Hugging Face config.json, `{base: NAME, ...}`, or a whole model.", required=True),
    Key("workload", "reference", "The traffic: a name of workloads/, a path to a profile or to a trace "
        "(.csv, .jsonl, also with .gz), `{base: NAME, ...}`, or a whole workload.", required=True),
    Key("engine", "mapping", "The serving engine's settings, by its own flag names; or a name of `kneesim "
        "list engines`, a path, or `{base: NAME, key: value, ...}`: an engine file, whose settings go before "
        "the preset's.", {}),
    *ENGINE_ORIGIN_KEYS,
    Key("engine.preset", "text", "Scheduling semantics and defaults, by name and version; the patch version "
        "may be left out.", "vllm-v1@0.32"),
    Key("engine.max_num_seqs", "count", "Most sequences in one batch.", minimum=1,
        otherwise="preset: 1024 from 70 GiB of GPU memory on (A100: 256), else 256; at most "
        "max_num_batched_tokens; vllm-v0: 256; static: 8"),
    Key("engine.max_num_batched_tokens", "tokens", "Token budget of one iteration, prefill chunks and "
        "decodes together.", minimum=1, otherwise="preset: 16384 from 160 GiB of GPU memory on, 8192 from 70 "
        "GiB on (A100: 2048), else 2048; at most max_num_seqs * max_model_len; vllm-v0: max_model_len, at "
        "least 2048"),
    Key("engine.gpu_memory_utilization", "share", "Share of the GPU's memory that the engine takes.", above=0,
        maximum=1, otherwise="preset: 0.92; vllm-v0: 0.90"),
    Key("engine.free_gpu_memory_fraction", "share", "Share of what weights, activations and overhead leave "
        "of the engine's memory that the KV cache takes.", above=0, maximum=1,
        otherwise="preset: 1; tensorrt-llm: 0.9"),
    Key("engine.block_size", "tokens", "Tokens of one KV block.", minimum=1, otherwise="preset: 16"),
    Key("engine.enable_prefix_caching", "flag", "Keep what was computed until its blocks are needed, and "
        "share the blocks of equal beginnings.", otherwise="preset: true, with kv_layout contiguous false; "
        "vllm-v0, static: false"),
    Key("engine.kv_cache_dtype", "choice", "Type of the cached keys and values; auto is the model's.", "auto",
        choices=KV_DTYPES),
    Key("engine.weight_dtype", "choice", "Type of the linear layers' weights; auto is the model's.", "auto",
        choices=("auto", *DTYPES)),
    Key("engine.tensor_parallel_size", "count", "GPUs that one replica is spread over.", 1, minimum=1),
    Key("engine.max_model_len", "tokens", "Longest context of a request, prompt and output together.",
        minimum=1, otherwise="model: max_position_embeddings"),
    Key("engine.num_gpu_blocks_override", "count", "KV blocks, whatever the memory ledger says.", minimum=1),
    Key("engine.kv_cache_memory_bytes", "bytes", "Memory of the KV cache per GPU, whatever "
        "gpu_memory_utilization says.", above=0),
    Key("engine.activation_bytes", "bytes", "Peak memory of activations per GPU.", minimum=0,
        otherwise="estimated by the memory ledger"),
    Key("engine.profiled_tokens", "tokens", "Tokens of the run in which the engine finds that peak.",
        minimum=1, otherwise="max_num_batched_tokens; vllm-v0 with max_model_len above 32768: 2048"),
    Key("engine.overhead_bytes", "bytes", "Memory per GPU outside the allocator (context, communication, "
        "CUDA graphs).", minimum=0, otherwise="estimated by the memory ledger"),
    Key("engine.non_torch_bytes", "bytes", "The part of it that one GPU alone has, CUDA graphs apart.",
        minimum=0, otherwise="256 MiB"),
    Key("engine.reserve_cudagraph_memory", "flag", "The KV cache leaves room for the CUDA graphs.",
        otherwise="preset: true; vllm-v0: false"),
    Key("engine.long_prefill_token_threshold", "tokens", "Longest prefill chunk of one request while others "
        "are there; 0 is no limit.", minimum=0, otherwise="preset: 0"),
    Key("engine.long_prefill_token_threshold_adaptive", "flag", "Raise that limit to a fair share of the "
        "token budget: max_num_batched_tokens over the requests that wait or run.",
        otherwise="preset: false"),
    Key("engine.max_num_queued_reqs", "count", "A request is refused (503) when so many wait or run.",
        minimum=0, otherwise="no limit"),
    Key("engine.max_num_queued_tokens", "tokens", "A request is refused (503) when the prompts that have no "
        "token of an answer yet have so many tokens; each counts whole until then.", minimum=0,
        otherwise="no limit"),
    Key("engine.scheduling_policy", "choice", "Who is admitted first and preempted last: who came first, or "
        "who has the smaller priority.", choices=("fcfs", "priority"), otherwise="preset: fcfs"),
    Key("engine.async_scheduling", "flag", "Form a step while the one before it runs: an iteration takes the "
        "longer of GPU and host, not their sum, and what ends or comes is seen one iteration later.",
        otherwise="preset: true; vllm-v0, static: false"),
    Key("engine.watermark", "share", "Share of the KV blocks that a new request leaves free while others "
        "run.", minimum=0, below=1, otherwise="preset: 0; vllm-v0: 0.01"),
    Key("engine.enable_chunked_prefill", "flag", "Compute a prompt that exceeds what a step has room for in "
        "pieces; else it waits for a step that has room for all of it.",
        otherwise="preset: true; tensorrt-llm, vllm-v0, lmdeploy, static: false"),
    Key("engine.scheduler_reserve_full_isl", "flag", "Admit a request only if its whole prompt fits in the "
        "free blocks.", otherwise="preset: true"),
    Key("engine.cuda_graphs", "flag", "Replay captured graphs, which pads batches to the captured sizes.",
        otherwise="preset: true"),
    Key("engine.max_cudagraph_capture_size", "tokens", "Largest captured batch.", minimum=1,
        otherwise="preset: 2 * max_num_seqs, at most 512 (1024 on data-centre Blackwell) and "
        "max_num_batched_tokens; vllm-v0: max_num_seqs"),
    Key("engine.host_step_s", "seconds", "CPU time of the engine an iteration.", minimum=0, maximum=60,
        otherwise="preset: 126 us; vllm-v0: 5 ms"),
    Key("engine.host_sequence_s", "seconds", "CPU time of the engine a sequence and iteration.", minimum=0,
        maximum=60, otherwise="preset: 4.4 us"),
    Key("engine.kernel_source", "choice", "The backend whose kernels it runs, where the hardware profile has "
        "them; where not, and for what was not measured with it, the profile's own.",
        choices=KERNEL_SOURCES, otherwise="preset: vllm; sglang: sglang; tensorrt-llm: trtllm"),
    Key("engine.cudagraph_prefill", "flag", "Graphs cover iterations with prompts too, up to "
        "max_cudagraph_capture_size.", otherwise="preset: true; vllm-v0, static: false"),
    Key("engine.eager_layer_s", "seconds", "CPU time to launch one layer of an iteration that no CUDA graph "
        "covers; it takes at least that.", minimum=0, maximum=1, otherwise="preset: 0"),
    Key("engine.front_end_latency_s", "seconds", "Time between client and engine a request, both ways "
        "together.", minimum=0, maximum=60, otherwise="preset: 10 ms"),
    Key("engine.front_end_service_s", "seconds", "Time a request for which the front end serves nobody else.",
        minimum=0, maximum=60, otherwise="preset: 1 ms"),
    Key("engine.front_end_prompt_token_s", "seconds", "The same, a prompt token.", minimum=0, maximum=60,
        otherwise="preset: 1 us"),
    Key("engine.batch_wait_s", "seconds", "How long the first of a static group that is not full waits for "
        "company; of preset static alone.", minimum=0, otherwise="preset static: 1 s"),
    Key("engine.kv_layout", "choice", "paged: blocks are taken as tokens come. contiguous: one reservation "
        "of the longest permitted context per request.", choices=("paged", "contiguous"),
        otherwise="preset: paged; static: contiguous"),
    Key("engine.kv_fragmentation", "share", "Share of the KV cache's memory that the allocator cannot use.",
        0.0, minimum=0, below=1),
    Key("admission", "mapping", "Who may wait and what is set aside for whom.", {}),
    Key("admission.reserve", "choice", "What admission sets aside for a request: its prompt, as the engine "
        "does; its prompt and the expected answer; or its prompt and the longest permitted answer.", "prompt",
        choices=("prompt", "expected", "max")),
    Key("admission.expected_output_tokens", "tokens", "The expected answer.", minimum=1,
        otherwise="the workload's mean", when=("admission.reserve", ("expected",))),
    Key("admission.max_reserved_tokens", "tokens", "Most tokens set aside for running requests together.",
        minimum=1),
    Key("admission.max_queued_requests", "count", "A request is refused when so many wait.", minimum=1),
    Key("admission.max_queued_tokens", "tokens", "A request is refused when the prompts in the queue and its "
        "own have more tokens.", minimum=1),
    Key("admission.queue_deadline_s", "seconds", "A request that has waited so long leaves the queue.",
        above=0),
    Key("admission.refuse_late", "flag", "Refuse on arrival whoever would miss queue_deadline_s at the pace "
        "of the queue.", False),
    Key("admission.max_output_tokens", "tokens", "Answers end there at the latest.", minimum=1),
    Key("deployment", "mapping", "How many engines, and who gets which request.", {}),
    Key("deployment.replicas", "count", "Engines side by side; more than 1 is not in this version.", 1,
        minimum=1),
    Key("deployment.router", "choice", "How requests are spread over replicas.", "round_robin",
        choices=("round_robin",)),
    Key("load", "mapping", "How much traffic: exactly one of rate_per_s, mode and concurrency. `trace` and "
        "`burst` are short for `{mode: trace}` and `{mode: burst}`.", required=True),
    Key("load.rate_per_s", "per second", "Mean rate of requests of the whole system (open loop). A trace "
        "keeps its shape.", above=0, one_of="load"),
    Key("load.mode", "choice", "trace: the trace's own times. burst: all requests at t = 0.",
        choices=("trace", "burst"), one_of="load"),
    Key("load.concurrency", "count", "Users that send again when answered (closed loop).", minimum=1,
        one_of="load"),
    Key("load.think", "mapping", "How long a user thinks between an answer and the next request; not at all "
        "if absent.", needs="load.concurrency"),
    Key("load.think.kind", "choice", "Its distribution.", required=True, choices=("fixed", "exponential")),
    Key("load.think.mean_s", "seconds", "Its mean.", above=0, required=True),
    Key("load.time_scale", "number", "How many times faster than recorded a trace is replayed.", above=0,
        otherwise="1", when=("load.mode", ("trace",))),
    Key("slo", "mapping", "Latency limits.", {}),
    Key("slo.<limit>", "seconds", "Limit on a metric's mean, maximum or percentile, e.g. ttft_p99_s.",
        above=0),
    Key("run", "mapping", "How long, and with which random numbers.", {}),
    Key("run.requests", "count", "Requests sent. A search for a knee chooses the length of its replications "
        "itself, up to this, or 40000 if it is less.", 2000, minimum=1, maximum=MOST_REQUESTS,
        one_of="run length",
        otherwise="2000; with load.mode trace the whole trace"),
    Key("run.duration_s", "seconds", "Requests are sent until then.", above=0, one_of="run length"),
    Key("run.seed", "count", "Seed of every random stream.", 1, minimum=0),
    Key("run.warmup", "warmup", "What is left out at the start of the run: a share of its requests, or a "
        "time such as 30s.", 0.1),
    Key("run.stream_records", "flag", "Keep the records in files while the run goes on, so that it needs no "
        "memory of its length: of a single run; knees and sweeps look at short ones.", False),
    Key("run.precision", "number", "Half the width that a knee's sampling interval may have, as a share of "
        "the knee.", 0.02, above=0, maximum=0.5),
    Key("run.confidence", "share", "How often that interval holds the true knee.", 0.95, minimum=0.5,
        below=1),
    Key("run.most_replications", "count", "Most replications of a knee's load; at least ten are made if it "
        "allows.", 100, minimum=2),
    Key("run.window_s", "seconds", "Length of the windows by which a run with limits is judged where it has "
        "no steady state.", 300.0, above=0),
    Key("run.windows_in_violation", "share", "Share of the windows in which a limit may be missed at such a "
        "knee.", 0.0, minimum=0, below=1),
    Key("cost", "mapping", "What a GPU costs.", {}),
    Key("cost.gpu_hour_usd", "usd", "Price of one GPU for one hour.", minimum=0,
        otherwise="hardware: price.usd_per_gpu_hour"),
    Key("sources", "mapping", "Where each value of a resolved scenario came from; it has no effect."),
)  # fmt: skip


MODEL_KEYS = (
    Key("name", "text", "Name of the model.", otherwise="the file's name"),
    Key("aliases", "text", "Other names, Hugging Face ids among them.", many=True),
    Key("layers", "count", "Transformer layers.", minimum=1, required=True),
    Key("hidden_size", "count", "Width of the residual stream.", minimum=1, required=True),
    Key("heads", "count", "Attention heads.", minimum=1, required=True),
    Key("kv_heads", "count", "Heads of keys and values.", minimum=1, required=True),
    Key("head_dim", "count", "Width of a head.", minimum=1, required=True),
    Key("intermediate_size", "count", "Width of the feed-forward layer.", minimum=1, required=True),
    Key("vocab_size", "count", "Tokens of the vocabulary.", minimum=1, required=True),
    Key("max_position_embeddings", "tokens", "Longest context.", minimum=1, required=True),
    Key("tie_word_embeddings", "flag", "Embedding and LM head share their weights.", False),
    Key("attention_bias", "flag", "Biases in the projections of queries, keys and values.", False),
    Key("qk_norm", "flag", "Norms of queries and keys.", False),
    Key("dtype", "choice", "Type of the published weights.", "bf16", choices=DTYPES),
    Key("published_parameters", "count", "Parameters as published, to check the shape against.", minimum=1),
    Key("source", "text", "Where the shape was read."),
)  # fmt: skip


WORKLOAD_KEYS = (
    Key("name", "text", "Name of the workload.", otherwise="the file's name"),
    Key("aliases", "text", "Other names.", many=True),
    Key("source", "text", "Where the traffic was recorded."),
    Key("licence", "text", "Under which licence."),
    Key("description", "text", "What it is, in words."),
    *ARRIVAL_KEYS,
    *LENGTH_KEYS,
    *SHARING_KEYS,
    *PEOPLE_KEYS,
    Key("priorities", "mapping", "How urgent requests are, for engine.scheduling_policy priority; all are "
        "equally so if absent."),
    Key("priorities.weights", "number", "Shares of the requests with priority 0 (the most urgent), 1, 2 and "
        "so on; they add up to 1.", minimum=0, many=True, required=True),
    *TRACE_KEYS,
    Key("zero_output", "choice", "A trace's requests without output: drop (and count) them, or refuse the "
        "file.", "drop", choices=("drop", "error")),
    *TENANT_KEYS,
    *CLASSES_KEYS,
    *PROVENANCE_KEYS,
)  # fmt: skip

ENGINE_SETTINGS = engine_settings(SCENARIO_KEYS)

TABLES: dict[str, tuple[Key, ...]] = {
    "scenarios": SCENARIO_KEYS,
    "hardware": HARDWARE_KEYS,
    "models": MODEL_KEYS,
    "workloads": WORKLOAD_KEYS,
    "classes": class_keys(WORKLOAD_KEYS),
    "engines": engine_file_keys(SCENARIO_KEYS),
}
GROUPS: dict[str, Group] = {kind: grouped(keys) for kind, keys in TABLES.items()}

SECTION_KINDS = {"hardware": "hardware", "model": "models", "workload": "workloads"}
"""The scenario's sections that are a file of the catalogue, and its kind."""
NAMING = {**SECTION_KINDS, "engine": "engines"}
"""The same, and the engine, whose file lies under the scenario's own settings."""
