"""Kernel timings that others have published, in their own columns, made one tidy table.

Vidur (github.com/microsoft/vidur, MIT): data/profiling/**/{mlp,attention,all_reduce}.csv; medians in
milliseconds with a resolution of 1 us, without launch gaps; 16-bit floats. AIConfigurator
(github.com/ai-dynamo/aiconfigurator, Apache-2.0): systems/data/<system>/<backend>/<version>/*_perf.txt (or
.parquet); latencies in milliseconds, of replayed CUDA graphs where the source does not say eager; a message's
size is its number of elements. What is no causal attention over a whole context, no plain linear layer, no
all-reduce in one node is left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.calibration.table import KernelTable, profile_of, table_of
from sim.calibration.table_files import parse_csv, read_parquet, text_of
from sim.faults import InputFault

if TYPE_CHECKING:
    import pandas as pd

_US_PER_MS = 1e3
_MEDIAN = "time_stats.{}.median"
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "bf16", "int8_wo": "int8", "int4_wo": "int4"}
_NAMES = {"framework", "op_name", "kernel_source", "collective", "is_prefill", "use_gated_mlp"} | {
    f"{what}_dtype" for what in ("gemm", "attn", "kv_cache", "allreduce", "nccl")
}
_SHOWN = 20
_ELEMENT_BYTES = {"int8": 1, "fp8": 1}


@dataclass(frozen=True)
class Layout:
    """One kind of published file: the columns that tell it, and what makes its rows tidy.

    `tidy` takes the rows, indexed by line, and the file's path; it gives rows with the contract's columns
    (without `gpu`) and how many it left out, by reason.
    """

    name: str
    columns: tuple[str, ...]
    tidy: Callable[[pd.DataFrame, Path], tuple[pd.DataFrame, Mapping[str, int]]]


def read_published(
    origin: str, paths: Iterable[str | Path], gpu: str
) -> tuple[KernelTable, Mapping[str, int]]:
    """The files *paths* of *origin* (a key of `LAYOUTS`), of the card *gpu*, as one table.

    With it, how many rows were left out, by reason. Raises InputFault with everything that is wrong: files of
    no known layout, pointers in place of data, another card in a file's `device`, what `read_tables` refuses.
    """
    card = profile_of(gpu)
    faults: list[str] = []
    left_out: dict[str, int] = {}
    cells: dict[Path, pd.DataFrame] = {}
    for path in map(Path, paths):
        try:
            published = _rows(path)
            layout = _layout(published, origin, path)
            rows, without = layout.tidy(_with_numbers(published, layout, path), path)
            faults += _device_faults(published, card.name, path)
        except InputFault as fault:
            faults += fault.faults
            continue
        cells[path] = rows.assign(gpu=card.name)
        for reason, count in without.items():
            left_out[reason] = left_out.get(reason, 0) + count
    if not cells:
        raise InputFault(faults or f"name at least one file of {origin}")
    table = table_of({path: rows for path, rows in cells.items() if len(rows)}, card, faults)
    return table, {reason: count for reason, count in (left_out | table.skipped).items() if count}


def _rows(path: Path) -> pd.DataFrame:
    try:
        content = text_of(path.read_bytes(), path)
    except OSError as error:
        raise InputFault(f"{path} cannot be read: {error.strerror}") from None
    if content.startswith(b"version https://git-lfs"):
        raise InputFault(f"{path} is a Git LFS pointer, not the data; fetch them with git lfs pull")
    return read_parquet(content, path) if path.suffix == ".parquet" else parse_csv(content, path)


def _layout(rows: pd.DataFrame, origin: str, path: Path) -> Layout:
    layouts = LAYOUTS[origin]
    for layout in layouts:
        if set(layout.columns) <= set(rows.columns):
            return layout
    forms = "; ".join(f"{layout.name}: {', '.join(layout.columns)}" for layout in layouts)
    raise InputFault(
        f"{path}:1: no table of {origin} that is known here; the columns are {', '.join(rows.columns[:12])}"
        f"{', ...' if len(rows.columns) > 12 else ''}; known are {forms}"
    )


def _with_numbers(rows: pd.DataFrame, layout: Layout, path: Path) -> pd.DataFrame:
    """*rows* with floats in the layout's columns that are no names. Raises InputFault for other cells."""
    import pandas as pd

    names = [name for name in layout.columns if name not in _NAMES]
    numbers = rows[names].apply(pd.to_numeric, errors="coerce").astype(float)
    faults = [
        f"{path}:{line}: {name} must be a number (got {rows[name][line]})"
        for name in names
        for line in rows.index[numbers[name].isna() & rows[name].notna()][:_SHOWN]
    ]
    if faults:
        raise InputFault(faults)
    return rows.assign(**numbers)


def _device_faults(rows: pd.DataFrame, card: str, path: Path) -> list[str]:
    """A sentence for each device of the file that is known, and is not *card*."""
    faults = []
    for device in rows["device"].dropna().unique() if "device" in rows else ():
        try:
            found = profile_of(str(device)).name
        except InputFault:
            continue  # marketing names vary; who names the card knows it
        if found != card:
            faults.append(f"{path}: the rows are of {device} ({found}), not of {card}")
    return faults


def _vidur_linear(rows: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, Mapping[str, int]]:
    """A layer's four linear layers under tensor parallelism: qkv, attention output, gate and up, down."""
    import pandas as pd

    head_dim = rows["n_embd"] // rows["n_head"]
    split = rows["num_tensor_parallel_workers"]
    gate = rows["use_gated_mlp"].astype(str).str.lower().map({"true": 2}).fillna(1)
    hidden, inner = rows["n_embd"], rows["n_expanded_embd"] // split
    shapes = {
        "attn_pre_proj": ((rows["n_head"] + 2 * rows["n_kv_head"]) * head_dim // split, hidden),
        "attn_post_proj": (hidden, hidden // split),
        "mlp_up_proj": (gate * inner, hidden),
        "mlp_down_proj": (hidden, inner),
    }
    parts = [
        pd.DataFrame({"m": rows["num_tokens"], "n": n, "k": k, "time_us": _us(rows, name)})
        for name, (n, k) in shapes.items()
        if _MEDIAN.format(name) in rows
    ]
    return _timed(pd.concat(parts).assign(op="gemm", dtype="fp16", source=f"vidur-{path.parent.name}"), {})


def _vidur_attention(rows: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, Mapping[str, int]]:
    is_prefill = rows["is_prefill"].astype(str).str.lower() == "true"
    split = rows["num_tensor_parallel_workers"]
    times = _us(rows, "attn_prefill").where(is_prefill, _us(rows, "attn_decode"))
    tidy = rows[["batch_size", "prefill_chunk_size", "kv_cache_size"]].set_axis(
        ["batch", "q_len", "kv_len"], axis="columns"
    )
    tidy = tidy.assign(
        op=is_prefill.map({True: "attention_prefill", False: "attention_decode"}),
        source=f"vidur-{path.parent.name}",
        dtype="fp16",
        kv_dtype="fp16",
        heads=rows["n_q_head"] // split,
        kv_heads=(rows["n_kv_head"] // split).clip(lower=1),
        head_dim=rows["n_embd"] // rows["n_q_head"],
        time_us=times,
        q_len=tidy["q_len"].where(is_prefill, 1),
    )
    mixed = rows.get("is_mixed_batch", is_prefill & False).astype(str).str.lower() == "true"
    return _timed(tidy, {"prefill and decode in one batch": mixed})


def _vidur_all_reduce(rows: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, Mapping[str, int]]:
    tidy = rows[["size", "num_workers"]].set_axis(["bytes", "n_gpus"], axis="columns")
    tidy = tidy.assign(op="all_reduce", dtype="fp16", source=f"vidur-{path.parent.name}")
    other = rows["collective"] != "all_reduce"
    beyond = ~other & (rows["devices_per_node"] != rows["num_workers"])
    out = {"another collective": other, "an all-reduce over several nodes": beyond}
    return _timed(tidy.assign(time_us=_us(rows, "all_reduce")), out)


def _aic_gemm(rows: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, Mapping[str, int]]:
    tidy = rows[["m", "n", "k"]].assign(op="gemm", dtype=_dtypes(rows["gemm_dtype"]))
    return _timed(tidy.assign(source=_framework(rows), time_us=_ms(rows)), {})


def _aic_attention(rows: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, Mapping[str, int]]:
    """Prompts of isl tokens after step cached ones, or one token for each sequence after step ones."""
    prefill = rows["op_name"].astype(str).str.startswith("context")
    tidy = rows[["batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"]].set_axis(
        ["batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"], axis="columns"
    )
    tidy = tidy.assign(
        op=prefill.map({True: "attention_prefill", False: "attention_decode"}),
        source=_framework(rows),
        dtype=_dtypes(rows["attn_dtype"]),
        kv_dtype=_dtypes(rows["kv_cache_dtype"]),
        time_us=_ms(rows),
    )
    out = {"attention that is not causal over one context": ~rows["op_name"].isin(_AIC_ATTENTION)}
    if "window_size" in rows:
        out["attention over a window"] = rows["window_size"].fillna(0) > 0
    if "beam_width" in rows:
        out["beam search"] = rows["beam_width"] > 1
    return _timed(tidy, out)


_AIC_ATTENTION = ("context_attention", "generation_attention")


def _aic_all_reduce(rows: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, Mapping[str, int]]:
    dtype = _dtypes(rows["allreduce_dtype"])
    source = "aiconfigurator-custom_allreduce-" + rows["kernel_source"].astype(str).str.lower()
    return _timed(_messages(rows, dtype).assign(source=source), {})


def _aic_nccl(rows: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, Mapping[str, int]]:
    tidy = _messages(rows, _dtypes(rows["nccl_dtype"])).assign(source="aiconfigurator-nccl-nccl")
    return _timed(tidy, {"another collective": rows["op_name"] != "all_reduce"})


def _messages(rows: pd.DataFrame, dtype: pd.Series) -> pd.DataFrame:
    width = dtype.map(_ELEMENT_BYTES).fillna(2)
    tidy = rows[["message_size", "num_gpus"]].set_axis(["bytes", "n_gpus"], axis="columns")
    return tidy.assign(op="all_reduce", dtype=dtype, bytes=tidy["bytes"] * width, time_us=_ms(rows))


def _timed(tidy: pd.DataFrame, left_out: Mapping[str, pd.Series]) -> tuple[pd.DataFrame, Mapping[str, int]]:
    """*tidy* without the rows of *left_out*, and without those that a profiler's clock gave no time."""
    untimed = {"no time, or one below the profiler's resolution": ~(tidy["time_us"] > 0)}
    without = {**left_out, **untimed}
    counts = {}
    kept = np.ones(len(tidy), dtype=bool)
    for reason, rows in without.items():
        counts[reason] = int((kept & rows).sum())
        kept &= ~rows.to_numpy()
    return tidy[kept], counts


def _us(rows: pd.DataFrame, name: str) -> pd.Series:
    import pandas as pd

    column = _MEDIAN.format(name)
    if column not in rows:
        return pd.Series(float("nan"), index=rows.index)
    return pd.to_numeric(rows[column], errors="coerce") * _US_PER_MS


def _ms(rows: pd.DataFrame) -> pd.Series:
    import pandas as pd

    return pd.to_numeric(rows["latency"], errors="coerce") * _US_PER_MS


def _dtypes(names: pd.Series) -> pd.Series:
    return names.astype(str).replace(_DTYPES)


def _framework(rows: pd.DataFrame) -> pd.Series:
    return "aiconfigurator-" + rows["framework"].astype(str).str.lower()


_VIDUR_ALWAYS = ("n_embd", "n_kv_head", "num_tensor_parallel_workers")
_AIC_SHAPE = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
_AIC_ALWAYS = ("framework", "latency")
LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "vidur": (
        Layout(
            "mlp.csv",
            (*_VIDUR_ALWAYS, "n_head", "n_expanded_embd", "num_tokens", "use_gated_mlp"),
            _vidur_linear,
        ),
        Layout(
            "attention.csv",
            (*_VIDUR_ALWAYS, "n_q_head", "batch_size", "prefill_chunk_size", "kv_cache_size", "is_prefill"),
            _vidur_attention,
        ),
        Layout(
            "all_reduce.csv",
            (_MEDIAN.format("all_reduce"), "num_workers", "size", "collective", "devices_per_node"),
            _vidur_all_reduce,
        ),
    ),
    "aiconfigurator": (
        Layout("gemm_perf", (*_AIC_ALWAYS, "gemm_dtype", "m", "n", "k"), _aic_gemm),
        Layout(
            "context_attention_perf, generation_attention_perf",
            (*_AIC_ALWAYS, "op_name", "attn_dtype", "kv_cache_dtype", *_AIC_SHAPE),
            _aic_attention,
        ),
        Layout(
            "custom_allreduce_perf",
            ("latency", "kernel_source", "allreduce_dtype", "num_gpus", "message_size"),
            _aic_all_reduce,
        ),
        Layout("nccl_perf", ("latency", "op_name", "nccl_dtype", "num_gpus", "message_size"), _aic_nccl),
    ),
}
"""By origin: the layouts of its files that are read."""
