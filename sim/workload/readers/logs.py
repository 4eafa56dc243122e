"""Logs: a line for each request, taken apart by a regular expression with a group for each role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice

from sim.faults import InputFault
from sim.workload.readers.blocks import Block, Table
from sim.workload.readers.formats import ROLES, recognise
from sim.workload.readers.reading import Reading
from sim.workload.readers.source import Source, text_lines

_BLOCK_LINES = 1 << 15


def log_table(source: Source, reading: Reading, notes: dict[str, int]) -> Table:
    """The lines that the pattern finds something in; *notes* counts the others."""
    form = recognise((), "log", reading)
    pattern = _pattern(reading.pattern or form.pattern)
    blocks = _blocks(source, pattern, notes)
    first = next(blocks)
    return Table(form, "log", tuple(pattern.groupindex), 1, chain([first], blocks))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise InputFault(f"trace.pattern must be a regular expression ({error}; got {text!r})") from None
    if not pattern.groupindex:
        raise InputFault(
            f"trace.pattern must have named groups such as (?P<arrival>...) and (?P<prompt>\\d+); possible: "
            f"{', '.join(ROLES)} (got {text!r})"
        )
    return pattern


def _blocks(source: Source, pattern: re.Pattern[str], notes: dict[str, int]) -> Iterator[Block]:
    placed = enumerate(text_lines(source), start=1)
    found, example = 0, ""
    while some := list(islice(placed, _BLOCK_LINES)):
        written = [(line, text.strip("\r\n")) for line, text in some if not text.isspace()]
        matches = [(line, match.groupdict("")) for line, text in written if (match := pattern.search(text))]
        example = example or next((text for _, text in written), "")
        found += len(matches)
        if odd := len(written) - len(matches):
            notes["log_lines_unmatched"] = notes.get("log_lines_unmatched", 0) + odd
        if matches:
            yield _block(matches)
    if not example:
        raise InputFault(f"{source.path} is empty; a log needs a line for each request")
    if not found:
        fits = f"no line fits trace.pattern {pattern.pattern!r}"
        raise InputFault(f"{source.path}: {fits} (the first is {example[:120]!r})")


def _block(matches: list[tuple[int, dict[str, str]]]) -> Block:
    return Block([line for line, _ in matches], lambda name: [groups[name] for _, groups in matches])
