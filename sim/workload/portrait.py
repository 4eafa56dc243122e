"""What traffic looks like in numbers: lengths, arrivals in windows, sharing of prompts, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sim.workload.contents import Contents
from sim.workload.dispersion import Dispersion, dispersion
from sim.workload.requests import Requests
from sim.workload.sharing import lru_hit_ratio, reusable_tokens

QUANTILES = (0.5, 0.9, 0.99)
CACHE_BLOCK_TOKENS = 512
CACHES_BLOCKS = (1_000, 3_000, 10_000, 30_000, 100_000)
_CACHED_REQUESTS = 20_000
_STEPS = 60


@dataclass(frozen=True, eq=False)
class Portrait:
    """Columns of requests in order of arrival, and what they show.

    times_s: float64 from 0, or None where there are none. contents: what prompts share, or None. classes:
    an index into class_names for each, or None.
    """

    times_s: np.ndarray | None
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    contents: Contents | None = None
    classes: np.ndarray | None = None
    class_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, requests: Requests, users: Sequence[int] = ()) -> Portrait:
        """That of a run's *requests*, from the first arrival on; without times where all arrive at once.

        Those of the classes *users* are sent upon answers and have no times before they are run.
        """
        times_s = requests.arrival_s
        if users and requests.classes is not None:
            times_s = times_s[~np.isin(requests.classes, users)]
        times_s = times_s - times_s[:1]
        return cls(
            times_s if len(times_s) and times_s[-1] > 0 else None,
            requests.prompt_tokens,
            requests.output_tokens,
            requests.contents,
            requests.classes,
            requests.class_names,
        )

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return 0.0 if self.times_s is None else float(self.times_s[-1])

    @property
    def rate_per_s(self) -> float | None:
        """Mean rate of requests; None without times."""
        return None if self.times_s is None else len(self.times_s) / self.span_s

    def dispersion(self) -> Dispersion:
        """Of the arrivals, in windows."""
        assert self.times_s is not None
        return dispersion(self.times_s, self.span_s)

    def correlation(self) -> dict[str, float | None]:
        """Of prompt and output tokens: linear (Pearson), and of ranks (Spearman); None where one is
        constant."""
        linear, ranked = correlations(self.prompt_tokens, self.output_tokens)
        return {"linear": linear, "rank": ranked}

    def hit_ratio(self) -> float | None:
        """Share of the prompts' tokens that a cache without limit would have; None where none are shared."""
        if self.contents is None:
            return None
        seen = reusable_tokens(self.contents, self.prompt_tokens, self.output_tokens, CACHE_BLOCK_TOKENS)
        return float(seen.sum() / self.prompt_tokens.sum())

    @cached_property
    def lru_hit_ratios(self) -> dict[int, float]:
        """By the blocks of 512 tokens that a cache has: the share of the prompts' blocks that it finds, of
        the first 20,000 requests."""
        if self.contents is None:
            return {}
        prompts, block = self.prompt_tokens[:_CACHED_REQUESTS], CACHE_BLOCK_TOKENS
        return {blocks: lru_hit_ratio(self.contents, prompts, block, blocks) for blocks in CACHES_BLOCKS}

    def over_time(self) -> tuple[np.ndarray, np.ndarray]:
        """Middles of 60 equal steps of the span (seconds), and the rate in each."""
        assert self.times_s is not None
        counts, edges = np.histogram(self.times_s, _STEPS, (0, self.span_s))
        return (edges[1:] + edges[:-1]) / 2, counts / np.diff(edges)

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for a program; None where something is not defined."""
        return {
            "requests": len(self.prompt_tokens),
            "span_s": self.span_s or None,
            "rate_per_s": self.rate_per_s,
            "sent_upon_answers": 0 if self.times_s is None else len(self.prompt_tokens) - len(self.times_s),
            "lengths": {
                "prompt_tokens": _quantiles(self.prompt_tokens),
                "output_tokens": _quantiles(self.output_tokens),
                "correlation": self.correlation(),
            },
            "arrivals": None if self.times_s is None else self._arrivals(),
            "sharing": None if self.contents is None else self._sharing(),
            "classes": self._classes(),
        }

    def _arrivals(self) -> dict[str, Any]:
        assert self.times_s is not None
        gaps, measured, (at_s, rates) = np.diff(self.times_s), self.dispersion(), self.over_time()
        return {
            "gap_cv": float(gaps.std() / gaps.mean()),
            "windows_s": measured.windows_s.tolist(),
            "index_of_dispersion": measured.index.tolist(),
            "share_without_arrivals": measured.quiet.tolist(),
            "over_time": {"at_s": at_s.tolist(), "rate_per_s": rates.tolist()},
        }

    def _sharing(self) -> dict[str, Any]:
        return {
            "block_tokens": CACHE_BLOCK_TOKENS,
            "infinite_hit_ratio": self.hit_ratio(),
            "lru_hit_ratio": {str(blocks): ratio for blocks, ratio in self.lru_hit_ratios.items()},
        }

    def _classes(self) -> dict[str, Any] | None:
        if self.classes is None:
            return None
        counts = np.bincount(self.classes, minlength=len(self.class_names))
        told = {}
        for number, name in enumerate(self.class_names):
            own = self.classes == number
            told[name] = {
                "share": float(counts[number] / counts.sum()),
                "prompt_tokens": _quantiles(self.prompt_tokens[own]),
                "output_tokens": _quantiles(self.output_tokens[own]),
            }
        return told


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance of two samples of numbers."""
    points = np.union1d(one, other)
    shares = (np.searchsorted(np.sort(sample), points, "right") / len(sample) for sample in (one, other))
    return float(np.abs(np.subtract(*shares)).max())


def _quantiles(tokens: np.ndarray) -> dict[str, float | None]:
    if len(tokens) == 0:
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
    values = np.quantile(tokens, QUANTILES)
    names = (f"p{100 * quantile:g}" for quantile in QUANTILES)
    return {"mean": float(tokens.mean())} | dict(zip(names, values.tolist(), strict=True)) | {
        "max": float(tokens.max())
    }  # fmt: skip


def correlations(one: np.ndarray, other: np.ndarray) -> tuple[float | None, float | None]:
    """Linear (Pearson) and of ranks (Spearman); None where one of both is constant."""
    return _pearson(one, other), _pearson(_ranks(one), _ranks(other))


def _pearson(one: np.ndarray, other: np.ndarray) -> float | None:
    if len(one) < 2 or one.min() == one.max() or other.min() == other.max():
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def differences(recorded: Portrait, drawn: Sequence[Portrait]) -> Mapping[str, dict[str, float | None]]:
    """What *drawn* runs are like beside what was *recorded*: by quantity, both values (of *drawn* the mean).

    The distances of lengths have a recorded value of 0; limited caches are those of the first run.
    """
    told: dict[str, dict[str, float | None]] = {}
    for side in ("prompt", "output"):
        own = getattr(recorded, f"{side}_tokens")
        told[f"{side} tokens, distance"] = {
            "recorded": 0.0,
            "drawn": _mean([distance(own, getattr(run, f"{side}_tokens")) for run in drawn]),
        }
    for kind, value in recorded.correlation().items():
        told[f"{kind} correlation"] = _both(value, [run.correlation()[kind] for run in drawn])
    if recorded.times_s is not None:
        measured, others = recorded.dispersion(), [run.dispersion() for run in drawn]
        for window_s in measured.windows_s.tolist():
            told[f"dispersion in {window_s:g} s"] = _both(
                measured.at(window_s), [other.at(window_s) for other in others]
            )
    if recorded.contents is not None:
        told["hit ratio, cache without limit"] = _both(
            recorded.hit_ratio(), [run.hit_ratio() for run in drawn]
        )
        for blocks, ratio in recorded.lru_hit_ratios.items():
            first = drawn[0].lru_hit_ratios.get(blocks)
            told[f"hit ratio, cache of {blocks:,} blocks"] = _both(ratio, [first])
    return told


def _both(recorded: float | None, drawn: Sequence[float | None]) -> dict[str, float | None]:
    return {"recorded": recorded, "drawn": _mean(drawn)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(known)) if known else None
