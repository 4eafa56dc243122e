"""The table of a hardware profile's keys."""

from __future__ import annotations

from sim.scenario.keys import Key


def _residual(of: str, axes: str, name: str = "residual") -> Key:
    return Key(f"{of}.{name}", "mapping", "Measured over fitted: nodes of "
        f"{axes}, and permille, one text of whole numbers (measured over fitted, less 1, in thousandths; the "
        "last axis runs fastest); in between linear in the logarithms.")  # fmt: skip


def _all_reduce_keys(of: str, meaning: str) -> tuple[Key, ...]:
    return (
        Key(of, "mapping", meaning),
        Key(f"{of}.<gpus>", "mapping", "Over so many GPUs."),
        Key(f"{of}.<gpus>.latency_s", "seconds", "Time of an empty call.", minimum=0, required=True),
        Key(f"{of}.<gpus>.bytes_per_s", "bytes per second", "Bytes per rank a second.", above=0,
            required=True),
        Key(f"{of}.<gpus>.exponent", "number", "p of the smooth sum.", above=0, required=True),
        _residual(f"{of}.<gpus>", "bytes"),
    )  # fmt: skip


def _prefill_keys(suffix: str, meaning: str) -> tuple[Key, ...]:
    prefill = f"kernels.attention_prefill{suffix}"
    return (
        Key(prefill, "mapping", f"Attention of prefill chunks{meaning}.", required=not suffix),
        Key(f"{prefill}.flops_per_s", "number", "F, flops a second.", above=0, required=True),
        Key(f"{prefill}.head_token_s", "seconds", "Time a head and token.", minimum=0, required=True),
        Key(f"{prefill}.exponent", "number", "p of the smooth sum.", above=0, required=True),
        Key(f"{prefill}.overhead_s", "seconds", "Time of an empty call.", minimum=0, required=True),
        Key(f"{prefill}.causal_weight", "number", "Share of a chunk's own token pairs that masking leaves.",
            above=0),
        _residual(prefill, "head_tokens, span_tokens and heads_per_kv_head"),
        _residual(prefill, "new_tokens and kv_heads", "kv_residual"),
    )  # fmt: skip


def _decode_keys(suffix: str, meaning: str) -> tuple[Key, ...]:
    decode = f"kernels.attention_decode{suffix}"
    return (
        Key(decode, "mapping", f"Attention of decoding sequences{meaning}.", required=not suffix),
        Key(f"{decode}.bytes_per_s", "bytes per second", "B, bytes of KV a second.", above=0, required=True),
        Key(f"{decode}.head_sequence_s", "seconds", "Time a sequence and KV head.", minimum=0, required=True),
        Key(f"{decode}.exponent", "number", "p of the smooth sum.", above=0, required=True),
        Key(f"{decode}.overhead_s", "seconds", "Time of an empty call.", minimum=0, required=True),
        Key(f"{decode}.regroup_s", "seconds", "Time to bring queries of one KV head together, where several "
            "sequences, KV heads and queries a KV head are.", minimum=0, otherwise="0"),
        Key(f"{decode}.cached_below_bytes", "bytes", "A smaller KV was cached when it was measured in a "
            "loop, which a server's is not.", above=0),
        Key(f"{decode}.cached_bytes_per_s", "bytes per second", "Rate from that cache.", above=0),
        _residual(decode, "head_sequences, context_tokens and heads_per_kv_head"),
    )  # fmt: skip


PROVENANCE_KEYS = (
    Key("provenance", "mapping", "Where each number comes from; a key covers everything below it."),
    Key("provenance.<key>", "mapping", "Of this number, or of all below this key."),
    Key("provenance.<key>.kind", "choice", "How it was got.", choices=("measured", "datasheet", "estimated"),
        required=True),
    Key("provenance.<key>.source", "text", "From what.", required=True),
    Key("provenance.<key>.points", "count", "How many measurements.", minimum=0),
    Key("provenance.<key>.error_median_pct", "number", "Median held-out error, percent.", minimum=0),
    Key("provenance.<key>.error_p90_pct", "number", "90th percentile of the held-out error, percent.",
        minimum=0),
    Key("provenance.<key>.covariance", "mapping", "Of the logarithms of fitted coefficients: for each, by "
        "its name, a list of numbers in the order of the names."),
)  # fmt: skip

HARDWARE_KEYS = (
    Key("name", "text", "Name of the profile.", otherwise="the file's name"),
    Key("aliases", "text", "Other names.", many=True),
    Key("memory_bytes", "bytes", "Memory as the driver reports it.", above=0, required=True),
    Key("peak_flops_per_s", "mapping", "Datasheet peaks, dense.", required=True),
    Key("peak_flops_per_s.<dtype>", "number", "Flops a second in this type.", above=0),
    Key("memory_bandwidth_bytes_per_s", "bytes per second", "Datasheet memory bandwidth.", above=0,
        required=True),
    Key("l2_bytes", "bytes", "Second-level cache.", above=0, required=True),
    Key("link", "mapping", "Connection between the GPUs of a node.", required=True),
    Key("link.kind", "choice", "Its kind.", choices=("nvlink", "xgmi", "pcie"), required=True),
    Key("link.bandwidth_bytes_per_s", "bytes per second", "Of the datasheet, both directions together.",
        above=0, required=True),
    Key("power_w", "number", "Board power, watts.", above=0, required=True),
    Key("price", "mapping", "What an hour costs.", required=True),
    Key("price.usd_per_gpu_hour", "usd", "Price of one GPU for one hour.", minimum=0, required=True),
    Key("price.date", "text", "When it was read.", required=True),
    Key("price.source", "text", "Where it was read.", required=True),
    Key("efficiency", "mapping", "Share of its kernels' rates that the card reaches in a server."),
    Key("efficiency.compute", "number", "Of the flops a second.", above=0, otherwise="1"),
    Key("efficiency.memory_bandwidth", "number", "Of the bytes a second.", above=0, otherwise="1"),
    Key("efficiency.link", "number", "Of the collectives' rates.", above=0, otherwise="1"),
    Key("scaled", "mapping", "From which card the kernels of one that was not measured are made, by `kneesim "
        "calibrate scale`; no answer asks for it."),
    Key("scaled.from", "text", "The measured card.", required=True),
    Key("scaled.compute", "number", "Times its flops a second.", above=0, otherwise="ratio of the peaks"),
    Key("scaled.memory_bandwidth", "number", "Times its bytes a second.", above=0,
        otherwise="ratio of the memory bandwidths"),
    Key("scaled.heads", "number", "Times its times a head.", above=0,
        otherwise="inverse ratio of the 16-bit peaks"),
    Key("scaled.link_from", "text", "Whose all-reduce.", otherwise="scaled.from"),
    Key("scaled.link", "number", "Times its bytes a second.", above=0, otherwise="ratio of the links"),
    Key("scaled.link_gpus", "count", "Most GPUs that share the link.", minimum=2, otherwise="as measured"),
    Key("scaled.ring", "flag", "More than two GPUs have the rate of two, as in a ring.", otherwise="false"),
    Key("scaled.same_chip", "flag", "It is the same chip: residuals are kept.", otherwise="false"),
    Key("kernels", "mapping", "Fitted coefficients of the operations.", required=True),
    Key("kernels.gemm", "mapping", "Linear layers, by the type of the weights.", required=True),
    Key("kernels.gemm.<dtype>", "mapping", "((flops/F)^p + (bytes/B)^p)^(1/p) + overhead."),
    Key("kernels.gemm.<dtype>.flops_per_s", "number", "F, flops a second.", above=0, required=True),
    Key("kernels.gemm.<dtype>.bytes_per_s", "bytes per second", "B, bytes a second.", above=0, required=True),
    Key("kernels.gemm.<dtype>.exponent", "number", "p of the smooth roofline.", above=0, required=True),
    Key("kernels.gemm.<dtype>.overhead_s", "seconds", "Time of an empty call.", minimum=0, required=True),
    Key("kernels.gemm.<dtype>.quantise_bytes_per_s", "bytes per second", "Rate at which inputs are quantised "
        "first, 3 bytes an element.", above=0, otherwise="not apart: in the bytes and the overhead"),
    Key("kernels.gemm.<dtype>.cached_below_bytes", "bytes", "Smaller weights were cached when they were "
        "measured; a server reads them from memory.", above=0),
    _residual("kernels.gemm.<dtype>", "m, n and k"),
    *_prefill_keys("", ""),
    *_decode_keys("", ""),
    *_prefill_keys("_fp8", " over an 8-bit KV cache"),
    *_decode_keys("_fp8", " over an 8-bit KV cache"),
    *_prefill_keys("_fp8_compute", " over an 8-bit KV cache, computed in 8 bits"),
    *_all_reduce_keys("kernels.all_reduce", "All-reduce within a node, in CUDA graphs, by number of GPUs."),
    *_all_reduce_keys("kernels.all_reduce_eager", "The same launched by itself."),
    Key("kernels.elementwise", "mapping", "Norms, activations, embedding.", required=True),
    Key("kernels.elementwise.bytes_per_s", "bytes per second", "B, bytes a second.", above=0, required=True),
    Key("kernels.elementwise.overhead_s", "seconds", "Time of an empty call.", minimum=0, required=True),
    Key("kernel_source", "text", "Whose kernels these are.", otherwise="vllm"),
    Key("kernel_sources", "mapping", "Kernels of other backends."),
    Key("kernel_sources.<source>", "mapping", "Of this one: sections as in kernels; what it lacks is taken "
        "from there."),
    *PROVENANCE_KEYS,
)  # fmt: skip
