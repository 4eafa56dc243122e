"""The memory ledger against what engines print when they start.

Questions of a log, each answered where the log and the catalogue suffice: the tokens of the memory that it
says the KV cache has; the blocks in its CPU swap space; its "maximum concurrency"; the tokens from the card,
the model and the engine's settings alone; and whether what the engine refused is refused here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sim.faults import InputFault
from sim.hardware import MemoryLedger
from sim.scenario import entry, load
from sim.simulation import ledger_of
from sim.validation.engines import engine_file
from sim.validation.kv_logs import Log, read_logs
from sim.validation.names import card_of, model_of

LOGGED_POOL = "tokens of the logged memory"
SWAP = "blocks of the swap space"
CONCURRENCY = "maximum concurrency"
CARD = "tokens from the card alone"
REFUSAL = "refused"
CHECKS = (LOGGED_POOL, SWAP, CONCURRENCY, CARD, REFUSAL)

EXACT_PCT = 0.2
CARD_PCT = 5.0
_PRINTED = 0.005 + 1e-9  # two decimals
_OLDEST = (0, 5)
_HALVES = {
    "": "auto",
    "auto": "auto",
    "auto(bf16)": "auto",
    "bf16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
}
_WEIGHTS = {**_HALVES, "fp8": "fp8", "int8": "int8", "int4": "int4", "awq int4": "int4"}
_KV = {**_HALVES, **{name: name for name in ("fp8", "fp8_e4m3", "fp8_e5m2", "int8")}}
_CARDS = {"A100": ("a100-40gb-sxm", "a100-80gb-sxm"), "H100": ("h100-80gb-sxm",)}
_ANY_CARD = "l4-24gb-pcie"  # for a card without profile: only the memory counts, which the log says
_STAND_INS = {
    # Beyond the catalogue, and for their KV cache alone: layers, query heads, KV heads, head_dim.
    "qwen3-235b-a22b": (94, 64, 4, 128),
    "opt-125m": (12, 12, 12, 64),
    "gpt-oss-120b": (18, 64, 8, 64),  # of 36 layers; the others keep 128 tokens
}
_REMARKS = {
    "K01": "the log says an activation peak of 9.37 GiB; the model's at the defaults is 1.26 (vllm#10511)",
    "K09": "likely the memory of one of four workers, and the tokens of the one with the least",
    "K31": "the log's own arguments say max_num_seqs 192, which the row does not tell",
    "K55": "a hybrid model, whose tokens and concurrency do not divide into each other",
}
_STAND_IN_LENGTHS = {"gpt-oss-120b": 131072}
_ANY_LENGTH = 10**8


@dataclass(frozen=True)
class Check:
    """One question: what the log says, what the ledger does, and whether that is near enough.

    error_pct: of ours over the log's; None where the answer is yes or no.
    """

    id: str
    check: str
    logged: float
    ours: float
    error_pct: float | None
    holds: bool


@dataclass(frozen=True)
class Report:
    """All answers; *skipped* says (id, check, reason) where there is none."""

    checks: Sequence[Check]
    skipped: Sequence[tuple[str, str, str]]

    def as_dict(self) -> dict[str, Any]:
        """As a JSON-able document."""
        return {
            "rows": [asdict(check) for check in self.checks],
            "summary": self.summary(),
            "skipped": [dict(zip(("id", "check", "reason"), row, strict=True)) for row in self.skipped],
        }

    def summary(self) -> dict[str, dict[str, float | int | None]]:
        """By check: how many, how many hold, and the median error."""
        found = {}
        for name in CHECKS:
            rows = [check for check in self.checks if check.check == name]
            errors = [abs(row.error_pct) for row in rows if row.error_pct is not None]
            median = statistics.median(errors) if errors else None
            found[name] = {"n": len(rows), "hold": sum(row.holds for row in rows), "median_abs_pct": median}
        return found


def check_logs(path: str | Path) -> Report:
    """Every question to every log of the table *path*. Raises InputFault if it is none."""
    checks: list[Check] = []
    skipped: list[tuple[str, str, str]] = []
    for log in read_logs(path):
        for check, answer in _answers(log):
            if isinstance(answer, str):
                skipped.append((log.id, check, answer))
            else:
                checks.append(answer)
    return Report(checks, skipped)


def _answers(log: Log) -> Iterator[tuple[str, Check | str]]:
    if log.pool_bytes is not None and log.tokens is not None:
        yield LOGGED_POOL, _guarded(_tokens_of_pool, log)
    if log.cpu_blocks is not None:
        yield SWAP, _guarded(_blocks_of_swap, log)
    if log.concurrency is not None and log.tokens is not None and log.max_model_len:
        yield CONCURRENCY, _guarded(_concurrency, log)
    if log.tokens is not None and not (log.refused and log.pool_bytes is None):
        yield CARD, _guarded(_tokens_of_card, log)
    if log.refused:
        yield REFUSAL, _guarded(_refusal, log)


def _guarded(answer: Callable[[Log], Check | str], log: Log) -> Check | str:
    try:
        return answer(log)
    except InputFault as fault:
        return "; ".join(fault.faults)


def _tokens_of_pool(log: Log) -> Check:
    """Blocks of the logged memory, times their size; the log rounds the memory to its last digit."""
    assert log.pool_bytes is not None
    assert log.tokens is not None
    low, ours, high = (
        _ledger(log, kv_cache_memory_bytes=log.pool_bytes + off).kv_cache_tokens
        for off in (-log.pool_digit_bytes, 0.0, log.pool_digit_bytes)
    )
    error = _error_pct(ours, log.tokens)
    holds = low <= log.tokens <= high or abs(error) <= EXACT_PCT
    return Check(log.id, LOGGED_POOL, log.tokens, ours, error, holds)


def _blocks_of_swap(log: Log) -> Check:
    """A cache of the swap space's size: its blocks test the bytes of a block alone."""
    assert log.cpu_blocks is not None
    ours = _ledger(log, kv_cache_memory_bytes=log.swap_bytes).num_gpu_blocks
    return Check(log.id, SWAP, log.cpu_blocks, ours, _error_pct(ours, log.cpu_blocks), ours == log.cpu_blocks)


def _concurrency(log: Log) -> Check:
    """The logged tokens over the longest context, on any model: they are the same of every one."""
    assert log.tokens is not None
    assert log.concurrency is not None
    size = log.block_size if log.tokens % log.block_size == 0 else 1
    pool = {"num_gpu_blocks_override": log.tokens // size, "block_size": size}
    ours = _ledger(
        log, _stand_in("any", 1, 64, 64, 1), max_model_len=log.max_model_len, **pool
    ).max_concurrency
    holds = abs(ours - log.concurrency) <= _PRINTED
    return Check(log.id, CONCURRENCY, log.concurrency, ours, _error_pct(ours, log.concurrency), holds)


def _tokens_of_card(log: Log) -> Check | str:
    assert log.tokens is not None
    if not log.is_vllm:
        return f"{log.engine} shares memory out in its own way"
    if log.version and log.version < _OLDEST:
        return "versions before 0.5 took what their allocator had cached for activations (vllm#2031)"
    if log.tp is None:
        return "the log does not say over how many GPUs"
    if not log.model:
        return "the log names no model"
    ours = _ledger(log, _named(log), _card(log), **_settings(log)).kv_cache_tokens
    error = _error_pct(ours, log.tokens)
    return Check(log.id, CARD, log.tokens, ours, error, abs(error) <= CARD_PCT)


def _refusal(log: Log) -> Check | str:
    """Whether the logged memory or tokens are refused for the logged context, or the model's longest."""
    pool: dict[str, Any] = {} if log.max_model_len is None else {"max_model_len": log.max_model_len}
    if log.pool_bytes is not None:
        pool["kv_cache_memory_bytes"] = max(1.0, log.pool_bytes)
    elif log.tokens is not None:
        pool["num_gpu_blocks_override"] = log.tokens // log.block_size
    else:
        return "the log tells neither memory nor tokens of the KV cache"
    try:
        card = _card(log)
    except InputFault:
        card = None
    refused = not _ledger(log, card=card, **pool).fits
    return Check(log.id, REFUSAL, 1, int(refused), None, refused)


def _error_pct(ours: float, logged: float | None) -> float:
    return 100.0 * (ours / logged - 1.0) if logged else float("nan")


def _ledger(log: Log, model: Any = None, card: Any = None, **engine: Any) -> MemoryLedger:
    """The ledger of a scenario; without *card* on one large enough, without *model* of the log's shape."""
    split = {"tensor_parallel_size": log.tp or 1, "block_size": log.block_size}
    cache = {"kv_cache_dtype": _known(_KV, log.kv_dtype, "KV cache")}
    document = {
        "name": log.id,
        "hardware": card or {"base": "h100-80gb-sxm", "memory_bytes": 10**15},
        "model": model or _shape(log),
        "engine": {**split, **cache, **engine},
        "workload": {"lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1}},
        "load": {"concurrency": 1},
    }
    return ledger_of(load(document))


def _settings(log: Log) -> dict[str, Any]:
    """The engine section of a log: a file by its version, and what the log says."""
    version = log.version and (min(log.version, (0, 7)) if log.is_v0 else max(log.version, (0, 8)))
    base = engine_file("vllm", ".".join(map(str, version)))
    settings: dict[str, Any] = {"base": base, **log.settings}
    settings["weight_dtype"] = _known(_WEIGHTS, log.weight_dtype, "weight")
    for key, value in (("gpu_memory_utilization", log.utilization), ("max_model_len", log.max_model_len)):
        if value is not None:
            settings[key] = value
    return settings


def _card(log: Log) -> dict[str, Any] | str:
    """The log's card, with the memory that it prints; of two of one name the smaller that holds the cache."""
    named = _CARDS.get(log.gpu.strip(), ())
    held = [name for name in named if _memory_bytes(name) > (log.pool_bytes or 0.0)]
    if not named and log.gpu_bytes is None:
        return card_of(log.gpu)
    try:
        base = held[0] if held else card_of(log.gpu)
    except InputFault:
        base = _ANY_CARD
    return base if log.gpu_bytes is None else {"base": base, "memory_bytes": log.gpu_bytes}


def _memory_bytes(card: str) -> float:
    return float(entry("hardware", card)["memory_bytes"])


def _named(log: Log) -> str:
    """The log's model of the catalogue."""
    return model_of(log.model.replace(" ", "-").replace("Llama2", "Llama-2"))


def _shape(log: Log) -> Any:
    """The log's model of the catalogue, or a stand-in that has its KV cache alone."""
    if not log.model:
        raise InputFault("the log names no model")
    plain = log.model.rpartition("/")[2].lower().removesuffix("-fp8")
    return _stand_in(plain, *_STAND_INS[plain]) if plain in _STAND_INS else _named(log)


def _stand_in(name: str, layers: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    sizes = {"hidden_size": heads * head_dim, "intermediate_size": heads * head_dim, "vocab_size": 1024}
    shape = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    length = _STAND_IN_LENGTHS.get(name, _ANY_LENGTH)
    return {"name": name, **shape, **sizes, "max_position_embeddings": length}


def _known(names: Mapping[str, str], said: str, what: str) -> str:
    if said not in names:
        raise InputFault(f"{what} type {said} is not known")
    return names[said]


def markdown(report: Report) -> str:
    """The report as a section of a page: a line a check, what does not hold, and what was not asked."""
    lines = ["| question | logs | hold | median error |", "|---|--:|--:|--:|"]
    for name, row in report.summary().items():
        median = row["median_abs_pct"]
        lines.append(
            f"| {name} | {row['n']} | {row['hold']} | {'' if median is None else f'{median:.2f} %'} |"
        )
    missed = [check for check in report.checks if not check.holds]
    if missed:
        lines += [
            "",
            "Not met:",
            "",
            "| log | question | logged | ours | error | |",
            "|---|---|--:|--:|--:|---|",
        ]
        lines += map(_line, missed)
    return "\n".join(lines) + "\n"


def _line(check: Check) -> str:
    error = "" if check.error_pct is None else f"{check.error_pct:+.2f} %"
    numbers = f"{check.logged:,.10g} | {check.ours:,.6g} | {error}"
    return f"| {check.id} | {check.check} | {numbers} | {_REMARKS.get(check.id, '')} |"
