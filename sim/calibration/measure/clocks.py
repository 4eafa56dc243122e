"""How calls are timed: device events around replayed CUDA graphs, or the host's clock without CUDA."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sim.calibration.measure.bench import Bench, Call

FEWEST_SAMPLES, MOST_SAMPLES = 3, 30
_ROUND_S = 5e-4  # a timed round lasts at least that long, if its operands stay cold
_LONGEST_ROUND = 256  # calls


class Clock(Protocol):
    """Times rounds of calls."""

    def samples(self, calls: Sequence[Call], limit_s: float) -> tuple[list[float], bool]:
        """Times of one call (s) in each of some rounds, after warm-up.

        There are at least three, and as many as *limit_s* has room for. The second value is whether the calls
        were launched as they should be: replayed from a graph on CUDA.
        """

    def wall_s(self, call: Call) -> float:
        """Time on the host's clock from before *call* to when the device has done with it."""

    def graph_of(self, call: Call) -> Call:
        """*call* captured, to be replayed."""


class HostClock:
    """`time.perf_counter` around the calls. The cache is swept before each round."""

    def __init__(self, bench: Bench) -> None:
        self._sweep = _sweep(bench)

    def samples(self, calls: Sequence[Call], limit_s: float) -> tuple[list[float], bool]:
        """See `Clock`."""
        calls[0]()
        return repeated(lambda: self._round(calls), limit_s), True

    def _round(self, calls: Sequence[Call]) -> float:
        self._sweep()
        return self.wall_s(lambda: [call() for call in calls]) / len(calls)

    def wall_s(self, call: Call) -> float:
        """See `Clock`."""
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    def graph_of(self, call: Call) -> Call:
        """See `Clock`; without CUDA there is nothing to capture."""
        return call


class CudaClock:
    """CUDA events around a replayed graph, queued behind a sweep of the cache that hides the launch."""

    def __init__(self, bench: Bench) -> None:
        self._torch = bench.torch
        self._sweep = _sweep(bench)
        self._cache_bytes = bench.cache_bytes
        self._start, self._end = (bench.torch.cuda.Event(enable_timing=True) for _ in range(2))

    def samples(self, calls: Sequence[Call], limit_s: float) -> tuple[list[float], bool]:
        """See `Clock`. What cannot be captured is launched call by call."""
        for call in calls[:2]:
            call()
        self._torch.cuda.synchronize()
        estimate_s = min(self._timed(calls[0]) for _ in range(2))
        round_of = list(calls) * max(1, min(int(_ROUND_S / estimate_s) + 1, _LONGEST_ROUND) // len(calls))

        def eagerly() -> None:
            for call in round_of:
                call()

        try:
            replay, captured = self.graph_of(eagerly), True
        except RuntimeError:
            self._torch.cuda.synchronize()
            replay, captured = eagerly, False
        replay()
        return repeated(lambda: self._timed(replay) / len(round_of), limit_s), captured

    def _timed(self, call: Call) -> float:
        self._sweep()
        self._start.record()
        call()
        self._end.record()
        self._torch.cuda.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3

    def wall_s(self, call: Call) -> float:
        """See `Clock`."""
        self._torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        self._torch.cuda.synchronize()
        return time.perf_counter() - start

    def graph_of(self, call: Call) -> Call:
        """See `Clock`. Warms up on a stream of its own first, as capture asks for."""
        cuda = self._torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            call()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            call()
        return lambda: graph.replay()


def repeated(once: Callable[[], float], limit_s: float) -> list[float]:
    """What *once* returns, at least three times, then until *limit_s* have passed or it has been thirty."""
    start = time.perf_counter()
    times: list[float] = []
    while len(times) < FEWEST_SAMPLES or (
        len(times) < MOST_SAMPLES and time.perf_counter() - start < limit_s
    ):
        times.append(once())
    return times


def middle_and_spread(samples: Sequence[float]) -> tuple[float, float]:
    """Median of *samples*, and their interquartile range over it."""
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, (high - low) / middle if middle else 0.0


def _sweep(bench: Bench) -> Callable[[], Any]:
    """Writes twice the cache, so that what it held is gone."""
    torch = bench.torch
    buffer = torch.empty(2 * bench.cache_bytes, dtype=torch.uint8, device=bench.device)
    return lambda: buffer.zero_()
