"""Random cases for a recording: settings, requests and aborts, without what an engine makes of them.

A case depends on nothing but its seed, its number and the settings asked for, so that two engine
versions are given the same cases and their recordings can be laid side by side.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

MAX_MODEL_LEN = 4096


@dataclass(frozen=True, slots=True)
class Group:
    """What all cases of one recording have in common."""

    policy: str
    prefix_caching: bool
    async_scheduling: bool

    @property
    def name(self) -> str:
        """As in the file names: ``fcfs-prefix-async``; what is off is left out."""
        parts = [self.policy]
        parts += ["prefix"] if self.prefix_caching else []
        parts += ["async"] if self.async_scheduling else []
        return "-".join(parts)


def random_case(seed: int, number: int, group: Group, large: bool) -> dict[str, Any]:
    """Case *number* of the recording with *seed*, without its trace."""
    rng = random.Random(f"{seed}/{number}/{group.name}")
    crowded = not large and rng.random() < 0.5
    config = _large_config(rng) if large else _crowded_config(rng) if crowded else _small_config(rng)
    config |= {
        "policy": group.policy,
        "enable_prefix_caching": group.prefix_caching,
        "async_scheduling": group.async_scheduling,
    }
    capacity = min(config["usable_blocks"] * config["block_size"], MAX_MODEL_LEN)
    make = _large_requests if large else _crowded_requests if crowded else _small_requests
    requests = make(rng, capacity)
    last_arrival = max(request["arrival_step"] for request in requests)
    aborts = _aborts(rng, len(requests), last_arrival) if rng.random() < 0.3 else {}
    return {"case": number, "config": config, "requests": requests, "aborts": aborts}


def _small_config(rng: random.Random) -> dict[str, Any]:
    block_size = rng.choice([4, 4, 16, 16, 32])
    budget = rng.choice([16, 24, 32, 64, 128])
    threshold = rng.choice([0, 0, 0, 5, 8, 20, 40])
    return {
        "usable_blocks": rng.randint(4, 24 if block_size < 32 else 12),
        "block_size": block_size,
        "max_num_batched_tokens": budget,
        "max_num_seqs": rng.choice([1, 2, 3, 4, 8]),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "long_prefill_token_threshold": min(threshold, budget),
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.05, 0.1, 0.25]),
    }


def _crowded_config(rng: random.Random) -> dict[str, Any]:
    """Many requests in few blocks, a budget that decoding alone nearly uses up, and no gate to help."""
    budget = rng.choice([8, 9, 12, 16, 24])
    return {
        "usable_blocks": rng.randint(8, 22),
        "block_size": 4,
        "max_num_batched_tokens": budget,
        "max_num_seqs": rng.choice([4, 6, 8]),
        "scheduler_reserve_full_isl": rng.random() < 0.2,
        "long_prefill_token_threshold": rng.choice([0, 0, 3, 6]),
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.1]),
    }


def _large_config(rng: random.Random) -> dict[str, Any]:
    return {
        "usable_blocks": rng.randint(80, 240),
        "block_size": 16,
        "max_num_batched_tokens": rng.choice([256, 512, 2048]),
        "max_num_seqs": rng.choice([8, 32, 128]),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "long_prefill_token_threshold": rng.choice([0, 0, 128, 250]),
        "watermark": rng.choice([0.0, 0.0, 0.02]),
    }


def _small_requests(rng: random.Random, capacity: int) -> list[dict[str, Any]]:
    """Two to eight requests, a third of them as long as an earlier one and often the same prompt.

    It arrives with the earlier one, while that is still prefilling or decoding, or long after, when
    its blocks may be gone.
    """
    made: list[dict[str, Any]] = []
    together = rng.random() < 0.3
    for order in range(rng.randint(2, 8)):
        output = rng.randint(1, max(1, min(48, capacity // 2)))
        if made and rng.random() < 0.35:
            request = dict(rng.choice(made))
            request["arrival_step"] += rng.choice([0, 0, 1, 2, 4, 10, 40])
            output = min(output, max(1, capacity - request["prompt_tokens"]))
        else:
            prompt = rng.randint(1, max(1, capacity - output))
            arrival = 1 if together else rng.choice([1, 1, 1, 2, 3, 5, 9, 14, 30])
            shared = rng.choice([0, prompt // 2, prompt, prompt])
            request = _request(prompt, arrival, shared, rng.randint(0, 1))
        made.append(request | {"id": f"r{order}", "order": order, "max_tokens": output})
    return [request | {"priority": rng.randint(0, 2)} for request in made]


def _crowded_requests(rng: random.Random, capacity: int) -> list[dict[str, Any]]:
    """Six to ten requests at about the same time; in half of the cases the late ones matter more."""
    made = []
    for order in range(rng.randint(6, 10)):
        output = rng.randint(1, min(24, capacity // 2))
        prompt = rng.choice([rng.randint(1, 12), rng.randint(8, capacity - output), 16])
        prompt = min(prompt, capacity - output)
        shared = rng.choice([0, prompt // 2, prompt, prompt])
        request = _request(prompt, rng.randint(1, 12), shared, rng.randint(0, 1))
        made.append(request | {"id": f"r{order}", "order": order, "max_tokens": output})
    priorities = [rng.randint(0, 2) for _ in made]
    if rng.random() < 0.5:
        made.sort(key=lambda request: request["arrival_step"])
        priorities.sort(reverse=True)
    return [request | {"priority": n} for request, n in zip(made, priorities, strict=True)]


def _large_requests(rng: random.Random, capacity: int) -> list[dict[str, Any]]:
    count = rng.randint(30, 60)
    made = []
    for order in range(count):
        output = rng.randint(1, 80)
        prompt = rng.randint(1, min(700, capacity - output))
        shared = rng.choice([0, prompt // 2, prompt])
        request = _request(prompt, 1 + rng.randint(0, 4 * count), shared, rng.randint(0, 3))
        made.append(request | {"id": f"r{order}", "order": order, "max_tokens": output})
    return [request | {"priority": rng.randint(0, 2)} for request in made]


def _request(prompt: int, arrival: int, shared: int, group: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "arrival_step": arrival,
        "prefix_group": group,
        "prefix_tokens": shared,
    }


def _aborts(rng: random.Random, requests: int, last_arrival: int) -> dict[str, list[str]]:
    """Aborts at random steps: some come too early or too late, some twice, some several in one step."""
    aborts: dict[str, list[str]] = {}
    for _ in range(rng.randint(1, 2 + requests // 2)):
        step = str(rng.randint(1, last_arrival + 25))
        name = f"r{rng.randrange(requests)}"
        if name not in aborts.setdefault(step, []):
            aborts[step].append(name)
    return dict(sorted(aborts.items(), key=lambda entry: int(entry[0])))
