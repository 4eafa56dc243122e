"""One grammar for quantities: a number, then perhaps a unit (`80GiB`, `250ms`, `25.6k`, `5 k`, `4/s`, `92%`).

Everything comes out in base units: bytes, seconds, tokens, per second, a share of one. GB (1000^3) and GiB
(1024^3) differ. `k` is 1000 and `Ki` 1024; a bare `K` means 1000 to some programs and 1024 to others, so it
is refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

UNITS: dict[str, dict[str, tuple[int, int]]] = {
    "number": {"k": (1000, 1), "Ki": (1024, 1)},
    "bytes": {
        "B": (1, 1),
        "KB": (1000, 1),
        "MB": (1000**2, 1),
        "GB": (1000**3, 1),
        "TB": (1000**4, 1),
        "KiB": (1024, 1),
        "MiB": (1024**2, 1),
        "GiB": (1024**3, 1),
        "TiB": (1024**4, 1),
    },
    "seconds": {"us": (1, 10**6), "ms": (1, 1000), "s": (1, 1), "min": (60, 1), "h": (3600, 1)},
    "per second": {"/s": (1, 1)},
    "share": {"%": (1, 100)},
}
"""By dimension: unit -> (numerator, denominator) to the base unit. What is no whole factor is a division,
so that `250ms` is the very float 0.25."""
UNITS["bytes per second"] = {f"{unit}/s": factor for unit, factor in UNITS["bytes"].items()}

NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*({NUMBER})\s*([A-Za-z%/]*)\s*")
_HINTS = (
    (
        r"[-+]?[0-9]+(?::[0-9]+)+(?:\.[0-9]*)?",
        "a time of day or base 60 is not read; write seconds, or 12.5min",
    ),
    (r"[-+]?0[0-9]+", "a leading zero looks octal; write 17, or 0o17 for octal"),
    (r"[-+]?0[0-9]+\..*", "a leading zero is not read; leave it out"),
    (r"[-+]?[0-9]+(?:_[0-9]+)+(?:\..*)?", "underscores are not read; leave them out"),
    (r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\..*)?", "commas are not read; leave them out"),
    (r"[-+]?[0-9]+,[0-9]+", "write a decimal point"),
    (r"[-+]?\.?(?:nan|inf|infinity)", "it must be finite"),
    (rf"{NUMBER}\s*K", "K is ambiguous: write k for 1000 or Ki for 1024"),
)


class RefusedError(ValueError):
    """A value does not meet its requirement; *hint* says what to write instead (may be empty)."""

    def __init__(self, requirement: str, hint: str = "") -> None:
        self.requirement = requirement
        self.hint = hint
        super().__init__(requirement)


def measure(value: Any, dimension: str, requirement: str) -> float:
    """*value*, a number or a text such as `80GiB`, in the base unit of *dimension*.

    A float, or the int itself where *value* is one. Raises `RefusedError` with *requirement* and a hint.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise RefusedError(requirement)
    if isinstance(value, str):
        return _measure_text(value, dimension, requirement)
    if not _is_finite(value):
        raise RefusedError(requirement, "it must be finite")
    return value


def whole(value: float, requirement: str) -> int:
    """*value* as an integer. Raises `RefusedError` if it is not within a millionth of one.

    The leeway is for binary fractions: 0.29k is 290.
    """
    nearest = round(value)
    if abs(value - nearest) > 1e-6:
        raise RefusedError(requirement)
    return nearest


def got(value: Any) -> str:
    """How a fault's sentence shows a value: short, as YAML has it."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return value if 0 < len(value) <= 60 and value.isprintable() else json.dumps(value[:60])
    return f"{json.dumps(value):.40}"


def _measure_text(text: str, dimension: str, requirement: str) -> float:
    match = _QUANTITY.fullmatch(text)
    stripped = text.strip()
    for pattern, hint in _HINTS:
        if re.fullmatch(pattern, stripped, re.IGNORECASE if "nan" in pattern else 0):
            raise RefusedError(requirement, hint)
    if match is None:
        raise RefusedError(requirement)
    number, unit = match.groups()
    numerator, denominator = _factor(unit, dimension, requirement)
    result = (
        int(number) if number.lstrip("+-").isdigit() and len(number) < 300 else float(number)
    ) * numerator
    if not _is_finite(result):
        raise RefusedError(requirement, "it must be finite")
    return result if denominator == 1 else result / denominator


def _factor(unit: str, dimension: str, requirement: str) -> tuple[int, int]:
    units = UNITS[dimension]
    if not unit:
        return 1, 1
    if unit in units:
        return units[unit]
    same = [known for known in units if known.lower() == unit.lower()]
    same = same or [known for known in units if len(unit) == 1 and known.startswith(unit) and len(known) > 1]
    if same:
        raise RefusedError(requirement, f"{unit} is no unit here; did you mean {' or '.join(same)}?")
    raise RefusedError(requirement, f"{unit} is no unit here; possible: {', '.join(units)}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
