"""A kernel table made a hardware profile: every class of kernels of every backend, with how far it held."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

from sim.calibration.all_reduce import fit_all_reduce
from sim.calibration.attention import fit_attention, sections_of
from sim.calibration.backends import with_backends
from sim.calibration.fitted import Fitted, rounded
from sim.calibration.gemm import fit_gemm, peak_of
from sim.faults import InputFault
from sim.hardware import HardwareProfile

if TYPE_CHECKING:
    import pandas as pd

_ORIGINS = (
    ("aiconfigurator-", "NVIDIA AIConfigurator's kernel tables (Apache-2.0)"),
    ("vidur-", "Microsoft Vidur's kernel tables (MIT)"),
    ("kneesim-", "kneesim calibrate measure"),
)
_COPIED = 0.5  # of two dtypes' shapes: more equal times, and one table stands for both
_ALIKE = {"fp16", "bf16"}  # dtypes that are as fast by nature, and may be equal
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class Fit:
    """One class of kernels of one backend, and the sources its rows name."""

    backend: str
    fitted: Fitted
    sources: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.backend} {self.fitted.key}"


@dataclass(frozen=True, eq=False)
class Job:
    """The rows of one class of one backend, and what fits them."""

    op: str
    backend: str
    rows: pd.DataFrame
    fit: Callable[[], list[Fitted]]


def fit_profile(table: pd.DataFrame, base: Mapping[str, Any]) -> dict[str, Any]:
    """The profile *base* (a mapping in base units) with its kernels fitted to the rows *table*.

    Raises InputFault where the table does not carry a fit.
    """
    fits, _ = fit_kernels(table, HardwareProfile.from_mapping(base))
    return profile_with(base, fits)


def fit_kernels(
    table: pd.DataFrame, card: HardwareProfile, progress: Progress | None = None
) -> tuple[list[Fit], list[str]]:
    """Every class that *table* has, by backend, and a sentence for each that is left out.

    Raises InputFault for an operation none of whose classes has enough rows, a dtype that the card does not
    compute in or whose times are another's, and a fit that holds worse than the card's datasheet.
    """
    rows = with_backends(table)
    faults = [*_foreign_dtypes(rows, card), *_copies(rows)]
    if faults:
        raise InputFault(faults)
    fits: list[Fit] = []
    short: dict[str, list[str]] = {}
    jobs = list(_jobs(rows, card))
    for number, job in enumerate(jobs):
        if progress is not None:
            progress(number, len(jobs), f"{job.backend} {job.op}")
        try:
            sources = tuple(sorted(job.rows["source"].unique()))
            fits += [Fit(job.backend, fitted, sources) for fitted in job.fit()]
        except InputFault as fault:
            short.setdefault(job.op, []).extend(f"{job.backend}: {sentence}" for sentence in fault.faults)
    done = {
        fit.fitted.key.partition(".")[0].removesuffix("_eager").removesuffix("_compute").removesuffix("_fp8")
        for fit in fits
    }
    faults = [sentence for op, sentences in short.items() if op not in done for sentence in sentences]
    faults += [sentence for fit in fits if (sentence := _worse_than_datasheet(fit))]
    if not fits and not faults:
        faults = ["the table has no rows of gemm, attention or all_reduce to fit"]
    if faults:
        raise InputFault(faults)
    return fits, [f"left out: {sentence}" for op in short for sentence in short[op]]


def profile_with(base: Mapping[str, Any], fits: list[Fit]) -> dict[str, Any]:
    """*base* with the fits in place: those of one backend as `kernels`, the others under `kernel_sources`.

    That backend is the base's own where the table has it, else the one with most rows.
    """
    profile = copy.deepcopy(dict(base))
    main = _main_backend(str(base.get("kernel_source", "vllm")), fits)
    profile.setdefault("kernel_sources", {})
    for fit in fits:
        own = fit.backend == main
        place = profile["kernels"] if own else profile["kernel_sources"].setdefault(fit.backend, {})
        *above, last = fit.fitted.key.split(".")
        for name in above:
            place = place.setdefault(name, {})
        place[last] = dict(fit.fitted.section)
        prefix = "kernels" if own else f"kernel_sources.{fit.backend}"
        profile["provenance"][f"{prefix}.{fit.fitted.key}"] = _provenance(fit)
        for name, origin in (fit.fitted.estimated or {}).items():
            profile["provenance"][f"{prefix}.{fit.fitted.key}.{name}"] = {
                "kind": "estimated",
                "source": origin,
            }
    if main != base.get("kernel_source", "vllm"):
        profile["kernel_source"] = main
    if not profile["kernel_sources"]:
        del profile["kernel_sources"]
    HardwareProfile.from_mapping(profile)
    return profile


def standing_in(base: Mapping[str, Any], gpus: Sequence[str]) -> dict[str, Any]:
    """The profile *base* for a card that has none and is called *gpus*: all of it an estimate."""
    origins = {
        key: {"kind": "estimated", "source": f"that of {base['name']}: {origin['source']}"}
        for key, origin in base["provenance"].items()
    }
    return {**base, "aliases": list(gpus), "provenance": origins}


def _jobs(rows: pd.DataFrame, card: HardwareProfile) -> Iterator[Job]:
    """The classes of kernels that *rows* have, in the order of a profile."""
    for (backend, dtype), part in rows[rows["op"] == "gemm"].groupby(["backend", "dtype"]):
        yield Job("gemm", str(backend), part, partial(_alone, fit_gemm, part, str(dtype), card))
    attention = rows[rows["op"].isin(["attention_prefill", "attention_decode"])]
    for (backend, op, section), part in attention.groupby(["backend", "op", sections_of(attention)]):
        yield Job(str(op), str(backend), part, partial(_alone, fit_attention, part, str(section), card))
    collectives = rows[rows["op"] == "all_reduce"]
    for (backend, eager, _), part in collectives.groupby(["backend", "eager", "n_gpus"]):
        section = "all_reduce_eager" if eager else "all_reduce"
        size = int(part["n_gpus"].iloc[0])
        yield Job(
            "all_reduce", str(backend), part, partial(_alone, fit_all_reduce, part, size, section, card)
        )


def _alone(fit: Callable[..., Fitted], *given: Any) -> list[Fitted]:
    return [fit(*given)]


def _foreign_dtypes(rows: pd.DataFrame, card: HardwareProfile) -> list[str]:
    """A sentence for each dtype of linear layers that the card's datasheet does not have."""
    gemm = rows[rows["op"] == "gemm"]
    return [
        f"gemm {dtype} of {source}: {card.name} does not compute in {dtype}; its dtypes are "
        f"{', '.join(card.peak_flops_per_s)}"
        for source, dtype in gemm[["source", "dtype"]].drop_duplicates().itertuples(index=False)
        if peak_of(card, dtype) is None
    ]


def _copies(rows: pd.DataFrame) -> list[str]:
    """A sentence for each pair of dtypes of one source that have the same times: one is not what it says."""
    faults = []
    for source, part in rows[rows["op"] == "gemm"].groupby("source"):
        wide = part.pivot_table(index=["m", "n", "k"], columns="dtype", values="time_us", aggfunc="first")
        for left, right in combinations(wide.columns, 2):
            both = wide[[left, right]].dropna()
            if len(both) and {left, right} != _ALIKE and (both[left] == both[right]).mean() > _COPIED:
                faults.append(
                    f"gemm of {source}: the {left} rows have the times of the {right} rows; "
                    "one dtype's table stands for the other's"
                )
    return faults


def _worse_than_datasheet(fit: Fit) -> str:
    own, sheet = fit.fitted.errors, fit.fitted.datasheet_errors
    if own.median_pct <= sheet.median_pct:
        return ""
    return (
        f"{fit.label}: the fit is {own.median_pct:.0f} % off on shapes it has not seen, the datasheet's "
        f"roofline {sheet.median_pct:.0f} %; measure more shapes, or more carefully"
    )


def _main_backend(preferred: str, fits: list[Fit]) -> str:
    rows: dict[str, int] = {}
    for fit in fits:
        rows[fit.backend] = rows.get(fit.backend, 0) + len(fit.fitted.measured_s)
    return preferred if preferred in rows else max(rows, key=lambda backend: rows[backend])


def _provenance(fit: Fit) -> dict[str, Any]:
    errors = fit.fitted.errors
    covariance = {name: [rounded(cell, 3) for cell in row] for name, row in fit.fitted.covariance.items()}
    return {
        "kind": "measured",
        "source": f"{_origin(fit.sources)}; {fit.fitted.what}, a tenth of which at a time was held out for "
        f"the errors.",
        "points": errors.points,
        "error_median_pct": rounded(errors.median_pct, 3),
        "error_p90_pct": rounded(errors.p90_pct, 3),
        "covariance": covariance,
    }


def _origin(sources: tuple[str, ...]) -> str:
    """Who measured, and what the rows are called there."""
    words = {name: next((who for start, who in _ORIGINS if name.startswith(start)), "") for name in sources}
    makers = dict.fromkeys(words.values())
    said = [
        ", ".join([*filter(None, [maker]), *(name for name in sources if words[name] == maker)])
        for maker in makers
    ]
    return "; ".join(said)
