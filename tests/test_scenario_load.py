"""From a file to a resolved scenario: precedence, names, patches, and what changes cost."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from scenario_inputs import HARDWARE, SCENARIO, Catalogue

from sim.faults import InputFault
from sim.scenario import load
from sim.scenario.tree import Faults
from sim.scenario.yaml_core import read_file

GIB = 1024**3
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path)


def test_the_command_line_beats_the_file_beats_the_preset_beats_the_default(catalogue: Catalogue) -> None:
    """Each value knows where it came from."""
    text = SCENARIO + "engine: {max_num_seqs: 64, block_size: 32}\n"
    scenario = catalogue.load(text, ["engine.block_size=8", "run.seed=7"])
    values = {key: (scenario.engine[key], scenario.sources[f"engine.{key}"]) for key in scenario.engine}
    assert values["max_num_seqs"] == (64, "chat.yaml:5")
    assert values["block_size"] == (8, "command line")
    assert values["gpu_memory_utilization"] == (0.92, "preset vllm-v1@0.32")
    assert values["max_model_len"] == (4096, "model tiny-1b")
    assert values["tensor_parallel_size"] == (1, "default")
    assert (scenario.run["seed"], scenario.sources["run.seed"]) == (7, "command line")
    assert (scenario.run["requests"], scenario.sources["run.requests"]) == (2000, "default")
    assert (scenario.cost["gpu_hour_usd"], scenario.sources["cost.gpu_hour_usd"]) == (
        0.5,
        "hardware profile small-24gb",
    )


def test_values_are_in_base_units(catalogue: Catalogue) -> None:
    """Bytes, seconds, tokens, whatever unit they were written in."""
    scenario = catalogue.load(
        SCENARIO + "engine: {kv_cache_memory_bytes: 2GB, host_step_s: 250us}\nrun: {warmup: 30s}"
    )
    assert scenario.hardware["memory_bytes"] == 24 * GIB
    assert scenario.hardware["memory_bandwidth_bytes_per_s"] == 600e9
    assert scenario.model["vocab_size"] == 32768
    assert scenario.engine["kv_cache_memory_bytes"] == 2_000_000_000
    assert scenario.engine["host_step_s"] == 0.00025
    assert scenario.run["warmup"] == {"seconds": 30.0}


def test_overrides_replace_the_whole_subtree(catalogue: Catalogue) -> None:
    """What the file had below the key is gone; the later override wins; an empty value unsets."""
    text = SCENARIO + "slo: {ttft_p99_s: 2, e2e_p99_s: 30}\nengine: {max_num_seqs: 64}\n"
    assert catalogue.load(text, ["slo={tpot_p99_s: 50ms}"]).slo == {"tpot_p99_s": 0.05}
    assert catalogue.load(text, ["slo.ttft_p99_s=1", "slo.ttft_p99_s=3"]).slo["ttft_p99_s"] == 3
    assert catalogue.load(text, ["slo.ttft_p99_s="]).slo == {"e2e_p99_s": 30}
    assert catalogue.load(SCENARIO, ["slo.ttft_p99.9_s=1"]).slo == {"ttft_p99.9_s": 1}
    assert catalogue.load(text, ["engine.max_num_seqs=null"]).engine["max_num_seqs"] == 256


def test_an_override_takes_the_place_of_what_it_excludes(catalogue: Catalogue) -> None:
    """A rate over a burst is a rate; a duration over requests is a duration."""
    burst = SCENARIO.replace("{rate_per_s: 4}", "burst") + "run: {requests: 9}\n"
    assert catalogue.load(burst).load == {"mode": "burst"}
    assert catalogue.load(burst, ["load.rate_per_s=2"]).load == {"rate_per_s": 2}
    assert catalogue.load(SCENARIO, ["load=burst"]).load == {"mode": "burst"}
    timed = catalogue.load(burst, ["load={rate_per_s: 2}", "run.duration_s=60"])
    assert timed.run["duration_s"] == 60
    assert "requests" not in timed.run


def test_a_patch_changes_only_what_it_names(catalogue: Catalogue) -> None:
    """By `base:` and by an override of a key below a name; a patched number is an estimate."""
    text = SCENARIO.replace("small-24gb", "{base: Small GPU, kernels: {gemm: {bf16: {exponent: 2}}}}")
    scenario = catalogue.load(text, ["hardware.memory_bytes=20GB", "model.layers=8"])
    plain = catalogue.load()
    assert scenario.hardware["memory_bytes"] == 20e9
    gemm, was = scenario.hardware["kernels"]["gemm"]["bf16"], plain.hardware["kernels"]["gemm"]["bf16"]
    assert gemm == {**was, "exponent": 2}
    assert scenario.hardware["provenance"]["memory_bytes"] == {
        "kind": "estimated",
        "source": "set in the scenario",
    }
    assert scenario.hardware["provenance"]["l2_bytes"] == plain.hardware["provenance"]["l2_bytes"]
    assert scenario.model == {**plain.model, "layers": 8}
    assert scenario.sources["hardware"] == "hardware profile small-24gb"
    assert scenario.sources["hardware.memory_bytes"] == "command line"
    assert scenario.sources["hardware.kernels.gemm.bf16.exponent"] == "chat.yaml:1"


def test_a_patch_of_another_kind_replaces_what_was_there(catalogue: Catalogue) -> None:
    """Lognormal's keys make no sense in fixed lengths."""
    patch = "{base: chat, lengths: {kind: fixed, prompt_tokens: 10, output_tokens: 5}}"
    scenario = catalogue.load(SCENARIO.replace("workload: chat", f"workload: {patch}"))
    assert scenario.workload["lengths"] == {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 5}
    assert scenario.workload["arrivals"] == {"kind": "poisson"}


def test_sections_may_be_paths_or_written_out(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a file starts from the file's folder, one on the command line from the working directory."""
    catalogue.write("mine/gpu.yaml", HARDWARE.replace("24GiB", "48GiB"))
    monkeypatch.chdir(catalogue.root / "models")
    assert (
        catalogue.load(SCENARIO.replace("small-24gb", "mine/gpu.yaml")).hardware["memory_bytes"] == 48 * GIB
    )
    assert catalogue.load(SCENARIO, ["hardware=../mine/gpu.yaml"]).hardware["memory_bytes"] == 48 * GIB
    lengths = "{kind: fixed, prompt_tokens: 1k, output_tokens: 10}"
    scenario = catalogue.load(SCENARIO.replace("workload: chat", f"workload: {{lengths: {lengths}}}"))
    assert scenario.workload == {
        "name": "unnamed",
        "arrivals": {"kind": "poisson"},
        "lengths": {"kind": "fixed", "prompt_tokens": 1000, "output_tokens": 10},
        "zero_output": "drop",
    }
    assert scenario.sources["workload"] == "chat.yaml:3"


@pytest.mark.parametrize("name", ["traffic.csv", "traffic.csv.gz"])
def test_a_trace_is_found_from_its_file_and_named_as_written(catalogue: Catalogue, name: str) -> None:
    """Absolute for the reader; in results, and in the hash, as it was written."""
    path = catalogue.write("traces/" + name, TRACE)
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(TRACE.encode()))
    text = SCENARIO.replace("workload: chat", f"workload: traces/{name}").replace("{rate_per_s: 4}", "trace")
    scenario = catalogue.load(text)
    assert scenario.workload["arrivals"] == {"kind": "trace", "path": str(path)}
    assert scenario.workload["lengths"] == {"kind": "trace", "path": str(path)}
    assert scenario.workload["name"] == "traffic"
    assert scenario.resolved()["workload"]["arrivals"]["path"] == f"traces/{name}"
    assert scenario.load == {"mode": "trace", "time_scale": 1.0}
    assert "requests" not in scenario.run, "the whole trace unless the scenario says how many"
    assert catalogue.load(text, ["load.time_scale=2", "run.requests=5"]).load["time_scale"] == 2


def test_the_hash_is_of_what_holds_not_of_how_it_was_written(catalogue: Catalogue, tmp_path: Path) -> None:
    """Order, units, comments, the file's name and folder leave it; a value changes it."""
    first = catalogue.load(SCENARIO + "run: {seed: 1, requests: 2k}\n")
    lines = (SCENARIO + "run: {requests: 2000, seed: 1}  # as usual\n").splitlines()
    other = Catalogue(tmp_path / "elsewhere")
    second = load(other.write("other.yaml", "\n".join(reversed(lines))), folders=other.folders)
    assert first.sha256 == second.sha256
    assert first.sha256 != catalogue.load(SCENARIO + "run: {seed: 2}\n").sha256
    assert len(first.sha256) == 64


def test_a_resolved_scenario_is_json_and_loads_to_itself(catalogue: Catalogue) -> None:
    """So that a result carries all that is needed to run it again."""
    text = SCENARIO + "slo: {ttft_p99.9_s: 2}\nrun: {warmup: 1min}\nengine: {max_num_seqs: 64}\n"
    scenario = catalogue.load(text, ["hardware.memory_bytes=20GB"])
    document = json.loads(json.dumps(scenario.resolved(), allow_nan=False))
    again = load(document, folders={})
    assert again.sha256 == scenario.sha256
    assert again.engine == scenario.engine


def test_replace_is_load_with_the_change(catalogue: Catalogue) -> None:
    """The same scenario as from the command line, but for the source's name; the old one is as it was."""
    scenario = catalogue.load(SCENARIO + "run: {requests: 9}\n")
    before = json.dumps(scenario.resolved())
    for changes in (
        {"load.rate_per_s": np.float64(6.5)},
        {"engine.max_num_seqs": np.int64(8), "engine.kv_cache_dtype": "fp8"},
        {"load": "burst"},
        {"run.duration_s": "1min"},
        {"hardware.memory_bytes": "20GB"},
        {"slo": {"ttft_p50_s": 1}},
    ):
        changed = scenario.replace(changes, source="sweep")
        overrides = [f"{key}={json.dumps(value, default=float)}" for key, value in changes.items()]
        loaded = catalogue.load(SCENARIO + "run: {requests: 9}\n", overrides)
        assert changed.sha256 == loaded.sha256 != scenario.sha256
        assert "sweep" in changed.sources.values()
    assert json.dumps(scenario.resolved()) == before


def test_replace_reads_no_file_for_what_is_named_in_none(catalogue: Catalogue) -> None:
    """A search for a knee changes the load some hundred times."""
    scenario = catalogue.load()
    shutil.rmtree(catalogue.root)
    changed = scenario.replace(
        {"load.rate_per_s": 6, "run.seed": 3, "slo.ttft_p99_s": 1, "engine.block_size": 32}
    )
    assert (changed.load, changed.run["seed"]) == ({"rate_per_s": 6}, 3)
    assert scenario.replace({"load.rate_per_s": 5}).replace({"run.seed": 2}).load == {"rate_per_s": 5}
    with pytest.raises(InputFault, match="hardware profile small-24gb is unknown"):
        scenario.replace({"hardware.memory_bytes": "80GB"})


def test_a_scenario_travels_between_processes(catalogue: Catalogue) -> None:
    """Sweeps send it to workers."""
    scenario = catalogue.load()
    assert pickle.loads(pickle.dumps(scenario)) == scenario


@pytest.mark.parametrize(
    ("name", "memory", "budget", "sequences"),
    [
        ("a100-80gb-sxm", "79.15GiB", 2048, 256),
        ("h100-80gb-sxm", "79.1GiB", 8192, 1024),
        ("l4-24gb-pcie", "22GiB", 2048, 256),
        ("b200-180gb-sxm", "178GiB", 16384, 1024),
    ],
)
def test_the_preset_follows_the_gpu(
    catalogue: Catalogue, name: str, memory: str, budget: int, sequences: int
) -> None:
    """Token budget and sequences by memory, with the A100 as the exception; capture sizes follow."""
    overrides = [f"hardware.name={name}", f"hardware.memory_bytes={memory}", "hardware.aliases="]
    engine = catalogue.load(SCENARIO, overrides).engine
    assert (engine["max_num_batched_tokens"], engine["max_num_seqs"]) == (budget, sequences)
    assert engine["max_cudagraph_capture_size"] == (1024 if name.startswith("b200") else 512)
    few = catalogue.load(SCENARIO, [*overrides, "engine.max_num_seqs=1", "engine.max_model_len=512"]).engine
    assert (few["max_num_batched_tokens"], few["max_cudagraph_capture_size"]) == (512, 2)


@pytest.mark.parametrize("preset", ["vllm-v1@0.32", "vllm-v1@0.32.0"])
def test_the_presets_patch_version_may_be_left_out(catalogue: Catalogue, preset: str) -> None:
    """It does not change the semantics."""
    assert catalogue.load(SCENARIO, [f"engine.preset={preset}"]).engine["preset"] == "vllm-v1@0.32"


def test_more_sequences_than_the_token_budget_are_allowed(catalogue: Catalogue) -> None:
    """The decoding set may exceed an iteration's budget."""
    engine = catalogue.load(SCENARIO, ["engine.max_num_seqs=64", "engine.max_num_batched_tokens=16"]).engine
    assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (64, 16)


def test_key_value_heads_may_be_split_or_copied(catalogue: Catalogue) -> None:
    """8 KV heads over 2 GPUs are split, over 16 copied; both are fine."""
    profile = (catalogue.root / "hardware" / "small-24gb.yaml").read_text()
    row = "{latency_s: 20us, bytes_per_s: 2e10, exponent: 1.2}"
    catalogue.write(
        "hardware/small-24gb.yaml", profile.replace("all_reduce: {", f'all_reduce: {{"16": {row}, ')
    )
    for size in (2, 16):
        assert (
            catalogue.load(SCENARIO, [f"engine.tensor_parallel_size={size}"]).engine["tensor_parallel_size"]
            == size
        )


def test_a_hugging_face_config_is_a_model(catalogue: Catalogue) -> None:
    """It is called what its folder is called; what it cannot be is told with its name."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    }  # fmt: skip
    catalogue.write("Small-1B/config.json", json.dumps(config))
    text = SCENARIO.replace("model: tiny-1b", "model: Small-1B/config.json")
    model = catalogue.load(text).model
    assert (model["name"], model["layers"], model["head_dim"]) == ("Small-1B", 16, 64)
    catalogue.write("Small-1B/config.json", json.dumps({**config, "model_type": "mamba"}))
    assert "config.json: model_type 'mamba' is not supported" in catalogue.faults(text)[0]
    for broken in ("{", "[]"):
        catalogue.write("Small-1B/config.json", broken)
        assert catalogue.faults(text)[0].startswith("config.json: ")


def test_the_shipped_catalogue_and_scenarios_load() -> None:
    """Every name in it, as hardware, model and workload of the example scenario."""
    from sim.scenario import default_folders, names

    chat = load("chat-8b-a100")
    assert (chat.name, chat.load, chat.run["requests"]) == ("chat-8b-a100", {"rate_per_s": 4}, 20000)
    for kind, section in (("hardware", "hardware"), ("models", "model"), ("workloads", "workload")):
        assert names(kind), kind
        for name in names(kind):
            path = default_folders()[kind] / f"{name}.yaml"
            assert read_file(path, Faults()).value["name"] == name
            assert getattr(chat.replace({section: name}), section)["name"] == name
    assert all(load(name) for name in names("scenarios"))
