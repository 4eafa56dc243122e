"""Attention fitted to its measured times, by the kinds of its cache and products: forms and residuals.

Decode attention depends on a shape by sequences x KV heads, the context and the query heads a KV head;
prefill attention by query heads x new tokens, the span that a token sees and the same ratio. Rows of all
shapes lie on these, so that a shape that was not measured mostly falls between rows of others that were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sim.calibration.fitted import Fitted, residual_section, rounded
from sim.calibration.folds import errors_of, held_out, shapes_of
from sim.calibration.residual_fit import spread_nodes
from sim.calibration.smooth import Coefficient, Smooth, fit_logs, restarted
from sim.calibration.surface import fit_surface
from sim.faults import InputFault
from sim.hardware import AttentionShape, DecodeAttention, HardwareProfile, PrefillAttention
from sim.model import KV_DTYPE_BYTES

if TYPE_CHECKING:
    import pandas as pd

    Kernel = TypeVar("Kernel", DecodeAttention, PrefillAttention)

LEAST_ROWS, LEAST_SHAPES = 24, 6
PAGE_TOKENS = 16
_MOST_SMOOTH_ROWS = 3000
_NODES = {
    "head_sequences": 36, "context_tokens": 24, "heads_per_kv_head": 14,
    "head_tokens": 26, "span_tokens": 18, "new_tokens": 7, "kv_heads": 8,
}  # fmt: skip
_TOLERANCE = 0.02
_HALF = "half of the pairs; tables without cached tokens cannot tell it from the rate"
_LEAST_GAIN_PCT = 0.2
_LEAST_REGROUP_S = 2e-7
_LEAST_CACHE_GAIN = 1.2


@dataclass(frozen=True, eq=False)
class Calls:
    """Timed calls of attention, one entry a row: tokens as floats, times in seconds."""

    batch: np.ndarray
    q_len: np.ndarray
    kv_len: np.ndarray
    shape: AttentionShape
    measured_s: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Calls:
        shape = self.shape
        part = replace(
            shape, heads=np.asarray(shape.heads)[rows], kv_heads=np.asarray(shape.kv_heads)[rows],
            head_dim=np.asarray(shape.head_dim)[rows],
        )  # fmt: skip
        return Calls(self.batch[rows], self.q_len[rows], self.kv_len[rows], part, self.measured_s[rows])

    @property
    def contexts(self) -> np.ndarray:
        """Tokens that a decoding sequence reads, its own among them, in whole pages."""
        return np.ceil((self.kv_len + 1.0) / PAGE_TOKENS) * PAGE_TOKENS

    @property
    def pairs(self) -> tuple[np.ndarray, int]:
        """The number of each row's pair (heads, KV heads), and how many there are."""
        numbers = shapes_of([np.asarray(self.shape.heads), np.asarray(self.shape.kv_heads)])
        return numbers, int(numbers.max()) + 1


def calls_of(rows: pd.DataFrame) -> Calls:
    """The *rows* of a kernel table, of one operation and one `kv_dtype`."""
    at = {
        name: rows[name].to_numpy(dtype=float)
        for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "time_us")
    }
    width = float(KV_DTYPE_BYTES[str(rows["kv_dtype"].iloc[0])])
    shape = AttentionShape(at["heads"], at["kv_heads"], at["head_dim"], width)
    return Calls(at["batch"], at["q_len"], at["kv_len"], shape, at["time_us"] * 1e-6)


def decode_s(kernel: DecodeAttention, calls: Calls) -> np.ndarray:
    """What *kernel* says of these calls, each measured in a loop, in s."""
    return kernel.looped_s(calls.batch, calls.batch * calls.contexts, calls.shape)


def prefill_s(kernel: PrefillAttention, calls: Calls) -> np.ndarray:
    """What *kernel* says of these calls, in s."""
    new = calls.batch * calls.q_len
    return kernel.seconds(new, new * calls.kv_len, new * calls.q_len, calls.shape)


def attention_s(kernel: DecodeAttention | PrefillAttention, calls: Calls) -> np.ndarray:
    """What *kernel*, of either kind, says of these calls, in s."""
    if isinstance(kernel, DecodeAttention):
        return decode_s(kernel, calls)
    return prefill_s(kernel, calls)


def section_of(op: str, dtype: str, kv_dtype: str) -> str:
    """The section of a profile's kernels that rows of *op* computed in *dtype* over *kv_dtype* belong to."""
    if KV_DTYPE_BYTES[kv_dtype] > 1:
        return op
    return f"{op}_fp8_compute" if dtype == "fp8" and op == "attention_prefill" else f"{op}_fp8"


def sections_of(rows: pd.DataFrame) -> pd.Series:
    """The section of each of the *rows* of a kernel table."""
    names = rows[["op", "dtype", "kv_dtype"]].apply(tuple, axis=1)
    return names.map({name: section_of(*name) for name in names.unique()}).rename("section")


def fit_attention(rows: pd.DataFrame, section: str, card: HardwareProfile) -> Fitted:
    """`fit_decode` or `fit_prefill`, whatever *section* is."""
    fit = fit_decode if section.startswith("attention_decode") else fit_prefill
    return fit(rows, section, card)


def fit_decode(rows: pd.DataFrame, section: str, card: HardwareProfile) -> Fitted:
    """Decode attention of one backend and kind of cache. Raises InputFault for too few rows or shapes."""
    calls = calls_of(rows)
    groups, what = _groups(calls, section, calls.batch, "batch size")
    smooth = _fit_decode(calls, card, _decode_coefficients(calls, card))

    def fit(known: Calls) -> DecodeAttention:
        start = restarted(_named(_decode_coefficients(known, card), smooth.values), smooth.values)
        return _decode(_fit_smooth(known, start, _decode, decode_s).values)

    kernel = _decode(smooth.values)
    datasheet_s = calls.batch * calls.contexts * calls.shape.kv_bytes_per_token
    chosen, predicted_s = _chosen(kernel, calls, groups, fit, [_with_decode_residual])
    return _fitted(
        section, chosen, smooth, calls, predicted_s, datasheet_s / card.memory_bandwidth_bytes_per_s, what
    )


def fit_prefill(rows: pd.DataFrame, section: str, card: HardwareProfile) -> Fitted:
    """Prefill attention of one backend and kind of cache. Raises InputFault for too few rows or shapes.

    The causal weight is fitted where some rows have cached tokens, and half of the pairs otherwise.
    """
    calls = calls_of(rows)
    groups, what = _groups(calls, section, calls.q_len, "chunk length")
    peak = _peak(card, str(rows["dtype"].iloc[0]))
    smooth = _fit_smooth(calls, _prefill_coefficients(calls, peak), _prefill, prefill_s)

    def fit(known: Calls) -> PrefillAttention:
        start = restarted(_named(_prefill_coefficients(known, peak), smooth.values), smooth.values)
        return _prefill(_fit_smooth(known, start, _prefill, prefill_s).values)

    kernel = _prefill(smooth.values)
    shape = calls.shape
    pairs = calls.batch * calls.q_len * (calls.kv_len + 0.5 * calls.q_len)
    datasheet_s = 4.0 * shape.heads * shape.head_dim * pairs / peak
    chosen, predicted_s = _chosen(kernel, calls, groups, fit, [_with_prefill_residual, _with_kv_residual])
    return _fitted(section, chosen, smooth, calls, predicted_s, np.asarray(datasheet_s), what)


def _groups(calls: Calls, section: str, otherwise: np.ndarray, other: str) -> tuple[np.ndarray, str]:
    """What is held out together: a pair (heads, KV heads), or *otherwise* where there are hardly any."""
    groups, count = calls.pairs
    what = f"{count} pairs (heads, KV heads)"
    if count < LEAST_SHAPES:
        groups = shapes_of([otherwise, groups])
        what += f", held out by {other}"
    shapes = int(groups.max()) + 1
    if len(groups) < LEAST_ROWS or shapes < LEAST_SHAPES:
        raise InputFault(
            f"{section}: {len(groups)} rows of {shapes} shapes are too few for a fit; "
            f"it needs {LEAST_ROWS} of {LEAST_SHAPES}"
        )
    return groups, what


def _decode(values: Mapping[str, Any]) -> DecodeAttention:
    return DecodeAttention(**values)


def _prefill(values: Mapping[str, Any]) -> PrefillAttention:
    return PrefillAttention(**values)


def _fit_smooth(
    calls: Calls,
    coefficients: list[Coefficient],
    kind: Callable[[Mapping[str, Any]], Kernel],
    seconds: Callable[[Kernel, Calls], np.ndarray],
) -> Smooth:
    """The smooth form's coefficients through a sample of *calls*."""
    used = np.arange(len(calls.batch))
    if len(used) > _MOST_SMOOTH_ROWS:
        used = np.random.default_rng(1).choice(used, _MOST_SMOOTH_ROWS, replace=False)
    part = calls[used]
    shapes, _ = part.pairs

    def predicted(values: Mapping[str, float]) -> np.ndarray:
        return seconds(kind(values), part)

    return fit_logs(predicted, part.measured_s, coefficients, shapes)


def _fit_decode(calls: Calls, card: HardwareProfile, coefficients: list[Coefficient]) -> Smooth:
    """Cache and regrouping stay in the form only where the rows show them."""
    smooth = _fit_smooth(calls, coefficients, _decode, decode_s)
    needless = set()
    if smooth.values["regroup_s"] < _LEAST_REGROUP_S:
        needless |= {"regroup_s"}
    if smooth.values["cached_bytes_per_s"] < _LEAST_CACHE_GAIN * smooth.values["bytes_per_s"]:
        needless |= {"cached_bytes_per_s", "cached_below_bytes"}
    if not needless:
        return smooth
    kept = [coefficient for coefficient in coefficients if coefficient.name not in needless]
    return _fit_smooth(calls, kept, _decode, decode_s)


def _decode_coefficients(calls: Calls, card: HardwareProfile) -> list[Coefficient]:
    bytes_per_s, least_s = card.memory_bandwidth_bytes_per_s, float(calls.measured_s.min())
    return [
        Coefficient("bytes_per_s", 0.85 * bytes_per_s, 0.1 * bytes_per_s, 0.995 * bytes_per_s),
        Coefficient("head_sequence_s", 1e-8, 1e-11, 1e-6),
        Coefficient("exponent", 1.0, 0.5, 20.0),
        Coefficient("overhead_s", least_s, 0.05 * least_s, 3.0 * least_s),
        Coefficient("regroup_s", 1e-6, 1e-8, 2e-5),
        Coefficient("cached_below_bytes", card.l2_bytes, 0.5 * card.l2_bytes, 2.0 * card.l2_bytes),
        Coefficient("cached_bytes_per_s", 2.0 * bytes_per_s, 0.2 * bytes_per_s, 20.0 * bytes_per_s),
    ]


def _prefill_coefficients(calls: Calls, peak: float) -> list[Coefficient]:
    least_s = float(calls.measured_s.min())
    found = [
        Coefficient("flops_per_s", 0.6 * peak, 0.02 * peak, 0.995 * peak),
        Coefficient("head_token_s", 3e-10, 1e-13, 1e-7),
        Coefficient("exponent", 0.9, 0.5, 20.0),
        Coefficient("overhead_s", least_s, 0.05 * least_s, 3.0 * least_s),
    ]
    if calls.kv_len.any():
        found.append(Coefficient("causal_weight", 0.5, 0.25, 4.0))
    return found


def _named(coefficients: list[Coefficient], names: Mapping[str, float]) -> list[Coefficient]:
    return [coefficient for coefficient in coefficients if coefficient.name in names]


def _peak(card: HardwareProfile, dtype: str) -> float:
    for name in (dtype, "bf16", "fp16"):
        if name in card.peak_flops_per_s:
            return card.peak_flops_per_s[name]
    raise InputFault(f"attention_prefill: {card.name} has no peak of {dtype} to fit below")


def _chosen(
    kernel: Kernel,
    calls: Calls,
    groups: np.ndarray,
    fit: Callable[[Calls], Kernel],
    steps: Sequence[Callable[[Kernel, Calls], Kernel]],
) -> tuple[Kernel, np.ndarray]:
    """*kernel* after as many *steps*, each another table of residuals, as hold out better; and that, in s."""
    held_s = np.empty((len(steps) + 1, len(groups)))

    def predict(known: np.ndarray, away: np.ndarray) -> np.ndarray:
        part = fit(calls[known])
        held_s[0, away] = attention_s(part, calls[away])
        for number, step in enumerate(steps, start=1):
            part = step(part, calls[known])
            held_s[number, away] = attention_s(part, calls[away])
        return held_s[-1, away]

    held_out(groups, predict)
    scores = [errors_of(predicted_s, calls.measured_s).score for predicted_s in held_s]
    best = 0
    for number in range(1, len(scores)):
        if scores[number] < scores[best] - _LEAST_GAIN_PCT:
            best = number
    for step in steps[:best]:
        kernel = step(kernel, calls)
    return kernel, held_s[best]


def _with_decode_residual(kernel: DecodeAttention, calls: Calls) -> DecodeAttention:
    """*kernel* with the table of what it misses, raised where a longer context took less.

    The engine's batches only grow, so a call that gets faster as its contexts grow is noise to them; the
    table is for the head width and cache of *calls*.
    """
    shape = calls.shape
    at = {
        "head_sequences": np.asarray(calls.batch * shape.kv_heads),
        "context_tokens": calls.contexts,
        "heads_per_kv_head": np.asarray(shape.heads_per_kv_head),
    }
    surface = fit_surface(at, np.log(calls.measured_s / decode_s(kernel, calls)), _nodes(at))
    works, contexts = surface.axes["head_sequences"], surface.axes["context_tokens"]
    one = AttentionShape(1.0, 1.0, float(np.median(shape.head_dim)), shape.kv_element_bytes)
    smooth_s = kernel.seconds(works[:, None], works[:, None] * contexts, one)
    smooth_s = smooth_s.reshape(*smooth_s.shape, *[1] * (surface.logs.ndim - 2))
    rising_s = np.maximum.accumulate(smooth_s * np.exp(surface.logs), axis=1)
    raised = replace(surface, logs=np.log(rising_s / smooth_s))
    return replace(kernel, residual=raised.residuals(_TOLERANCE))


def _with_prefill_residual(kernel: PrefillAttention, calls: Calls) -> PrefillAttention:
    """*kernel* with the table of what it misses, by the number of thread blocks and what each runs over."""
    shape = calls.shape
    at = {
        "head_tokens": np.asarray(calls.batch * calls.q_len * shape.heads),
        "span_tokens": calls.q_len + calls.kv_len / kernel.causal_weight,
        "heads_per_kv_head": np.asarray(shape.heads_per_kv_head),
    }
    log_ratio = np.log(calls.measured_s / prefill_s(kernel, calls))
    return replace(kernel, residual=fit_surface(at, log_ratio, _nodes(at)).residuals(_TOLERANCE))


def _with_kv_residual(kernel: PrefillAttention, calls: Calls) -> PrefillAttention:
    """*kernel* with the table of what it still misses, by new tokens and the KV heads they are written to."""
    if len(np.unique(np.asarray(calls.shape.kv_heads))) == 1:
        return kernel
    at = {"new_tokens": calls.batch * calls.q_len, "kv_heads": np.asarray(calls.shape.kv_heads)}
    log_ratio = np.log(calls.measured_s / prefill_s(kernel, calls))
    return replace(kernel, kv_residual=fit_surface(at, log_ratio, _nodes(at)).residuals(_TOLERANCE / 2))


def _nodes(at: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The grid's nodes: the values that rows have, thinned; an axis with one value stays out."""
    return {
        name: spread_nodes(values, _NODES[name])
        for name, values in at.items()
        if name not in ("heads_per_kv_head", "kv_heads") or len(np.unique(values)) > 1
    }


def _fitted(
    section: str,
    kernel: DecodeAttention | PrefillAttention,
    smooth: Smooth,
    calls: Calls,
    predicted_s: np.ndarray,
    datasheet_s: np.ndarray,
    what: str,
) -> Fitted:
    mapping: dict[str, object] = {
        field.name: rounded(getattr(kernel, field.name))
        for field in fields(kernel)
        if not field.name.endswith("residual") and getattr(kernel, field.name) != field.default
    }
    guessed = isinstance(kernel, PrefillAttention) and "causal_weight" not in smooth.values
    if isinstance(kernel, PrefillAttention):
        mapping["causal_weight"] = rounded(kernel.causal_weight)
        if kernel.kv_residual is not None:
            mapping["kv_residual"] = residual_section(kernel.kv_residual)
    if kernel.residual is not None:
        mapping["residual"] = residual_section(kernel.residual)
    return Fitted(
        key=section,
        section=mapping,
        covariance=smooth.covariance,
        measured_s=calls.measured_s,
        predicted_s=predicted_s,
        datasheet_s=datasheet_s,
        shapes=calls.pairs[1],
        what=what,
        estimated={"causal_weight": _HALF} if guessed else None,
    )
