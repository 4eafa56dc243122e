"""Hardware: what a GPU was measured to do, how long its operations take, what its memory holds."""

from sim.hardware.memory import MemoryLedger, memory_ledger
from sim.hardware.parts import Link, Price, Provenance
from sim.hardware.profile import HardwareProfile
from sim.hardware.roofline import (
    AllReduce,
    AttentionShape,
    DecodeAttention,
    Elementwise,
    Gemm,
    PrefillAttention,
    Roofline,
)

__all__ = [
    "AllReduce",
    "AttentionShape",
    "DecodeAttention",
    "Elementwise",
    "Gemm",
    "HardwareProfile",
    "Link",
    "MemoryLedger",
    "PrefillAttention",
    "Price",
    "Provenance",
    "Roofline",
    "memory_ledger",
]
