"""vLLM V1's scheduler written down plainly: it walks its lists and takes its blocks one by one.

The names of a request's numbers are the engine's: tokens that are known, tokens computed (or scheduled to
be), placeholders for tokens that are being sampled, tokens in flight, tokens in flight that a preemption
made stale. It is slow and simple, and what `sim.serving.scheduler`, which counts, is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from reference_pool import Pool

WAITING, RUNNING, GONE = "waiting", "running", "gone"


@dataclass(eq=False)
class Request:
    """One request; *token* says what its token number i is."""

    name: str
    order: int  # of arrival
    prompt: int
    max_tokens: int
    token: Callable[[int], Hashable]
    priority: int = 0

    status: str = WAITING
    known: int = 0
    computed: int = 0
    placeholders: int = 0
    in_flight: int = 0
    stale: int = 0
    blocks: list[int] = field(default_factory=list)
    filled: int = 0  # blocks whose content can be found
    names: list[int] = field(default_factory=list)
    tokens: list[Hashable] = field(default_factory=list)
    seen: bool = False  # scheduled before

    def __post_init__(self) -> None:
        self.known = self.prompt
        self.tokens = [self.token(i) for i in range(self.prompt)]

    @property
    def urgency(self) -> tuple[int, int]:
        return self.priority, self.order


@dataclass(frozen=True)
class Settings:
    """As the engine's; *blocks* are usable ones, *watermark* is a number of them."""

    blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    threshold: int = 0
    gate: bool = True
    by_priority: bool = False
    caching: bool = False
    asynchronous: bool = False
    watermark: int = 0
    self_preemption_ends_step: bool = True


class Engine:
    """Schedules on a step clock; `step` returns what a recording has of one."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = Pool(settings.blocks, settings.block_size, settings.caching)
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.number = 0
        self.hit_tokens = 0  # of all admissions
        self.events: dict[str, int] = {}
        self._batch: list[tuple[Request, int, bool]] = []  # whose outputs are not applied
        self._plan: dict[Request, int] = {}
        self._preempted: list[Request] = []
        self._cached: dict[str, int] = {}

    def step(self, arrivals: list[Request], aborts: list[Request]) -> dict[str, Any]:
        """One step: arrivals, schedule, aborts, outputs of this step or (asynchronous) the one before."""
        self.number += 1
        for request in arrivals:
            self.waiting.append(request)
        self._schedule()
        row = {
            "step": self.number,
            "tokens": dict(sorted((r.name, n) for r, n in self._plan.items())),
            "preempted": sorted(r.name for r in self._preempted),
        }
        batch = self._after_schedule()
        for request in aborts:
            self._abort(request)
        if self.settings.asynchronous:
            batch, self._batch = self._batch, batch
        finished = self._update(batch)
        return {
            **row,
            "finished": sorted(finished),
            "free_blocks": len(self.pool.free),
            "cached_tokens": self._cached,
        }

    # -- schedule ----------------------------------------------------------------------------------

    def _schedule(self) -> None:
        settings = self.settings
        self._plan, self._preempted, self._cached = {}, [], {}
        eligible = len(self.running) + len(self.waiting)
        threshold = settings.threshold if eligible > 1 else 0
        budget = self._schedule_running(settings.max_num_batched_tokens, threshold)
        if not self._preempted:
            self._schedule_waiting(budget, threshold)

    def _schedule_running(self, budget: int, threshold: int) -> int:
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            new = request.known + request.placeholders - request.computed
            new = min(new, threshold or new, budget)
            end = request.prompt + request.max_tokens
            ends = request.placeholders and request.computed + 2 - request.placeholders >= end
            if ends or not new:
                self._count("skipped, last token in flight", bool(ends))
                at += 1
                continue
            while not (fits := self._allocate(request, new)):
                victim = self._victim()
                place = self.running.index(victim)
                del self.running[place]
                at -= place < at
                self._count("rolled back", victim in self._plan)
                self._count("preempted itself", victim is request)
                self._count("preempted with its last token in flight", self._ends(victim))
                budget += self._plan.pop(victim, 0)
                self._preempt(victim)
                if victim is request:
                    break
            if fits:
                self._plan[request] = new
                budget -= new
                at += 1
            elif self.settings.self_preemption_ends_step or not self.settings.by_priority:
                break
        return budget

    def _ends(self, request: Request) -> bool:
        return bool(request.placeholders) and request.known + 1 >= request.prompt + request.max_tokens

    def _victim(self) -> Request:
        if self.settings.by_priority:
            return max(self.running, key=lambda request: request.urgency)
        return self.running[-1]

    def _preempt(self, victim: Request) -> None:
        self._free(victim)
        victim.status = WAITING
        victim.computed = victim.placeholders = 0
        victim.stale = victim.in_flight
        self.waiting.insert(0, victim)
        self._preempted.append(victim)
        self._count("preempted")

    def _allocate(self, request: Request, new: int) -> bool:
        """Blocks for *new* tokens more of a running request."""
        need = -(-(request.computed + new) // self.settings.block_size) - len(request.blocks)
        if need > len(self.pool.free):
            return False
        request.blocks += self.pool.take(need)
        self._fill(request, min(request.computed + new, request.known))
        return True

    def _schedule_waiting(self, budget: int, threshold: int) -> None:
        settings, aside = self.settings, []
        while budget > 0 and self.waiting and len(self.running) < settings.max_num_seqs:
            request = self._head()
            if request.stale:
                self.waiting.remove(request)
                aside.append(request)
                continue
            hit = self.pool.find(self._names(request), request.known)
            cached = len(hit) * settings.block_size
            new = request.known - cached
            new = min(new, threshold or new, budget)
            spare = len(self.pool.free) - self.pool.idle(hit)
            if self.running:
                spare -= settings.watermark
            need = -(-(cached + new) // settings.block_size) - len(hit)
            whole = -(-request.known // settings.block_size) - len(hit)
            if (settings.gate and whole > spare) or need > spare:
                self._count("head does not fit")
                break
            self.waiting.remove(request)
            self._admit(request, hit, new, need)
            budget -= new
        self.waiting[:0] = aside

    def _head(self) -> Request:
        if self.settings.by_priority:
            return min(self.waiting, key=lambda request: request.urgency)
        return self.waiting[0]

    def _admit(self, request: Request, hit: list[int], new: int, need: int) -> None:
        self._count("hit of blocks in use", len(hit) > self.pool.idle(hit))
        self._count("hit of free blocks", self.pool.idle(hit) > 0)
        self.pool.touch(hit)
        request.blocks = hit + self.pool.take(need)
        request.filled = len(hit)
        request.computed = len(hit) * self.settings.block_size
        request.status = RUNNING
        self.running.append(request)
        self._plan[request] = new
        self._fill(request, min(request.computed + new, request.known))
        self.hit_tokens += request.computed
        if not request.seen and request.computed:
            self._cached[request.name] = request.computed
        self._count("resumed with a hit", request.seen and bool(hit))
        request.seen = True

    def _after_schedule(self) -> list[tuple[Request, int, bool]]:
        batch = []
        for request, new in self._plan.items():
            request.computed += new
            request.in_flight += new
            samples = request.computed >= request.known + request.placeholders
            if samples and self.settings.asynchronous:
                request.placeholders += 1
            batch.append((request, new, samples))
        return batch

    # -- outputs and aborts ------------------------------------------------------------------------

    def _update(self, batch: list[tuple[Request, int, bool]]) -> list[str]:
        finished = []
        for request, new, samples in batch:
            if request.status == GONE:
                continue
            request.in_flight -= new
            stale = request.stale > 0
            if stale:
                request.stale -= new
            if not samples:
                continue
            was_running = request.status == RUNNING
            request.known += 1
            request.tokens.append(request.token(request.known - 1))
            if self.settings.asynchronous:
                request.placeholders -= not stale
                if was_running:
                    self._fill(request, request.computed - request.placeholders)
            if request.known >= request.prompt + request.max_tokens:
                self._count("finished while preempted", not was_running)
                finished.append(request.name)
                self._leave(request)
        return finished

    def _abort(self, request: Request) -> None:
        if request.status == GONE or not (request in self.running or request in self.waiting):
            return
        self._count(f"aborted {request.status}")
        self._leave(request)

    def _leave(self, request: Request) -> None:
        (self.running if request.status == RUNNING else self.waiting).remove(request)
        self._free(request)
        request.status = GONE

    # -- blocks ------------------------------------------------------------------------------------

    def _names(self, request: Request) -> list[int]:
        return self.pool.names(request.tokens, request.names) if self.settings.caching else []

    def _fill(self, request: Request, tokens: int) -> None:
        """The full blocks of the first *tokens* can be found."""
        full = tokens // self.settings.block_size
        if self.settings.caching and full > request.filled:
            self.pool.fill(request.blocks, self._names(request), request.filled, full)
            request.filled = full

    def _free(self, request: Request) -> None:
        self.pool.give_back(request.blocks)
        request.blocks, request.filled = [], 0

    def _count(self, event: str, happened: bool = True) -> None:
        self.events[event] = self.events.get(event, 0) + happened
