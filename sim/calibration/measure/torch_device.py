"""The device of `measure`, by torch: a CUDA GPU, or the CPU."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim.calibration.measure.attention import attention_backend
from sim.calibration.measure.bench import Bench, means_no_memory, refuse
from sim.calibration.measure.clocks import Clock, CudaClock, HostClock, middle_and_spread, repeated
from sim.calibration.measure.collective import Ranks
from sim.calibration.measure.conditions import nvidia_smi
from sim.calibration.measure.device import CannotRun, OutOfMemory, Timing
from sim.calibration.measure.kernels import prepare
from sim.calibration.measure.points import Point
from sim.calibration.measure.simple import empty_kernels
from sim.faults import InputFault

CPU_RANKS = 2  # processes of an all-reduce where there are no GPUs
_MOST_CPU_COPIES = 4
_MOST_CPU_CACHE_BYTES = 32 * 2**20  # virtual machines report their whole host's


def open_device(kind: str) -> TorchDevice:
    """The device *kind*, `cuda` or `cpu`. Raises `InputFault` where torch or CUDA is not there."""
    try:
        import torch
    except ImportError as error:
        raise InputFault(
            "measuring needs PyTorch 2.5 or later, which is not installed: pip install torch"
            f" (or kneesim[measure]) ({error})"
        ) from error
    if kind == "cuda" and not torch.cuda.is_available():
        built = f"was built for CUDA {torch.version.cuda}" if torch.version.cuda else "was built without CUDA"
        raise InputFault(
            f"--device cuda: torch finds no CUDA device on this machine (torch {torch.__version__} {built});"
            " --device cpu measures the processor"
        )
    logging.getLogger("torch").setLevel(logging.ERROR)
    return TorchDevice(torch, kind)


class TorchDevice:
    """See `sim.calibration.measure.device.Device`."""

    def __init__(self, torch: Any, kind: str) -> None:
        self._torch = torch
        self._cuda = kind == "cuda"
        self._bench = _bench(torch, kind)
        self._attention, self._reasons = attention_backend(self._bench)
        self._clock: Clock = CudaClock(self._bench) if self._cuda else HostClock(self._bench)
        self._ranks: dict[int, Ranks] = {}
        self.n_gpus: int = torch.cuda.device_count() if self._cuda else CPU_RANKS
        self.gpu = self._name = torch.cuda.get_device_name() if self._cuda else _processor()

    def clock_s(self) -> float:
        """See `Device`."""
        return time.monotonic()

    def describe(self) -> dict[str, Any]:
        """See `Device`."""
        torch = self._torch
        about = {"name": self._name, "kind": self._bench.device.type, "torch": torch.__version__}
        about |= {"free_memory_bytes": self._bench.free_bytes(), "cache_bytes": self._bench.cache_bytes}
        about |= {"libraries": _libraries()}
        about |= {"attention": self._attention, "attention_not_by": self._reasons, "n_gpus": self.n_gpus}
        if self._cuda:
            properties = torch.cuda.get_device_properties(0)
            about |= {"cuda": torch.version.cuda, "memory_bytes": properties.total_memory}
            about |= {"multiprocessors": properties.multi_processor_count}
            about |= {"compute_capability": f"{properties.major}.{properties.minor}"}
        else:
            about |= {"threads": torch.get_num_threads()}
        return about

    def conditions(self) -> dict[str, Any]:
        """See `Device`."""
        return nvidia_smi() if self._cuda else {}

    def backend(self, point: Point) -> str:
        """See `Device`."""
        if point.op == "all_reduce":
            if point.variant == "graph" and not self._cuda:
                raise CannotRun("collectives are captured in graphs on CUDA only")
            return "nccl" if self._cuda else "gloo"
        if point.op == "launch" and point.variant == "graph" and not self._cuda:
            raise CannotRun("graphs of kernels are CUDA's")
        return self._attention if point.op.startswith(("attention", "layer")) else "torch"

    def measure(self, point: Point, limit_s: float) -> Timing:
        """See `Device`. Raises `InputFault` if the device answers nothing any more."""
        try:
            with self._torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls some kernels prototypes
                return self._measure(point, limit_s)
        except (RuntimeError, NotImplementedError, ValueError, TypeError, MemoryError) as error:
            raise self._meaning(error, point) from error
        finally:
            if self._cuda:
                self._torch.cuda.empty_cache()

    def _measure(self, point: Point, limit_s: float) -> Timing:
        backend = self.backend(point)
        if point.op == "all_reduce":
            samples = self._group(point.n_gpus).samples(point, limit_s)
            return Timing(*middle_and_spread(samples), backend)
        if point.op == "launch":
            call = empty_kernels(self._bench, point.m or 1)
            launched = self._clock.graph_of(call) if point.variant == "graph" else call
            launched()
            samples = repeated(lambda: self._clock.wall_s(launched), limit_s)
            return Timing(*middle_and_spread(samples), backend)
        time_s, spread, as_it_should = 0.0, 0.0, True
        for part in prepare(self._bench, point, self._attention):
            samples, captured = self._clock.samples(part.calls, limit_s)
            middle_s, part_spread = middle_and_spread(samples)
            time_s, spread = time_s + middle_s, max(spread, part_spread)
            as_it_should = as_it_should and captured
        return Timing(time_s, spread, backend if as_it_should else f"{backend}_eager")

    def _meaning(self, error: Exception, point: Point) -> Exception:
        """What *error* tells of *point*: no room, no kernel, or that the device is gone."""
        if means_no_memory(error):
            return OutOfMemory(str(refuse(error)))
        if self._cuda:
            try:
                self._torch.cuda.synchronize()
            except RuntimeError as gone:
                return InputFault(
                    f"the device does not answer any more after {point}: {refuse(gone)};"
                    " what was measured is kept, and the same command goes on past this point"
                )
        return refuse(error)

    def _group(self, n_gpus: int) -> Ranks:
        if n_gpus not in self._ranks:
            self._ranks[n_gpus] = Ranks(n_gpus, "cuda" if self._cuda else "cpu")
        return self._ranks[n_gpus]

    def rest(self, seconds: float) -> None:
        """See `Device`."""
        time.sleep(seconds)

    def sustain(self, point: Point, seconds: float) -> list[dict[str, Any]]:
        """See `Device`. Conditions are read while the kernels that are queued still run."""
        with self._torch.inference_mode():
            (part,) = prepare(self._bench, point, self._attention)
            calls, series = part.calls, []
            once_s = self._clock.wall_s(calls[0])
            count = max(1, round(min(1.0, seconds / 5) / once_s))
            start = time.perf_counter()
            while time.perf_counter() - start < seconds:
                seen: dict[str, Any] = {}

                def launch(seen: dict[str, Any] = seen) -> None:
                    for index in range(count):
                        calls[index % len(calls)]()
                    seen.update(self.conditions())

                took_s = self._clock.wall_s(launch)
                now_s = time.perf_counter() - start
                series.append({"at_s": round(now_s, 2), "time_us": took_s / count * 1e6, **seen})
        return series

    def close(self) -> None:
        """See `Device`."""
        for group in self._ranks.values():
            group.close()
        self._ranks.clear()


def _libraries() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("flashinfer-python", "vllm", "triton"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _bench(torch: Any, kind: str) -> Bench:
    if kind != "cuda":
        cache_bytes = min(_cpu_cache_bytes(), _MOST_CPU_CACHE_BYTES)
        return Bench(torch, torch.device("cpu"), cache_bytes, _free_host_bytes, _MOST_CPU_COPIES)
    torch.cuda.init()
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return Bench(torch, torch.device("cuda:0"), cache_bytes, _free_cuda_bytes(torch))


def _free_cuda_bytes(torch: Any) -> Callable[[], int]:
    return lambda: int(torch.cuda.mem_get_info(0)[0])


def _free_host_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 2 * 2**30  # not a Linux: enough for the shapes that matter


def _cpu_cache_bytes() -> int:
    try:
        return os.sysconf("SC_LEVEL3_CACHE_SIZE") or _MOST_CPU_CACHE_BYTES
    except (ValueError, OSError, AttributeError):
        return _MOST_CPU_CACHE_BYTES


def _processor() -> str:
    """`cpu`, and what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    name = (names or [platform.processor()])[0]
    return f"cpu {name}".strip().replace(",", " ")
