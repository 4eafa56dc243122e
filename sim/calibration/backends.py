"""Which backend's kernels a row of a kernel table timed, from its `source`, and how they were launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_PUBLISHED = ("vllm", "sglang", "trtllm", "nccl")
_ONE_LOOP_ONLY = ("-sustained", "-burst")


def backend_of(source: str) -> str:
    """`vllm` of aiconfigurator-vllm, `vidur` of every Vidur table, `kneesim` of what `measure` wrote.

    Vidur's pairwise NVLink machine has other links than its DGX, and is a backend of its own. A source of
    another kind is its own backend, in letters that a key may have.
    """
    if source.startswith("vidur-"):
        return "vidur_pairwise" if "pairwise" in source else "vidur"
    if source.startswith("kneesim-"):
        return "kneesim"
    if source.startswith("aiconfigurator-"):
        last = source.rsplit("-", 1)[1]
        return next((name for name in _PUBLISHED if last.startswith(name)), last)
    kept = [letter if letter.isalnum() else "_" for letter in source.lower()]
    return "".join(kept).strip("_") or "other"


def is_eager(source: str) -> bool:
    """Whether each call was launched by itself: no CUDA graph around it."""
    return source.endswith("eager")


def with_backends(rows: pd.DataFrame) -> pd.DataFrame:
    """*rows* with columns `backend` and `eager`, without those that time how a card gets hot."""
    hot = _mapped(rows["source"], lambda source: source.endswith(_ONE_LOOP_ONLY))
    kept = rows[~hot.astype(bool)]
    return kept.assign(
        backend=_mapped(kept["source"], backend_of), eager=_mapped(kept["source"], is_eager).astype(bool)
    )


def _mapped(sources: pd.Series, function: Callable[[str], object]) -> pd.Series:
    return sources.map({source: function(source) for source in sources.unique()})
