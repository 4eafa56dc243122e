"""How kernels are timed on a card, with a CUDA of our own: no card, no torch."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sim.calibration.measure.bench import Bench
from sim.calibration.measure.clocks import CudaClock

LAUNCH_S, SWEEP_S = 5e-6, 50e-6


class Cuda:
    """A stream whose clock moves by what kernels take, and by a launch for each that no graph replays."""

    def __init__(self, can_capture: bool = True) -> None:
        self.now_s = 0.0
        self.sweeps = 0
        self.can_capture = can_capture
        self.capturing: list[Callable[[], None]] | None = None
        self.replays: list[int] = []
        self.torch = types.SimpleNamespace(cuda=self, empty=self.empty, uint8=None)

    def kernel(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now_s += seconds

        def launch() -> None:
            if self.capturing is not None:
                self.capturing.append(run)
            else:
                self.now_s += LAUNCH_S
                run()

        return launch

    def empty(self, size: int, dtype: object, device: object) -> Any:
        def zero_() -> None:
            self.sweeps += 1
            self.now_s += SWEEP_S

        return types.SimpleNamespace(zero_=zero_)

    def synchronize(self) -> None: ...

    def Stream(self) -> Any:  # noqa: N802
        return types.SimpleNamespace(wait_stream=lambda other: None)

    current_stream = Stream

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        event = types.SimpleNamespace()
        event.record = lambda: setattr(event, "at_s", self.now_s)
        event.elapsed_time = lambda later: (later.at_s - event.at_s) * 1e3
        return event

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        yield

    def CUDAGraph(self) -> Any:  # noqa: N802
        graph = types.SimpleNamespace(kernels=[])

        def replay() -> None:
            self.replays.append(len(graph.kernels))
            for run in graph.kernels:
                run()

        graph.replay = replay
        return graph

    @contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        if not self.can_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.capturing = graph.kernels
        yield
        self.capturing = None


def clock(cuda: Cuda) -> CudaClock:
    return CudaClock(Bench(cuda.torch, "cuda:0", 2**20, lambda: 2**30))


@pytest.mark.parametrize(("kernel_s", "copies"), [(2e-6, 64), (2e-6, 3), (3e-3, 1)])
def test_a_time_has_no_launch_in_it(kernel_s: float, copies: int) -> None:
    """Kernels are replayed from a graph: what is timed is theirs alone, however small and however many."""
    cuda = Cuda()
    samples, captured = clock(cuda).samples([cuda.kernel(kernel_s)] * copies, 0.0)
    assert captured
    assert samples == pytest.approx([kernel_s] * len(samples))


def test_small_kernels_fill_a_round() -> None:
    """A round of small kernels outlasts the resolution of events; a large kernel is a round by itself."""
    cuda = Cuda()
    clock(cuda).samples([cuda.kernel(2e-6)] * 3, 0.0)
    clock(cuda).samples([cuda.kernel(1.0)], 0.0)
    assert 60 <= min(count for count in cuda.replays if count > 1) <= 256
    assert cuda.replays[-1] == 1


def test_the_cache_is_swept_before_each_round_and_not_timed() -> None:
    """Each sample begins with what the cache held gone; the sweep is before the first event."""
    cuda = Cuda()
    samples, _ = clock(cuda).samples([cuda.kernel(1e-3)], 0.0)
    assert cuda.sweeps >= len(samples)
    assert max(samples) < 1e-3 + SWEEP_S / 2


def test_what_cannot_be_captured_is_launched_and_said() -> None:
    """A kernel that no graph takes is timed with its launches, and the answer says that it was."""
    cuda = Cuda(can_capture=False)
    samples, captured = clock(cuda).samples([cuda.kernel(2e-6)], 0.0)
    assert not captured
    assert samples == pytest.approx([2e-6 + LAUNCH_S] * len(samples))
