"""A hardware profile as YAML for people: a table's row a line, and above each part what it means."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_WIDTH = 110
_ABOVE = {
    "kernels": "Coefficients of the kernels. A residual is measured over fitted, less 1, in thousandths.",
    "gemm": "((flops / flops_per_s)^p + (bytes / bytes_per_s)^p)^(1/p) + overhead_s, p = exponent",
    "attention_prefill": "(overhead_s^p + (flops / flops_per_s + head_token_s x heads x tokens)^p)^(1/p), "
    "once a layer",
    "attention_prefill_fp8": "the same over a KV cache in 8 bits",
    "attention_prefill_fp8_compute": "the same over a KV cache in 8 bits, computed in 8 bits",
    "attention_decode": "(overhead_s^p + (kv_bytes / bytes_per_s + head_sequence_s x sequences x KV heads)^p)"
    "^(1/p), once a layer",
    "attention_decode_fp8": "the same over a KV cache in 8 bits",
    "all_reduce": "(latency_s^p + (bytes a rank / bytes_per_s)^p)^(1/p), by number of GPUs",
    "all_reduce_eager": "the same launched by itself",
    "elementwise": "bytes / bytes_per_s + overhead_s, a layer",
    "kernel_sources": "The same sections of other backends; what one lacks is taken from kernels.",
}
_BESIDE = {
    "peak_flops_per_s": "dense",
    "bandwidth_bytes_per_s": "both directions together",
    "causal_weight": "share of a chunk's own pairs of tokens that causal masking leaves",
}
_ORDER = (
    *("gemm", "attention_prefill", "attention_prefill_fp8", "attention_prefill_fp8_compute"),
    *("attention_decode", "attention_decode_fp8"),
)
_LAST = ("all_reduce", "all_reduce_eager", "elementwise")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./,%()+' -]*(?<! )")
_SIZES = {"memory_bytes": (2**30, "GiB, as the driver reports"), "l2_bytes": (2**20, "MiB")}


def profile_text(profile: Mapping[str, Any], title: str) -> str:
    """*profile* (a mapping in base units) as a file under the comment *title*; read back, it is the same."""
    known = ("kernel_source", "kernels", "kernel_sources", "provenance")
    head = {name: value for name, value in profile.items() if name not in known}
    tail = {name: profile[name] for name in known if name in profile}
    tail["kernels"] = _ordered(tail["kernels"])
    lines = [f"# {title}", "# SI base units: bytes, seconds, flops, watts."]
    lines += ["# Every number's origin is under `provenance`."]
    return "\n".join([*lines, *_lines({**head, **tail}, 0)]) + "\n"


def _ordered(kernels: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in _ORDER if name in kernels]
    names += [name for name in kernels if name not in _ORDER + _LAST]
    names += [name for name in _LAST if name in kernels]
    return {name: kernels[name] for name in names}


def _lines(mapping: Mapping[str, Any], depth: int, explained: bool = True) -> Iterator[str]:
    pad = "  " * depth
    for key, value in mapping.items():
        name = str(key) if _PLAIN.fullmatch(str(key)) else json.dumps(str(key))
        if explained and depth <= 1 and name in _ABOVE:
            yield f"{pad}# {_ABOVE[name]}"
        inner = explained and name not in ("kernel_sources", "provenance")
        yield from _entry(name, value, depth, inner)


def _entry(name: str, value: Any, depth: int, explained: bool) -> Iterator[str]:
    pad = "  " * depth
    beside = f" # {_BESIDE[name]}" if explained and name in _BESIDE else ""
    if depth == 0 and name in _SIZES:
        unit, words = _SIZES[name]
        beside = f" # {value / unit:.4g} {words}"
    if isinstance(value, Mapping):
        yield f"{pad}{name}:{beside}"
        yield from _lines(value, depth + 1, explained)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], str):
        yield f"{pad}{name}:"
        yield from (f"{pad}  - {_word(item)}" for item in value)
    elif isinstance(value, list | tuple):
        yield from _wrapped(f"{pad}{name}: [{', '.join(map(_number, value))}]", pad)
    elif isinstance(value, str) and "\n" in value:
        yield f"{pad}{name}: |"
        yield from (f"{pad}  {line}" for line in value.splitlines())
    elif isinstance(value, str) and len(value) > _WIDTH - len(pad) - len(name) - 4:
        yield f"{pad}{name}: >-"
        yield from textwrap.wrap(
            value,
            _WIDTH,
            initial_indent=f"{pad}  ",
            subsequent_indent=f"{pad}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    else:
        yield f"{pad}{name}: {_word(value) if isinstance(value, str) else _number(value)}{beside}"


def _wrapped(line: str, pad: str) -> list[str]:
    return textwrap.wrap(
        line, _WIDTH, initial_indent="", subsequent_indent=f"{pad}  ", break_on_hyphens=False
    )


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _number(value: Any) -> str:
    """As short as it can be without another value; rates and times in powers of ten."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return str(int(value))
    text = repr(float(value))
    if 1e-3 <= abs(value) < 1e6:
        return text
    short = next(f"{value:.{digits}e}" for digits in range(1, 17) if float(f"{value:.{digits}e}") == value)
    return short
