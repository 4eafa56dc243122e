"""What a row's words about its engine say of its settings: flags as typed, start-up logs, plain words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_GIB = 2**30

_SETTINGS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "max_num_seqs": (
        r"max[-_]num[-_]seqs[ =]+(\d+)|max batch (\d+)|max-running-req(?:uests)? (\d+)|gpu_batch_size (\d+)",
        int,
    ),
    "max_num_batched_tokens": (r"max[-_]num[-_](?:batched[-_])?tokens[ =]+(\d+)", int),
    "max_model_len": (r"max[-_](?:model[-_]len|seq[-_]len)[ =]+(\d+)", int),
    "gpu_memory_utilization": (r"gpu[-_](?:memory[-_]utilization|util)[ =]+(0?\.\d+)", float),
    "kv_cache_memory_bytes": (r"available KV cache memory ([0-9.]+) GiB", lambda gib: int(float(gib) * _GIB)),
    "kv_cache_tokens": (r"GPU KV cache (\d+) tokens|KV tokens (\d+)", int),
    "kv_free_fraction": (
        r"kv(?: free)? frac (0?\.\d+)|free_gpu_mem(?:ory)?_fraction (?:usually )?(0?\.\d+)"
        r"|mem-frac(?:tion-static)? (0?\.\d+)",
        float,
    ),
    "scheduler_steps": (r"num-scheduler-steps (\d+)", int),
    "replicas": (r"(\d+) replicas of TP|TP\d+ x(\d+) replicas", int),
}
_SWITCHES: Mapping[str, tuple[tuple[str, bool], ...]] = {
    "async_scheduling": ((r"--no-async-scheduling", False), (r"--async-scheduling", True)),
    "cuda_graphs": ((r"--disable-cuda-graph\b|--enforce-eager", False),),
    "enable_chunked_prefill": ((r"--enable[-_]chunked[-_]prefill|chunked context", True),),
    "enable_prefix_caching": (
        (r"--disable-radix-cache|--no-enable-prefix-caching|no prefix caching|prefix caching (?:off|False)",
         False),
        (r"--enable-prefix-caching|prefix caching (?:on|True)", True),
    ),
}  # fmt: skip


def read_flags(text: str) -> dict[str, Any]:
    """The settings that *text* names, by engine key; of two numbers (server and offline) the first.

    Beside engine keys: `kv_cache_tokens`, `kv_free_fraction` (as the engine counts it), `scheduler_steps`
    and `replicas`.
    """
    found: dict[str, Any] = {}
    for key, (pattern, read) in _SETTINGS.items():
        if match := re.search(pattern, text, re.IGNORECASE):
            found[key] = read(next(group for group in match.groups() if group))
    for key, choices in _SWITCHES.items():
        for pattern, value in choices:
            if re.search(pattern, text, re.IGNORECASE):
                found[key] = value
                break
    return found


def noted_offline_batch(text: str) -> int | None:
    """The offline batch limit where one is given beside the server's (`1024 server / 784 offline`)."""
    match = re.search(r"/ (\d+) offline", text)
    return int(match[1]) if match else None
