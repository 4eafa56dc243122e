"""Published errors of other simulators, each on its own servers: for orientation, not a comparison."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """Median errors in percent as published; *says* tells by whom and of what."""

    name: str
    e2e: str
    ttft: str
    tpot: str
    says: str


_STUDY = "measured by a third party against vLLM"

PEERS: tuple[Peer, ...] = (
    Peer("BLIS", "17", "12", "", "on the runs that it was fitted to"),
    Peer("pure roofline", "49", "279", "", _STUDY),
    Peer("AIConfigurator", "12", "653", "", _STUDY),
    Peer("LLMServingSim 1.1", "19", "73", "", _STUDY),
    Peer("Vidur", "< 9", "", "", "its authors"),
    Peer("LLMServingSim 2", "about 1", "", "", "its authors"),
    Peer("Frontier", "6", "", "", "its authors"),
    Peer("Revati", "< 5", "", "", "its authors"),
)
"""Sources: the comparison that BLIS publishes (inference-sim/inference-sim); the papers of the others."""
