"""A comparison as a page: one HTML file that fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence

from sim.planning.compare import Compared, Comparison
from sim.planning.differing import Changed
from sim.report.compare_words import (
    Row,
    binding_words,
    headline,
    how,
    key_words,
    overview,
    percent_words,
    queue_words,
    rows_of,
    told_apart,
)
from sim.report.page_html import Html, contents, document, folded, joined, paragraph, section, table, tag
from sim.report.page_sources import resolved_yaml
from sim.version import __version__

BESIDE = ("compare.md", "compare.csv", "compare.json")
WIDEST = 2.0  # of a row's drawing, relative to the first's value; what is beyond ends in an arrow
NARROWEST = 0.05
WIDE, HIGH, EDGE = 150.0, 18.0, 6.0


def compare_page(comparison: Comparison) -> str:
    """The page as text; equal comparisons give equal text."""
    titles = {f"c{i}": one.name for i, one in enumerate(comparison.others, start=1)}
    many = len(titles) > 1
    told = {
        **({"all": "All of them"} if many else {}),
        **titles,
        "notes": "Notes",
        "first": "The first scenario",
    }
    parts = [
        _header(comparison),
        contents({name: title for name, title in told.items() if name != "notes" or comparison.warnings}),
        tag("main", joined(_sections(comparison, titles), "\n")),
        _identity(comparison),
    ]
    return document(f"{headline(comparison)}.", joined(parts, "\n"))


def _header(comparison: Comparison) -> Html:
    names = " · ".join(one.name for one in comparison.scenarios)
    return tag("header", joined([paragraph(names, "kicker"), tag("h1", f"{headline(comparison)}.")], "\n"))


def _sections(comparison: Comparison, titles: dict[str, str]) -> list[Html]:
    found = [_overview(comparison, titles)] if len(titles) > 1 else []
    found += [_against(comparison, name, one) for name, one in zip(titles, comparison.others, strict=True)]
    if comparison.warnings or any(one.warnings for one in comparison.scenarios):
        found.append(_notes(comparison))
    return [*found, _first(comparison)]


def _overview(comparison: Comparison, titles: dict[str, str]) -> Html:
    header, cells = overview(comparison)
    names = [None, *titles]
    linked = [
        [
            tag("a", row[0], href=f"#{name}") if name else row[0],
            *(_stacked(cell) for cell in row[1:-1]),
            row[-1],
        ]
        for name, row in zip(names, cells, strict=True)
    ]
    words = (0, len(header) - 1)
    return section(
        "all",
        "All of them",
        table("Means over the seeds", header, linked, words=words),
        paragraph(how(comparison), "note-less"),
    )


def _stacked(cell: str) -> Html:
    """A value, and below it what is in brackets."""
    value, bracket, mark = cell.partition(" (")
    return joined([value, Html("<br>"), tag("small", mark.removesuffix(")"))]) if bracket else joined([cell])


def _against(comparison: Comparison, name: str, other: Compared) -> Html:
    title = f"{other.name} against {comparison.first.name}"
    changed = _changed(comparison, other.changed) if other.changed else paragraph("The two are the same.")
    if other.fault is not None:
        return section(name, title, changed, paragraph(f"It cannot run: {other.fault}", "note"))
    shown, unseen, same = told_apart(rows_of(comparison, other))
    lines = [f"Queue: {queue_words(comparison, other)}. It waits for: {binding_words(comparison, other)}."]
    lines += [f"No difference is seen in {', '.join(unseen)}."] if unseen else []
    lines += [f"The same in every seed: {', '.join(same)}."] if same else []
    return section(name, title, changed, _numbers(comparison, other, shown), *map(paragraph, lines))


def _changed(comparison: Comparison, changed: Sequence[Changed]) -> Html:
    header = ("key", comparison.first.name, "here", "written in")
    rows = [[x.key, key_words(x.first), key_words(x.here), x.source] for x in changed]
    return table("What differs", header, rows, words=(0, 1, 2, 3))


def _numbers(comparison: Comparison, other: Compared, rows: Sequence[Row]) -> Html:
    if not rows:
        return Html("")
    interval = f"{100 * comparison.confidence:g} % interval"
    header = (
        "number",
        comparison.first.name,
        other.name,
        "difference",
        "relative",
        interval,
        "relative, drawn",
        "",
    )
    widest = _widest(rows)
    cells = [[*row.cells()[:-1], _drawn(row, widest), _verdict(row.verdict)] for row in rows]
    caption = (
        f"Numbers whose difference is seen; drawn from {percent_words(-widest)} to {percent_words(widest)}"
    )
    return table(caption, header, cells, words=(0, 6, 7))


def _widest(rows: Sequence[Row]) -> float:
    """The end of the drawings' common scale: the farthest interval, within bounds."""
    ends = [abs(end) for row in rows if row.ends for end in row.ends]
    return min(WIDEST, max([NARROWEST, *ends]))


def _drawn(row: Row, widest: float) -> Html:
    """Zero, the interval and the mean of a row on the scale from -*widest* to *widest*."""
    if row.ends is None or row.relative is None:
        return Html("")

    def at(share: float) -> float:
        inside = max(-1.0, min(1.0, share / widest))
        return round(EDGE + (WIDE - 2 * EDGE) * (1 + inside) / 2, 1)

    low, high, middle = at(row.ends[0]), at(row.ends[1]), HIGH / 2
    zero = {"x1": f"{at(0)}", "x2": f"{at(0)}", "y1": "0", "y2": f"{HIGH:g}", "class_": "knee"}
    line = {"x1": f"{low}", "x2": f"{high}", "y1": f"{middle:g}", "y2": f"{middle:g}"}
    style = {"better": "s-good", "worse": "s-bad"}.get(row.verdict, "s-high")
    parts = [tag("line", **zero), tag("line", **line, class_=f"line {style}")]
    if abs(row.relative) <= widest:
        parts.append(
            tag("circle", cx=f"{at(row.relative)}", cy=f"{middle:g}", r="3.4", class_=f"dot {style}")
        )
    else:
        parts.append(_arrow(row.relative > 0, middle, style))
    says = f"{row.number.name}: {percent_words(row.relative)}"
    return tag(
        "svg", joined(parts), viewBox=f"0 0 {WIDE:g} {HIGH:g}", class_="whisker", role="img", aria_label=says
    )


def _arrow(rightwards: bool, middle: float, style: str) -> Html:
    tip, back = (WIDE - 1, WIDE - 8) if rightwards else (1.0, 8.0)
    outline = f"M{tip:g} {middle:g}L{back:g} {middle - 4:g}L{back:g} {middle + 4:g}Z"
    return tag("path", d=outline, class_=f"dot {style}")


def _verdict(word: str) -> Html:
    return tag("span", word, class_="holds" if word == "better" else "missed") if word else Html("")


def _notes(comparison: Comparison) -> Html:
    told = [*comparison.warnings, *(f"{x.name}: {text}" for x in comparison.scenarios for text in x.warnings)]
    return section("notes", "Notes", tag("ul", joined(tag("li", text) for text in dict.fromkeys(told))))


def _first(comparison: Comparison) -> Html:
    code = tag("pre", tag("code", resolved_yaml(comparison.first.scenario)), tabindex="0")
    words = "With the source of each value; the others are this one with what differs in them."
    shown = folded("The resolved scenario as YAML", paragraph(words), code)
    return section("first", "The first scenario", shown)


def _identity(comparison: Comparison) -> Html:
    seeds = ", ".join(map(str, comparison.seeds))
    lines = [joined(["Kneesim ", tag("b", __version__), f", seeds {seeds}"])]
    lines += [
        joined([f"{one.name}: scenario sha256 ", tag("code", one.scenario.sha256)])
        for one in comparison.scenarios
    ]
    lines.append(joined(["Beside this page: ", joined((tag("code", name) for name in BESIDE), ", ")]))
    return tag("footer", joined((paragraph(line) for line in lines), "\n"))
