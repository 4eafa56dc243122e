"""Torch on one device, as the kernels see it, and what they hand to the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.calibration.measure.device import CannotRun, OutOfMemory

Call = Callable[[], object]
"""One kernel, or one small sequence of them, launched once on operands that are already there."""

_MOST_COPIES = 64
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
_ROOM = 0.8  # share of the free memory that a point may take


@dataclass(frozen=True)
class Prepared:
    """A point's calls, each on operands of its own, so that none of a round finds them in the cache.

    Where the operands are larger than the cache there is one call; it evicts its own.
    """

    calls: Sequence[Call]


@dataclass(frozen=True)
class Bench:
    """Torch, the device, the bytes of its last cache, and how its free memory (bytes) is asked for.

    `most_copies` is how many sets of operands a point may have; `compiled` holds what `fused` made.
    """

    torch: Any
    device: Any
    cache_bytes: int
    free_bytes: Callable[[], int]
    most_copies: int = _MOST_COPIES
    compiled: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def dtype(self, name: str) -> Any:
        """Torch's dtype of our *name*."""
        torch = self.torch
        names = {
            "bf16": torch.bfloat16,
            "fp16": torch.float16,
            "fp8": torch.float8_e4m3fn,
            "int8": torch.int8,
        }
        return names[name]

    def copies(self, rotated_bytes: float, fixed_bytes: float = 0) -> int:
        """How many sets of *rotated_bytes* to make: a round of them is twice the cache, if there is room.

        Raises `OutOfMemory` where there is no room for one, beside *fixed_bytes*.
        """
        room = self.free_bytes() * _ROOM - fixed_bytes
        if rotated_bytes > room:
            wanted, free = (rotated_bytes + fixed_bytes) / 2**30, self.free_bytes() / 2**30
            raise OutOfMemory(f"needs {wanted:.1f} GiB of memory, and {free:.1f} GiB are free")
        wanted_copies = math.ceil(2 * self.cache_bytes / max(rotated_bytes, 1))
        return max(1, min(wanted_copies, self.most_copies, int(room // max(rotated_bytes, 1))))

    def randn(self, *shape: int, dtype: str) -> Any:
        """Normal random numbers; in 8 bits scaled to the type's range."""
        torch = self.torch
        if dtype == "int8":
            return torch.randint(-127, 128, shape, dtype=torch.int8, device=self.device)
        half = torch.bfloat16 if dtype == "fp8" else self.dtype(dtype)
        return torch.randn(*shape, dtype=half, device=self.device).to(self.dtype(dtype))

    def fused(self, name: str, function: Callable[..., Any], *example: Any) -> Callable[..., Any]:
        """*function* compiled into one kernel on CUDA if the compiler works there, as it is if not.

        It is compiled once under its *name*, and tried on *example*; it must hold nothing of a point.
        """
        if name not in self.compiled:
            self.compiled[name] = self._compiled(function, example)
        return self.compiled[name]

    def _compiled(self, function: Callable[..., Any], example: tuple[Any, ...]) -> Callable[..., Any]:
        if self.device.type != "cuda":
            return function
        compiled: Callable[..., Any] = self.torch.compile(function, dynamic=True)
        try:
            compiled(*example)
        except Exception:  # no C compiler, no Triton for this card, ...: the plain operations always work
            return function
        return compiled


def means_no_memory(error: Exception) -> bool:
    """Whether *error* is how torch, on the device or on the host, says that memory is short."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)


def refuse(reason: object) -> CannotRun:
    """A `CannotRun` that quotes the first line of *reason*, which libraries let many follow."""
    lines = str(reason).strip().splitlines()
    return CannotRun(lines[0][:200] if lines else type(reason).__name__)
