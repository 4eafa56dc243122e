"""Records what an installed vLLM's own scheduler does with random cases, step by step; see README.md.

No GPU and no weights: the engine's scheduler class is driven directly, and every sampled token is
made up. It runs in the environment where vLLM is installed, which needs nothing of Kneesim.
"""

# ruff: noqa: E402 (the engine reads its environment when it is imported)

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

logging.disable(logging.WARNING)
os.environ |= {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}

import torch
import vllm
from random_cases import MAX_MODEL_LEN, Group, random_case
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

SAMPLED_TOKEN = 0
STEP_LIMIT = 5000


# -- the engine ------------------------------------------------------------------------------------


def model_config(path: Path) -> ModelConfig:
    """The model whose ``config.json`` is at *path*; its weights are never looked for."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, Path(folder) / "config.json")
        return ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=MAX_MODEL_LEN
        )


def new_scheduler(config: dict[str, Any], model: ModelConfig) -> Any:
    """The engine's scheduler class for *config*, over a pool of blocks without memory behind them."""
    settings = {
        "policy": config["policy"],
        "max_num_seqs": config["max_num_seqs"],
        "max_num_batched_tokens": config["max_num_batched_tokens"],
        "long_prefill_token_threshold": config["long_prefill_token_threshold"],
        "scheduler_reserve_full_isl": config["scheduler_reserve_full_isl"],
        "enable_chunked_prefill": True,
        "async_scheduling": config["async_scheduling"],
    }
    if config["watermark"]:
        settings["watermark"] = config["watermark"]
    cache = CacheConfig(
        block_size=config["block_size"], enable_prefix_caching=config["enable_prefix_caching"]
    )
    whole = VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig(max_model_len=MAX_MODEL_LEN, is_encoder_decoder=False, **settings),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    # The whole configuration bends some settings to the platform that it runs on; the case decides.
    for name, value in settings.items():
        setattr(whole.scheduler_config, name, value)
    whole.cache_config.block_size = config["block_size"]
    whole.cache_config.enable_prefix_caching = config["enable_prefix_caching"]
    whole.cache_config.num_gpu_blocks = config["usable_blocks"] + 1
    return whole.scheduler_config.get_scheduler_cls()(
        vllm_config=whole,
        kv_cache_config=_blocks(config),
        structured_output_manager=StructuredOutputManager(whole),
        block_size=config["block_size"],
    )


def _blocks(config: dict[str, Any]) -> KVCacheConfig:
    spec = FullAttentionSpec(
        block_size=config["block_size"], num_kv_heads=1, head_size=32, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=config["usable_blocks"] + 1,  # block 0 is the engine's placeholder
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )


def new_request(request: dict[str, Any], block_size: int) -> Request:
    """The engine's request: equal token ids where the format says that contents are equal."""
    shared = min(request["prefix_tokens"], request["prompt_tokens"])
    group = (1 + request["prefix_group"]) * 10**6
    own = (1 + request["order"]) * 10**9
    prompt = [group + j for j in range(shared)] + [own + j for j in range(shared, request["prompt_tokens"])]
    return Request(
        request_id=request["id"],
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True),
        pooling_params=None,
        arrival_time=request["arrival_step"] + request["order"] / 10**4,
        priority=request["priority"],
        block_hasher=get_request_block_hasher(block_size, sha256),
    )


# -- one case --------------------------------------------------------------------------------------


class Driver:
    """One scheduler on a step clock, with no or one step's outputs outstanding at the next schedule."""

    def __init__(self, case: dict[str, Any], model: ModelConfig) -> None:
        self.case = case
        self.scheduler = new_scheduler(case["config"], model)
        self.outstanding: list[tuple[Any, list[str]]] = []
        self.in_flight = 1 if case["config"]["async_scheduling"] else 0
        self.started: set[str] = set()
        self.aborted: Counter[str] = Counter()

    def rows(self) -> Iterator[list[Any]]:
        """One row a step until no request is left (and none of its outputs)."""
        waiting = sorted(self.case["requests"], key=lambda r: (r["arrival_step"], r["order"]))
        step = 0
        while waiting or self.scheduler.has_unfinished_requests():
            step += 1
            while waiting and waiting[0]["arrival_step"] == step:
                request = new_request(waiting.pop(0), self.case["config"]["block_size"])
                self.scheduler.add_request(request)
            yield self._row(step)

    def _row(self, step: int) -> list[Any]:
        live = self.scheduler.requests
        preemptions = {name: request.num_preemptions for name, request in live.items()}
        output = self.scheduler.schedule()
        tokens = dict(output.num_scheduled_tokens)
        preempted = sorted(name for name, n in preemptions.items() if live[name].num_preemptions > n)
        cached = self._cached(tokens)
        # A prefill chunk that leaves some of its prompt for later samples nothing.
        self.outstanding.append((output, [name for name in tokens if not live[name].is_prefill_chunk]))
        for name in self.case["aborts"].get(str(step), ()):
            self._abort(name)
        before = set(live)
        if len(self.outstanding) > self.in_flight:
            self._apply(*self.outstanding.pop(0))
        finished = sorted(before - set(live))
        free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return [step, tokens, preempted, finished, free, cached]

    def _cached(self, tokens: dict[str, int]) -> dict[str, int]:
        """Tokens that first-time requests found in the prefix cache."""
        first = [name for name in tokens if name not in self.started]
        self.started.update(first)
        found = {name: self.scheduler.requests[name].num_computed_tokens - tokens[name] for name in first}
        return {name: n for name, n in found.items() if n}

    def _abort(self, name: str) -> None:
        request = self.scheduler.requests.get(name)
        if request is None:
            self.aborted["absent"] += 1
            return
        state = request.status.name.lower()
        if state == "running":
            state = "prefilling" if request.is_prefill_chunk else "decoding"
        self.aborted[state] += 1
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _apply(self, output: Any, sampling: list[str]) -> None:
        names = list(output.num_scheduled_tokens)
        sampled = [[SAMPLED_TOKEN] if name in sampling else [] for name in names]
        index = {name: place for place, name in enumerate(names)}
        self.scheduler.update_from_output(
            output, ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=sampled)
        )


# -- a recording -----------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Summary:
    """What a recording holds, to see at a glance whether it exercises what it should."""

    cases: int = 0
    steps: int = 0
    preemptions: int = 0
    first_time_hits: int = 0
    left_out: int = 0
    aborts: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, driver: Driver, trace: list[list[Any]]) -> None:
        """Counts one case."""
        self.cases += 1
        self.steps += len(trace)
        self.preemptions += sum(len(row[2]) for row in trace)
        self.first_time_hits += sum(len(row[5]) for row in trace)
        self.aborts += driver.aborted

    def text(self) -> str:
        """One line."""
        aborts = ", ".join(f"{n} {state}" for state, n in sorted(self.aborts.items()))
        return (
            f"{self.cases} cases, {self.steps} steps, {self.preemptions} preemptions,"
            f" {self.first_time_hits} first-time prefix hits, aborts: {aborts or 'none'};"
            f" {self.left_out} cases left out for taking more than {STEP_LIMIT} steps"
        )


def record(model: ModelConfig, seed: int, small: int, large: int, group: Group, out: Path) -> Summary:
    """Writes a recording of *small* and *large* cases to *out*, gzipped: the same bytes every time."""
    init_none_hash(sha256)
    summary = Summary()
    with out.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        for number in range(small + large):
            case = random_case(seed, number, group, large=number >= small)
            case["config"] |= {"engine": "vllm", "engine_version": vllm.__version__}
            driver = Driver(case, model)
            case["trace"] = []
            for row in driver.rows():
                case["trace"].append(row)
                if len(case["trace"]) > STEP_LIMIT:
                    summary.left_out += 1
                    break
            else:
                summary.add(driver, case["trace"])
                file.write((json.dumps(case, separators=(",", ":")) + "\n").encode())
    return summary


def arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """What one recording and a set of them have in common."""
    parser.add_argument("--model-config", type=Path, default=Path(__file__).parent / "llama.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", type=int, default=300, help="cases of a few requests")
    parser.add_argument("--large", type=int, default=2, help="cases of dozens of requests")
    return parser


def main() -> None:
    """Writes one recording."""
    parser = arguments(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--policy", choices=("fcfs", "priority"), default="fcfs")
    parser.add_argument("--prefix-caching", choices=("on", "off"), default="off")
    parser.add_argument("--async-scheduling", choices=("on", "off"), default="off")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl.gz")
    given = parser.parse_args()
    group = Group(given.policy, given.prefix_caching == "on", given.async_scheduling == "on")
    summary = record(model_config(given.model_config), given.seed, given.small, given.large, group, given.out)
    print(f"{given.out}: {summary.text()}")


if __name__ == "__main__":
    main()
