"""Which of our GPUs and models a row means: published names are freer than a catalogue's aliases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from sim.faults import InputFault
from sim.scenario import find

_CARDS = {
    "a100-80gb-sxm": ("A100-80GB", "A100 80GB", "A100-SXM-80GB"),
    "a100-40gb-sxm": ("A100-40GB", "A100 40GB", "A100-40GB?"),
    "h100-80gb-sxm": ("H100-80GB", "H100 SXM", "H100-SXM"),
    "h100-80gb-pcie": ("H100 PCIe", "H100-PCIe", "H100-80GB-PCIe"),
    "h100-94gb-nvl": ("H100-NVL", "H100-NVL-94GB", "H100-NVL-95GB", "H100 NVL"),
    "h200-141gb-sxm": ("H200", "H200-SXM", "H200 (141GB, CTS custom 1000W)"),
    "rtx-4090-24gb": ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
    "a800-80gb-sxm": ("NVIDIA A800-SXM4-80GB", "A800-80GB-SXM"),
}
_MODELS = {
    "qwen2.5-72b": ("Qwen2-72B", "Qwen2-72B-Instruct"),
    "qwen3-32b": ("Qwen3-VL-32B-Instruct",),
    "mistral-7b": ("Mistral-7B",),
}
_TAILS = re.compile(r"[-_](instruct|chat|hf|it|fp8|awq|gptq|dynamic|v0\.[0-9]+|w8a8)$", re.IGNORECASE)


def card_of(name: str) -> str:
    """The hardware profile of the GPU *name*. Raises `InputFault` if there is none."""
    plain = re.sub(r"\s*\(.*?\)", "", name).strip()
    for card, names in _CARDS.items():
        if any(said.casefold() in (name.casefold(), plain.casefold()) for said in names):
            plain = card
    if (found := _stem("hardware", plain)) is None:
        raise InputFault(f"there is no hardware profile for GPU {name}")
    return found


def model_of(name: str) -> str:
    """The model that *name* means, whatever tuning or quantisation it tells too. Raises `InputFault`."""
    for known in _spellings(name):
        for model, names in _MODELS.items():
            if known.casefold() in (said.casefold() for said in names):
                return model
        if (found := _stem("models", known)) is not None:
            return found
    raise InputFault(f"there is no dense model in the catalogue called {name}")


def _spellings(name: str) -> Iterator[str]:
    """The name as it is, without its organisation and remarks, then with tail after tail taken off."""
    yield name
    plain = re.sub(r"\s*\(.*?\)", "", name).strip().rpartition("/")[2]
    while True:
        yield plain
        shorter = _TAILS.sub("", plain)
        if shorter == plain:
            return
        plain = shorter


@cache
def _stem(kind: str, name: str) -> str | None:
    try:
        return find(kind, name).stem
    except InputFault:
        return None
