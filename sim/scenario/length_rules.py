"""Requirements that more than one key of a workload's lengths has a part in."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.scenario.rules import Report

Values = Mapping[str, Any]


def length_rules(lengths: Values, report: Report) -> None:
    """The rules within `lengths`; what is at fault is not in it."""
    kind = lengths.get("kind")
    for side in ("prompt", "output"):
        part = lengths.get(side, {})
        if kind == "mixture":
            _mixture_rules(f"lengths.{side}", part, report)
        elif kind == "table":
            _table_rules(f"lengths.{side}", part, report)
        elif kind == "uniform":
            _uniform_rules(side, lengths, report)
        else:
            _simple_rules(kind, side, report)
    if kind == "joint":
        _joint_rules(lengths, report)


def _simple_rules(kind: str | None, side: str, report: Report) -> None:
    """Which of tokens, mean and cv a kind needs for a side."""
    written = report.tree.get(("lengths",))
    tokens, mean, cv = (written.get(f"{side}_{what}") for what in ("tokens", "mean", "cv"))
    if kind == "fixed" and tokens is None:
        report(f"lengths.{side}_tokens", "is missing: fixed lengths need it")
    if kind == "lognormal" and mean is None:
        report(f"lengths.{side}_mean", "is missing: lognormal lengths need it")
    if kind == "lognormal" and (cv is None) == (written.get("cv") is None):
        report(f"lengths.{side}_cv", "and lengths.cv: exactly one must be there")
    if kind == "geometric" and (tokens is None) == (mean is None):
        report(f"lengths.{side}_mean", f"and lengths.{side}_tokens: exactly one must be there")


def _mixture_rules(path: str, part: Values, report: Report) -> None:
    weights, mu, sigma = part.get("weights"), part.get("mu"), part.get("sigma")
    if weights and mu and sigma and not len(weights) == len(mu) == len(sigma):
        report(
            path, f"must have as many weights as mu and sigma (got {len(weights)}, {len(mu)}, {len(sigma)})"
        )
    if weights and abs(sum(weights) - 1) >= 0.01:
        report(f"{path}.weights", f"must add up to 1 (got {sum(weights):g})")
    least, most = part.get("min"), part.get("max")
    if least and most and least > most:
        report(f"{path}.min", f"must be <= max {most} (got {least})")


def _table_rules(path: str, part: Values, report: Report) -> None:
    quantiles, tokens = part.get("quantiles"), part.get("tokens")
    if not quantiles or not tokens:
        return
    if len(quantiles) != len(tokens) or len(tokens) < 2:
        report(
            path,
            f"must have as many quantiles as tokens, at least 2 (got {len(quantiles)} and {len(tokens)})",
        )
    if not rises_to_one(quantiles):
        report(f"{path}.quantiles", "must rise from 0 to 1")
    if any(low > high for low, high in pairwise(tokens)):
        report(f"{path}.tokens", "must never fall")


def _uniform_rules(side: str, lengths: Values, report: Report) -> None:
    least, most = lengths.get(f"{side}_min"), lengths.get(f"{side}_max")
    if least and most and least > most:
        report(f"lengths.{side}_min", f"must be <= lengths.{side}_max {most} (got {least})")


def _joint_rules(lengths: Values, report: Report) -> None:
    shares, edges = lengths.get("cells"), [lengths.get(f"{side}_edges") for side in ("prompt", "output")]
    for side, tokens in zip(("prompt", "output"), edges, strict=True):
        if tokens and (len(tokens) < 2 or any(low >= high for low, high in pairwise(tokens))):
            report(f"lengths.{side}_edges", "must rise, and be at least 2")
    if not shares:
        return
    total = sum(map(sum, shares))
    if min(map(min, shares)) < 0 or abs(total - 1) >= 0.01:
        report("lengths.cells", f"must not be negative and add up to 1 (got a sum of {total:g})")
    if edges[0] and edges[1]:
        rows, columns = len(edges[0]) - 1, len(edges[1]) - 1
        if len(shares) != rows or any(len(row) != columns for row in shares):
            got = ", ".join(map(str, dict.fromkeys(map(len, shares))))
            report("lengths.cells", f"must be {rows} rows of {columns}, one less than the edges "
                   f"(got {len(shares)} rows of {got})")  # fmt: skip


def rises_to_one(quantiles: list[float]) -> bool:
    """Whether they rise from 0 to 1."""
    rising = all(low < high for low, high in pairwise(quantiles))
    return rising and quantiles[0] == 0 and quantiles[-1] == 1
