"""A comparison as text: for a terminal, plain or in colours, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sim.planning.compare import Compared, Comparison
from sim.report.compare_words import (
    binding_words,
    changed_words,
    headline,
    how,
    overview,
    queue_words,
    rows_of,
    told_apart,
)
from sim.report.text import aligned, markdown_table, table

COLOURS = {"better": "green", "worse": "red"}


@dataclass(frozen=True)
class Block:
    """A table under its title, with lines of words above and below it."""

    title: str
    above: Sequence[str] = ()
    header: Sequence[str] = ()
    cells: Sequence[Sequence[str]] = ()
    below: Sequence[str] = ()


def blocks(comparison: Comparison) -> list[Block]:
    """The sentence, the table of all scenarios where they are more than two, then each against the first."""
    if not comparison.seeds:
        return [Block("No seed is finished")]
    found = [Block(f"{headline(comparison)}.")]
    if len(comparison.others) > 1:
        found = [Block(f"{headline(comparison)}.", (), *overview(comparison), (how(comparison),))]
    found += [against(comparison, other) for other in comparison.others]
    notes = [f"note: {warning}" for warning in comparison.warnings]
    return [*found, Block("", below=notes)] if notes else found


def against(comparison: Comparison, other: Compared) -> Block:
    """One scenario against the first: what differs in it, and what that does."""
    title = f"{other.name} against {comparison.first.name}"
    changed = [changed_words(found) for found in other.changed] or ["nothing differs"]
    if other.fault is not None:
        return Block(title, changed, below=[f"cannot run: {other.fault}"])
    shown, unseen, same = told_apart(rows_of(comparison, other))
    facts = [("queue", queue_words(comparison, other)), ("it waits for", binding_words(comparison, other))]
    facts += [("no difference seen", ", ".join(unseen))] if unseen else []
    facts += [("the same", ", ".join(same))] if same else []
    interval = f"{100 * comparison.confidence:g} % interval"
    header = ["number", comparison.first.name, other.name, "difference", "relative", interval, ""]
    return Block(title, changed, header, [row.cells() for row in shown], aligned(facts))


def compare_text(comparison: Comparison) -> str:
    """The blocks with their columns aligned."""
    return "\n\n".join(_plain(block) for block in blocks(comparison))


def _plain(block: Block) -> str:
    lines = table(block.header, block.cells) if block.cells else []
    parts = [[block.title] if block.title else [], [f"  {line}" for line in block.above], lines, block.below]
    return "\n\n".join("\n".join(part) for part in parts if part)


def compare_markdown(comparison: Comparison) -> str:
    """The same for a report; equal comparisons give equal text."""
    parts = [f"# {', '.join(one.name for one in comparison.scenarios)}"]
    for index, block in enumerate(blocks(comparison)):
        parts.append(
            f"**{block.title}**" if index == 0 else f"## {block.title}" if block.title else "## Notes"
        )
        parts.append("\n".join(f"- `{line}`" for line in block.above))
        parts.append(markdown_table(block.header, block.cells) if block.cells else "")
        parts.append("\n".join(f"- {line}" for line in block.below))
    return "\n\n".join(part for part in parts if part) + "\n"


def coloured(comparison: Comparison) -> list[Any]:
    """The blocks for rich: tables whose better and worse lines are green and red."""
    from rich.table import Table
    from rich.text import Text

    found: list[Any] = []
    for block in blocks(comparison):
        found.append(Text(block.title, style="bold"))
        found += [Text(f"  {line}", style="dim") for line in block.above]
        if block.cells:
            drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for index, name in enumerate(block.header):
                drawn.add_column(name, justify="left" if index in (0, len(block.header) - 1) else "right")
            for row in block.cells:
                drawn.add_row(*map(Text, row), style=COLOURS.get(row[-1], ""))
            found.append(drawn)
        found += [*map(Text, block.below), Text("")]
    return found
