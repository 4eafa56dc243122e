"""What an iteration costs, compiled once per scenario.

A step is layers x (linear layers + attention of decodes + attention of prefill chunks + norms and
activation + collectives) + LM head of the sampled tokens + the engine's own work. Everything that
depends on a token or sequence count alone is an array over that count. Attention of decodes depends
on the context too, which grows by one token a sequence and iteration: its sum over a run of equal
iterations is an integral, tabulated, so that a leap costs two look-ups however long it is.
"""

from __future__ import annotations

from collections.abc import Sequence as Array
from dataclasses import dataclass, field
from math import ceil, sqrt

import numpy as np

from sim.clock import GRID_SHIFT, on_grid
from sim.serving.decode_attention import DecodeAttention
from sim.serving.prefill_attention import PrefillAttention

_NEVER = 1 << 40  # iterations


class Composition:
    """A batch of unchanging decodes: when its iterations end.

    Every end is computed from the start, so that it does not matter where leaps begin and end. One
    object serves a replica's batches one after another.
    """

    __slots__ = (
        "_base_s",
        "_context",
        "_model",
        "_n",
        "_offset",
        "_pace_s",
        "_per_root",
        "_pieces",
        "_scale",
        "_tables",
        "start_s",
    )

    def __init__(self, model: StepTime) -> None:
        self._model, self._tables = model, model.attention.pieces
        self.start_s = 0.0

    def begin(self, start_s: float, n: int, context_tokens: int) -> None:
        """*n* sequences decode on from *start_s*; their contexts sum to *context_tokens* at first."""
        model = self._model
        self.start_s = start_s
        self._n = n
        self._base_s, self._scale, self._per_root = model.by_decodes[n]
        self._pieces = self._tables[n] or model.attention.of(n)
        self._context = context = context_tokens - 0.5 * n  # between the midpoints of iterations
        node, value, half_rise, area = self._pieces[int(sqrt(context) * self._per_root)]
        d = context - node
        self._offset = area + d * (value + d * half_rise)
        self._pace_s = self._base_s + model.layers * value

    def elapsed_s(self, iterations: int) -> float:
        """Time from the start to the end of the *iterations*-th iteration, on the grid."""
        context = self._context + iterations * self._n  # from here on `DecodeAttention.upto`
        node, value, half_rise, area = self._pieces[int(sqrt(context) * self._per_root)]
        d = context - node
        area = area + d * (value + d * half_rise) - self._offset
        return (iterations * self._base_s + self._scale * area + GRID_SHIFT) - GRID_SHIFT

    def reaches(self, elapsed_s: float, last: int) -> tuple[int, float]:
        """The first iteration to end at or after *elapsed_s*, and when it ends; at most the *last*-th.

        Iterations only get longer, so the pace at the start leads to it or past it, and from far past
        it a Newton step leads back; none is shorter than its base, which mostly spares a look at the
        one before.
        """
        base_s = self._base_s
        guess = elapsed_s / self._pace_s
        count = last if guess > last else ceil(guess) or 1
        reached = self.elapsed_s(count)
        if reached - elapsed_s > 2.0 * base_s:
            model, n = self._model, self._n
            pace_s = base_s + model.layers * model.attention.at(n, self._context + count * n)
            count = max(1, count - int((reached - elapsed_s) / pace_s))
            reached = self.elapsed_s(count)
        while reached < elapsed_s and count < last:
            count += 1
            reached = self.elapsed_s(count)
        while count > 1 and reached - elapsed_s >= base_s:
            before = self.elapsed_s(count - 1)
            if before < elapsed_s:
                break
            count, reached = count - 1, before
        return count, reached


class OverlappedComposition(Composition):
    """A batch whose host works, or launches, while the GPU runs: the longer of the two counts.

    The GPU's iterations only get longer, so the host is the longer in the first *host_bound* of them.
    """

    __slots__ = ("_host_bound", "_host_s", "_later_s")

    def begin(self, start_s: float, n: int, context_tokens: int) -> None:
        """*n* sequences decode on from *start_s*; their contexts sum to *context_tokens* at first."""
        super().begin(start_s, n, context_tokens)
        self._host_s, most_context = self._model.host(n)
        self._host_bound, self._later_s = 0, 0.0
        if self._context < most_context:
            self._host_bound = count = ceil(min((most_context - self._context) / n, _NEVER))
            if count < _NEVER:
                self._later_s = count * self._host_s - super().elapsed_s(count)

    def elapsed_s(self, iterations: int) -> float:
        """Time from the start to the end of the *iterations*-th iteration, on the grid."""
        if iterations <= self._host_bound:
            return (iterations * self._host_s + GRID_SHIFT) - GRID_SHIFT
        return (super().elapsed_s(iterations) + self._later_s + GRID_SHIFT) - GRID_SHIFT

    def reaches(self, elapsed_s: float, last: int) -> tuple[int, float]:
        """As `Composition.reaches`, by bisection."""
        first = 1
        while first < last:
            middle = (first + last) // 2
            if self.elapsed_s(middle) < elapsed_s:
                first = middle + 1
            else:
                last = middle
        return last, self.elapsed_s(last)


@dataclass(frozen=True, slots=True)
class StepTime:
    """The cost of iterations, in seconds, for one model on one GPU group under one engine.

    tokens_s[m]: linear layers, norms, activation and collectives of a step with m tokens;
    sampled_s[s]: LM head and sampling of s tokens; host_sequence_s and host_step_s: the engine's own
    work, *overlapped* with the GPU's (the longer of the two counts) or not (their sum does); eager_s: its
    launches where no CUDA graph covers the step, while the GPU runs what was launched. Graphs cover up
    to *largest_graph* tokens, those of prompts too if *prefill_graphs*.
    *attention* of decodes and *prefill* attention run once in each of the *layers*.
    """

    tokens_s: Array[float]
    sampled_s: Array[float]
    host_step_s: float
    host_sequence_s: float
    layers: int
    attention: DecodeAttention
    prefill: PrefillAttention
    overlapped: bool = False
    eager_s: float = 0.0
    largest_graph: int = 0
    prefill_graphs: bool = True
    by_decodes: list[tuple[float, float, float]] = field(init=False)
    host_s: list[float] = field(init=False)
    host_context: list[float | None] = field(init=False)
    host_bound: bool = field(init=False)

    def __post_init__(self) -> None:
        """Of a batch of n decodes: seconds without attention, what a layer's sum over contexts is worth, and
        where in its table it is found."""
        n = np.arange(min(len(self.tokens_s), len(self.sampled_s)))
        base_s = np.asarray(self.tokens_s)[: len(n)] + np.asarray(self.sampled_s)[: len(n)]
        host_s = self.host_step_s + n * self.host_sequence_s
        if not self.overlapped:
            base_s = base_s + host_s
        host_s = host_s + self.eager_s * (n > self.largest_graph)
        scale = self.layers / np.maximum(n, 1)
        columns = base_s.tolist(), scale.tolist(), self.attention.per_root[: len(n)]
        object.__setattr__(self, "by_decodes", list(zip(*columns, strict=True)))
        object.__setattr__(self, "host_s", host_s.tolist())
        object.__setattr__(self, "host_context", [None] * len(n))
        least_s = base_s + self.layers * self.attention.least_s[: len(n)]
        object.__setattr__(self, "host_bound", bool((host_s > least_s)[1:].any()))

    def host(self, n: int) -> tuple[float, float]:
        """The host's time in a step of *n* decodes, in s, and up to which sum of contexts (between the
        midpoints of iterations) it is longer than the GPU's."""
        most_context = self.host_context[n]
        if most_context is None:
            attention_s = (self.host_s[n] - self.by_decodes[n][0]) / self.layers
            most_context = self.host_context[n] = self.attention.reaching(n, attention_s) - 0.5 * n
        return self.host_s[n], most_context

    def composition(self) -> Composition:
        """A clock for batches of unchanging decodes; see `Composition`."""
        return OverlappedComposition(self) if self.host_bound else Composition(self)

    def mixed_s(
        self,
        decodes: int,
        context_tokens: int,
        prefills: int,
        prefill_tokens: int,
        with_cached: int,
        squares: int,
        sampled: int,
    ) -> float:
        """One iteration with *decodes* and *prefills* in it, in s on the grid.

        The chunks together have *prefill_tokens* new tokens; *with_cached* sums new x cached tokens
        over them, *squares* new x new. *sampled* counts the tokens that come out of the step.
        """
        tokens = decodes + prefill_tokens
        seconds = (
            self.tokens_s[tokens] if tokens < len(self.tokens_s) else self._beyond_table_s(tokens)
        ) + self.sampled_s[sampled]
        host_s = self.host_step_s + (decodes + prefills) * self.host_sequence_s
        if not self.overlapped:
            seconds += host_s
        if decodes:
            seconds += self.layers * self.attention.at(decodes, context_tokens)
        if prefills:
            attention_s = self.prefill.seconds(prefill_tokens, with_cached, squares)
            if with_cached:  # what is cached is read once at least
                read_s = self.attention.at(prefills, prefills * (with_cached / prefill_tokens))
                attention_s = max(attention_s, read_s)
            seconds += self.layers * attention_s
        if tokens > self.largest_graph or (prefills and not self.prefill_graphs):
            host_s += self.eager_s
        if host_s > seconds:
            seconds = host_s
        return (seconds + GRID_SHIFT) - GRID_SHIFT

    def _beyond_table_s(self, tokens: int) -> float:
        """Token-wise work of a step larger than the token budget (a static group's prefill).

        Linear layers are compute-bound there, so the last half of the table goes on as a line.
        """
        table = self.tokens_s
        last, half = len(table) - 1, (len(table) - 1) // 2
        return table[last] + (tokens - last) * (table[last] - table[half]) / (last - half)

    def elapsed_s(self, n: np.ndarray, context_tokens: np.ndarray, iterations: np.ndarray) -> np.ndarray:
        """`Composition.elapsed_s` for arrays of compositions (equal shapes), in s."""
        base_s, scale, _ = np.asarray(self.by_decodes)[n].T
        context = context_tokens - 0.5 * n
        before = self.attention.upto(n, context)

        def gpu_s(count: np.ndarray) -> np.ndarray:
            return on_grid(count * base_s + scale * (self.attention.upto(n, context + count * n) - before))

        if not self.host_bound:
            return gpu_s(iterations)
        each, owner = np.unique(n, return_inverse=True)
        host_s, most_context = np.array([self.host(one) for one in each.tolist()]).reshape(-1, 2)[owner].T
        bound = np.ceil(np.clip((most_context - context) / n, 0.0, _NEVER))
        later_s = np.where(bound < _NEVER, bound * host_s - gpu_s(np.where(bound < _NEVER, bound, 0.0)), 0.0)
        within = iterations <= bound
        return np.where(within, on_grid(iterations * host_s), on_grid(gpu_s(iterations) + later_s))
