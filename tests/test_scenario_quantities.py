"""One grammar for quantities."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.scenario.quantities import UNITS, RefusedError, got, measure, whole


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80GB", "bytes", 80e9), ("80GiB", "bytes", 80 * 2**30), ("1.5 TiB", "bytes", 1.5 * 2**40),
        ("1KB", "bytes", 1000), ("1KiB", "bytes", 1024), ("7 B", "bytes", 7), (12, "bytes", 12),
        ("250ms", "seconds", 0.25), ("126us", "seconds", 126e-6), ("12.5min", "seconds", 750),
        ("2h", "seconds", 7200),
        ("25.6k", "number", 25600), ("5 k", "number", 5000), ("4Ki", "number", 4096), ("1e3", "number", 1000),
        ("4/s", "per second", 4), ("4 /s", "per second", 4), (".5", "per second", 0.5),
        ("92%", "share", 0.92), (0.92, "share", 0.92), ("2039GB/s", "bytes per second", 2039e9),
    ],
)  # fmt: skip
def test_a_quantity_comes_out_in_base_units(text: Any, dimension: str, value: float) -> None:
    """Bytes, seconds, tokens, per second, a share of one: the very float that the plain number gives."""
    assert measure(text, dimension, "") == value


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(sorted(UNITS["bytes"])))
def test_whole_bytes_are_exact(number: int, unit: str) -> None:
    """Whole numbers of a unit are integers, without a float on the way."""
    value = measure(f"{number}{unit}", "bytes", "")
    assert isinstance(value, int)
    assert value == number * UNITS["bytes"][unit][0]


@given(st.integers(min_value=0, max_value=10**9))
def test_thousandths_in_k_are_whole(thousandths: int) -> None:
    """25.6k is 25600, whatever binary fractions think of 25.6."""
    assert whole(measure(f"{thousandths / 1000!r}k", "number", ""), "") == thousandths


@pytest.mark.parametrize(
    ("text", "dimension", "hint"),
    [
        ("5K", "number", "write k for 1000 or Ki for 1024"), ("5 K", "bytes", "K is ambiguous"),
        ("12:30", "seconds", "write seconds"), ("1:30:00", "seconds", "base 60"),
        ("017", "number", "octal"),
        ("1_000", "number", "underscores"), ("1,000", "number", "commas"),
        ("0,5", "seconds", "decimal point"),
        ("NaN", "seconds", "finite"), ("inf", "seconds", "finite"), (".inf", "bytes", "finite"),
        (math.inf, "seconds", "finite"), (10**400, "number", "finite"), ("1e999", "number", "finite"),
        ("80G", "bytes", "did you mean GB or GiB?"), ("80gb", "bytes", "did you mean GB?"),
        ("250MS", "seconds", "did you mean ms?"), ("3ms", "bytes", "possible: B, KB"),
        ("4GB", "number", "k, Ki"),
        ("1e999GB", "bytes", "finite"), ("5m", "seconds", "did you mean ms or min?"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_write(text: Any, dimension: str, hint: str) -> None:
    """What is easily misread is refused with what to write instead."""
    with pytest.raises(RefusedError) as caught:
        measure(text, dimension, "a quantity")
    assert hint in caught.value.hint


@pytest.mark.parametrize("value", [True, None, [], {}, "", "fast", "4 per s", "4 5", "--4", "1e", "٣"])
def test_what_is_no_quantity_is_refused(value: Any) -> None:
    """A bool is no number, nor are words, lists and other alphabets' digits."""
    with pytest.raises(RefusedError):
        measure(value, "number", "a quantity")


def test_values_are_shown_short_and_on_one_line() -> None:
    """However long and odd they are."""
    shown = [
        got(value) for value in ("a\nb" * 100, "x" * 1000, {"a": 1}, list(range(99)), None, True, 10**300)
    ]
    assert all(len(text) <= 150 and "\n" not in text for text in shown)
    assert shown[2:6] == ["a mapping", "a list of 99", "null", "true"]
