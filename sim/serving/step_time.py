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

_NODES = 1024
_NEVER = 1 << 40  # iterations


class WorkIntegral:
    """The integral of a smooth roofline over its work, by table.

    Attention of decodes takes ``f(y) = (o**p + y**p)**(1/p)`` seconds a layer for *y* seconds of
    memory traffic (`sim.hardware.roofline`). f is tabulated at nodes equally spaced in the square
    root of y, where it bends, and integrated exactly between them as the straight lines that join
    them (relative error below 1e-4, see the tests).
    """

    def __init__(
        self, overhead_s: float, exponent: float, largest_work_s: float, fineness: float = 1.0
    ) -> None:
        nodes = ceil(_NODES * fineness)
        root = np.linspace(0.0, sqrt(largest_work_s * 1.001), nodes + 2)  # rounding must not leave the table
        work = root * root
        value = (overhead_s**exponent + work**exponent) ** (1.0 / exponent)
        width = np.diff(work)
        rise = np.diff(value) / width
        area = np.concatenate([[0.0], np.cumsum(width * (value[1:] + value[:-1]) / 2)])
        self._overhead_s, self._exponent, self._largest_s = overhead_s, exponent, largest_work_s
        self.per_root = (nodes + 1) / float(root[-1])
        self._node = work[:-1]
        self._value = value[:-1]
        self._half_rise = rise / 2
        self._area = area[:-1]
        self.pieces = list(
            zip(work[:-1].tolist(), value[:-1].tolist(), (rise / 2).tolist(), area[:-1].tolist(), strict=True)
        )

    def at(self, work_s: float) -> float:
        """f(*work_s*), in s."""
        node, value, half_rise, _ = self.pieces[int(sqrt(work_s) * self.per_root)]
        return value + 2.0 * (work_s - node) * half_rise

    def work_of(self, seconds: np.ndarray) -> np.ndarray:
        """The work at which f takes *seconds* (any shape), in s; -inf where it never takes so little, and
        infinite beyond the table."""
        p, least_s = self._exponent, self._overhead_s
        work_s = (np.maximum(seconds, least_s) ** p - least_s**p) ** (1.0 / p)
        return np.where(seconds <= least_s, -np.inf, np.where(work_s >= self._largest_s, np.inf, work_s))

    def upto(self, work_s: np.ndarray) -> np.ndarray:
        """The integral of f from 0 to *work_s* (any shape), in s^2; `Composition` has it for scalars."""
        i = (np.sqrt(work_s) * self.per_root).astype(np.int64)
        d = work_s - self._node[i]
        return self._area[i] + d * (self._value[i] + d * self._half_rise[i])


class Composition:
    """A batch of unchanging decodes: when its iterations end.

    Every end is computed from the start, so that it does not matter where leaps begin and end. One
    object serves a replica's batches one after another.
    """

    __slots__ = (
        "_base_s",
        "_model",
        "_offset",
        "_pace_s",
        "_per_root",
        "_pieces",
        "_scale",
        "_step",
        "_work",
        "start_s",
    )

    def __init__(self, model: StepTime) -> None:
        self._model = model
        self._pieces, self._per_root = model.attention.pieces, model.attention.per_root
        self.start_s = 0.0

    def begin(self, start_s: float, n: int, context_tokens: int) -> None:
        """*n* sequences decode on from *start_s*; their contexts sum to *context_tokens* at first."""
        model = self._model
        self.start_s = start_s
        self._base_s, self._step, self._scale, lead = model.by_decodes[n]
        self._work = work = context_tokens * model.work_per_token_s + lead
        node, value, half_rise, area = self._pieces[int(sqrt(work) * self._per_root)]
        d = work - node
        self._offset = area + d * (value + d * half_rise)
        self._pace_s = self._base_s + model.layers * value

    def elapsed_s(self, iterations: int) -> float:
        """Time from the start to the end of the *iterations*-th iteration, on the grid."""
        work = self._work + iterations * self._step  # from here on `WorkIntegral.upto`
        node, value, half_rise, area = self._pieces[int(sqrt(work) * self._per_root)]
        d = work - node
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
            attention_s = self._model.attention.at(self._work + count * self._step)
            pace_s = base_s + self._scale * self._step * attention_s
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
        self._host_s, most_work = self._model.host_by_decodes[n]
        self._host_bound, self._later_s = 0, 0.0
        if self._work < most_work:
            self._host_bound = count = ceil(min((most_work - self._work) / self._step, _NEVER))
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
    work_per_token_s and work_per_sequence_s turn context into the memory traffic of attention of
    decodes, *attention* is its smooth roofline, *layers* how often it runs. A prefill chunk of c tokens
    after k cached ones is ``c * (pair_s * (k + causal_weight * c) + token_s)`` seconds of attention work
    in each layer, smoothed with prefill_overhead_s and prefill_exponent.
    """

    tokens_s: Array[float]
    sampled_s: Array[float]
    host_step_s: float
    host_sequence_s: float
    layers: int
    work_per_token_s: float
    work_per_sequence_s: float
    attention: WorkIntegral
    prefill_pair_s: float
    prefill_causal_weight: float
    prefill_token_s: float
    prefill_overhead_s: float
    prefill_exponent: float
    overlapped: bool = False
    eager_s: float = 0.0
    largest_graph: int = 0
    prefill_graphs: bool = True
    by_decodes: list[tuple[float, float, float, float]] = field(init=False)
    prefill_smoothing: tuple[float, float, float] = field(init=False)
    host_by_decodes: list[tuple[float, float]] = field(init=False)
    host_bound: bool = field(init=False)

    def __post_init__(self) -> None:
        """Of a batch of n decodes: seconds without attention, work added an iteration, scale, lead.

        The sum over iterations is the integral between their midpoints, which the lead provides for.
        Of prefill attention's smoothing: the exponent, the overhead to its power, its inverse.
        """
        n = np.arange(min(len(self.tokens_s), len(self.sampled_s)))
        base_s = np.asarray(self.tokens_s)[: len(n)] + np.asarray(self.sampled_s)[: len(n)]
        host_s = self.host_step_s + n * self.host_sequence_s
        if not self.overlapped:
            base_s = base_s + host_s
        host_s = host_s + self.eager_s * (n > self.largest_graph)
        step_s = np.maximum(n, 1) * self.work_per_token_s
        lead_s = n * self.work_per_sequence_s - 0.5 * step_s
        columns = (base_s, step_s, self.layers / step_s, lead_s)
        object.__setattr__(self, "by_decodes", list(zip(*(c.tolist() for c in columns), strict=True)))
        p = self.prefill_exponent
        object.__setattr__(self, "prefill_smoothing", (p, self.prefill_overhead_s**p, 1.0 / p))
        most_work_s = self.attention.work_of((host_s - base_s) / self.layers) - 0.5 * step_s
        host = list(zip(host_s.tolist(), most_work_s.tolist(), strict=True))
        object.__setattr__(self, "host_by_decodes", host)
        object.__setattr__(self, "host_bound", bool((most_work_s > 0.0).any()))

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
            seconds += self.layers * self.attention.at(
                context_tokens * self.work_per_token_s + decodes * self.work_per_sequence_s
            )
        if prefills:
            p, overhead, root = self.prefill_smoothing
            pairs = with_cached + self.prefill_causal_weight * squares
            work_s = pairs * self.prefill_pair_s + prefill_tokens * self.prefill_token_s
            seconds += self.layers * (overhead + work_s**p) ** root
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
        base_s, step_s, scale, lead_s = np.asarray(self.by_decodes)[n].T
        work = context_tokens * self.work_per_token_s + lead_s
        before = self.attention.upto(work)

        def gpu_s(count: np.ndarray) -> np.ndarray:
            return on_grid(count * base_s + scale * (self.attention.upto(work + count * step_s) - before))

        if not self.host_bound:
            return gpu_s(iterations)
        host_s, most_work_s = np.asarray(self.host_by_decodes)[n].T
        bound = np.ceil(np.clip((most_work_s - work) / step_s, 0.0, _NEVER))
        later_s = np.where(bound < _NEVER, bound * host_s - gpu_s(np.where(bound < _NEVER, bound, 0.0)), 0.0)
        within = iterations <= bound
        return np.where(within, on_grid(iterations * host_s), on_grid(gpu_s(iterations) + later_s))
