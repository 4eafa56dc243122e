"""A small catalogue of their own for the tests of scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sim.faults import InputFault
from sim.scenario import Scenario, load

HARDWARE = """\
name: small-24gb
aliases: [Small GPU]
memory_bytes: 24GiB
peak_flops_per_s: {bf16: 1e14}
memory_bandwidth_bytes_per_s: 600GB/s
l2_bytes: 40MiB
link: {kind: pcie, bandwidth_bytes_per_s: 32GB/s}
power_w: 72
price: {usd_per_gpu_hour: 0.5, date: "2026-01-01", source: a list}
kernels:
  gemm: {bf16: {flops_per_s: 9e13, bytes_per_s: 5e11, exponent: 1.5, overhead_s: 5us}}
  attention_prefill: {flops_per_s: 5e13, head_token_s: 1e-10, exponent: 1.1, overhead_s: 12us}
  attention_decode: {bytes_per_s: 5e11, head_sequence_s: 1e-8, exponent: 1.0, overhead_s: 12us}
  all_reduce: {"2": {latency_s: 20us, bytes_per_s: 2e10, exponent: 1.2}}
  elementwise: {bytes_per_s: 5e11, overhead_s: 2us}
provenance:
  memory_bytes: {kind: measured, source: a driver, points: 3}
  kernels: {kind: estimated, source: the datasheet}
  peak_flops_per_s: {kind: datasheet, source: its datasheet}
  memory_bandwidth_bytes_per_s: {kind: datasheet, source: its datasheet}
  l2_bytes: {kind: datasheet, source: its datasheet}
  link: {kind: datasheet, source: its datasheet}
  power_w: {kind: datasheet, source: its datasheet}
  price: {kind: datasheet, source: a list}
"""
MODEL = """\
name: tiny-1b
aliases: [Org/Tiny-1B-Instruct]
layers: 16
hidden_size: 2048
heads: 32
kv_heads: 8
head_dim: 64
intermediate_size: 8192
vocab_size: 32Ki
max_position_embeddings: 4096
"""
WORKLOAD = """\
name: chat
arrivals: {kind: poisson}
lengths: {kind: lognormal, prompt_mean: 500, output_mean: 200, cv: 1}
"""
SCENARIO = """\
hardware: small-24gb
model: tiny-1b
workload: chat
load: {rate_per_s: 4}
"""


class Catalogue:
    """Files below a folder, and the names that are looked up in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = {kind: root / kind for kind in ("hardware", "models", "workloads", "scenarios")}
        self.write("hardware/small-24gb.yaml", HARDWARE)
        self.write("models/tiny-1b.yaml", MODEL)
        self.write("workloads/chat.yaml", WORKLOAD)
        self.write("scenarios/usual.yaml", SCENARIO)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def load(self, text: str = SCENARIO, overrides: Sequence[str] = ()) -> Scenario:
        """The scenario in *text*, as the file chat.yaml."""
        return load(self.write("chat.yaml", text), overrides, self.folders)

    def faults(self, text: str = SCENARIO, overrides: Sequence[str] = ()) -> list[str]:
        """The sentences on *text*."""
        with pytest.raises(InputFault) as caught:
            self.load(text, overrides)
        return list(caught.value.faults)


def starting(beginning: str, sentences: Sequence[str]) -> str:
    """The one sentence with this beginning."""
    found = [sentence for sentence in sentences if sentence.startswith(beginning)]
    assert len(found) == 1, f"{beginning!r} begins {len(found)} of {list(sentences)}"
    return found[0]
