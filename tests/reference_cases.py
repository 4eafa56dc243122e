"""Random cases for the scheduler and for the reference engine, and how each is driven through one.

What requests share is a tree of streams: each goes on from a token of another one, or begins at 0. A
request follows one from its root for a while, then has tokens of its own, or never leaves it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from reference_engine import Engine, Request, Settings

from sim.serving.prefix_cache import Content
from sim.serving.scheduler import Scheduler
from sim.serving.sequence import Sequence

OWN = -1


@dataclass(frozen=True)
class Sent:
    """A request, what its tokens are as `Content` has it (None: its own), and when it arrives."""

    name: str
    arrival_step: int
    prompt: int
    max_tokens: int
    priority: int = 0
    shared: tuple[tuple[int, int], ...] | None = None
    tail: int = OWN

    def token(self, number: int) -> Hashable:
        for stream, end in self.shared or ():
            if number < end:
                return stream, number
        return (self.name if self.tail == OWN else self.tail), number


@dataclass(frozen=True)
class Case:
    """Requests in order of arrival, and names by the step in which they are aborted."""

    settings: Settings
    requests: list[Sent]
    aborts: dict[int, list[str]] = field(default_factory=dict)

    def arriving(self, step: int) -> list[int]:
        return [i for i, sent in enumerate(self.requests) if sent.arrival_step == step]

    def aborted(self, step: int) -> list[int]:
        """Who is aborted in *step* and has arrived."""
        names = self.aborts.get(step, ())
        index = {sent.name: i for i, sent in enumerate(self.requests)}
        return [index[name] for name in names if self.requests[index[name]].arrival_step <= step]

    @property
    def last_event(self) -> int:
        return max([*(sent.arrival_step for sent in self.requests), *self.aborts])


# -- driving ---------------------------------------------------------------------------------------


def reference(case: Case, most_steps: int) -> tuple[list[dict[str, Any]], Engine]:
    """Rows of the reference engine until nothing is left to do, two more, and at most *most_steps*."""
    engine = Engine(case.settings)
    requests = [
        Request(sent.name, i, sent.prompt, sent.max_tokens, sent.token, sent.priority)
        for i, sent in enumerate(case.requests)
    ]
    rows: list[dict[str, Any]] = []
    idle = 0
    while len(rows) < most_steps and idle < 2:
        step = len(rows) + 1
        arrivals = [requests[i] for i in case.arriving(step)]
        rows.append(engine.step(arrivals, [requests[i] for i in case.aborted(step)]))
        idle = 0 if engine.running or engine.waiting or step < case.last_event else idle + 1
    return rows, engine


def scheduler_of(settings: Settings) -> Scheduler:
    return Scheduler(
        settings.blocks,
        settings.block_size,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        settings.threshold,
        settings.gate,
        by_priority=settings.by_priority,
        prefix_caching=settings.caching,
        asynchronous=settings.asynchronous,
        watermark_blocks=settings.watermark,
        self_preemption_ends_step=settings.self_preemption_ends_step,
    )


def sequences_of(case: Case) -> list[Sequence]:
    sequences = []
    for i, sent in enumerate(case.requests):
        sequence = Sequence(i, sent.prompt, sent.max_tokens)
        sequence.priority = sent.priority
        if case.settings.caching and sent.shared is not None:
            sequence.content = Content(case.settings.block_size, sent.shared, sent.tail)
        sequences.append(sequence)
    return sequences


def ours(case: Case, scheduler: Scheduler) -> Iterator[dict[str, Any]]:
    """Rows of *scheduler*, step by step, in the reference's form."""
    sequences = sequences_of(case)
    names = [sent.name for sent in case.requests]
    seen: set[int] = set()
    last: list[str] = []
    step = 0
    while True:
        step += 1
        for i in case.arriving(step):
            scheduler.add(sequences[i])
        scheduler.schedule()
        tokens = {names[s.index]: n for s, n in scheduler.scheduled_tokens().items()}
        preempted = sorted(names[s.index] for s in scheduler.preempted)
        first = [(s, cached) for s, _, cached in scheduler.chunks if s.index not in seen]
        seen.update(s.index for s, _, _ in scheduler.chunks)
        gone = case.aborted(step)
        for i in gone:
            scheduler.abort(sequences[i])
        finished = sorted(names[s.index] for s in scheduler.finish())
        if scheduler.asynchronous:  # a step's outputs are known after the next schedule, aborts before
            finished, last = [name for name in last if name not in [names[i] for i in gone]], finished
        yield {
            "step": step,
            "tokens": dict(sorted(tokens.items())),
            "preempted": preempted,
            "finished": finished,
            "free_blocks": scheduler.free_blocks,
            "cached_tokens": {names[s.index]: cached for s, cached in first if cached},
        }


# -- at random -------------------------------------------------------------------------------------


def random_case(rng: random.Random, size: int = 1, **fixed: Any) -> Case:
    """Up to a dozen requests, *size* times, on a small pool; *fixed* are settings that are not drawn."""
    block_size = rng.choice([1, 2, 3, 4, 4, 8, 16])
    blocks = rng.randint(3, 28) * size
    budget = rng.choice([1, 3, 7, 16, 40, 100]) * size
    drawn: dict[str, Any] = {
        "max_num_seqs": rng.choice([1, 2, 3, 4, 8]) * size,
        "max_num_batched_tokens": budget,
        "threshold": rng.choice([0, 0, 1, 2, 5, 9, 20]),
        "gate": rng.random() < 0.5,
        "watermark": rng.choice([0, 0, 0, 1, 2]),
        "self_preemption_ends_step": rng.random() < 0.6,
    }
    settings = Settings(blocks, block_size, **(drawn | fixed))
    longest = max(2, min(blocks * block_size, 120 * size))
    share = random_tree(rng, longest) if rng.random() < 0.9 else None
    late = rng.choice([1, 6, 25]) * size
    requests = [
        _random_request(rng, f"r{i}", longest, at, share)
        for i, at in enumerate(sorted(rng.randint(1, late) for _ in range(rng.randint(1, 12) * size)))
    ]
    if rng.random() < 0.3:  # the later, the more urgent: those who run are preempted for those behind them
        requests = [replace(sent, priority=-i) for i, sent in enumerate(requests)]
    aborts: dict[int, list[str]] = {}
    for _ in range(rng.choice([0, 0, 1, 4]) * size):
        names = aborts.setdefault(rng.randint(1, 30 * size), [])
        name = rng.choice(requests).name
        names.extend([name] if name not in names else [])
    return Case(settings, requests, aborts)


def _random_request(
    rng: random.Random, name: str, longest: int, at: int, share: Callable[..., Any] | None
) -> Sent:
    max_tokens = rng.choice([1, 2, rng.randint(1, 8), rng.randint(1, max(1, longest // 2))])
    prompt = rng.randint(1, max(1, longest - max_tokens + (rng.random() < 0.03)))
    if share is None or rng.random() < 0.15:
        return Sent(name, at, prompt, max_tokens, rng.randint(0, 2))
    prompt, shared, tail = share(rng, prompt)
    return Sent(name, at, prompt, max_tokens, rng.randint(0, 2), shared, tail)


def random_tree(rng: random.Random, longest: int) -> Callable[..., Any]:
    """Draws what a request is of: (prompt, shared, tail), from one tree of up to six streams."""
    parents: list[tuple[int, int]] = []  # of each stream: its parent and where it goes on from that
    for stream in range(rng.randint(1, 6)):
        parent = rng.randrange(-1, stream) if stream else -1
        start = 0 if parent < 0 else rng.randint(parents[parent][1], longest)
        parents.append((parent, start))
    usual = [rng.randint(1, longest) for _ in range(2)]  # lengths that several have
    same_answer: dict[tuple[int, int], int] = {}

    def draw(rng: random.Random, prompt: int) -> tuple[int, tuple[tuple[int, int], ...], int]:
        if rng.random() < 0.5:
            prompt = min(prompt, rng.choice(usual))
        line = [rng.randrange(len(parents))]
        while parents[line[0]][0] >= 0:
            line.insert(0, parents[line[0]][0])
        line = [stream for stream in line if parents[stream][1] < prompt]
        ends = [parents[stream][1] for stream in line[1:]]
        shared = tuple(zip(line, [*ends, prompt], strict=True))
        kind = rng.random()
        if kind < 0.3:  # leaves it somewhere, perhaps with its answer only
            end = rng.choice([prompt, rng.randint(parents[line[-1]][1], prompt)])
            return prompt, (*shared[:-1], (line[-1], end)), OWN
        if kind < 0.6:  # what is answered belongs to the stream: a later turn goes on from it
            return prompt, rng.choice([shared, shared[:-1]]), line[-1]
        # equal prompts are answered alike
        tail = same_answer.setdefault((line[-1], prompt), len(parents) + len(same_answer))
        return prompt, shared, tail

    return draw
