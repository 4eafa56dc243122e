"""HTML from Python: text is escaped unless it says that it is HTML already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


class Html(str):
    """Markup: not escaped again."""

    __slots__ = ()


def text(content: str) -> Html:
    """*content* with `&`, `<`, `>` and quotes escaped, unless it is `Html`."""
    return content if isinstance(content, Html) else Html(escape(content))


def joined(parts: Iterable[str], between: str = "") -> Html:
    return Html(between.join(text(part) for part in parts))


def document(title: str, body: Html) -> str:
    """A whole page: no script, no font, no picture from elsewhere; a policy forbids the browser to fetch."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    lines = [
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        Html('<link rel="icon" href="data:,">'),
        tag("title", title),
        tag("style", Html(style)),
    ]
    head = tag("head", joined(lines, "\n"))
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{tag("body", body)}\n</html>\n'


def contents(titles: Mapping[str, str]) -> Html:
    """Links to the sections of these names, under their titles."""
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, title in titles.items())
    return tag("nav", tag("ul", joined(links)), aria_label="Contents")


def tag(name: str, content: str = "", **attributes: str) -> Html:
    """One element; a trailing underscore of an attribute's name falls away, others become dashes."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{text(content)}</{name}>")


def paragraph(content: str, class_: str = "") -> Html:
    return tag("p", content, class_=class_) if class_ else tag("p", content)


def section(name: str, title: str, *blocks: str) -> Html:
    """A section that can be linked to; empty blocks vanish."""
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", joined([heading, *blocks], "\n"), id=name, aria_labelledby=f"{name}-title")


def folded(summary: str, *blocks: str) -> Html:
    """What only some readers open."""
    return tag("details", joined([tag("summary", summary), *blocks], "\n"))


def table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)
) -> Html:
    """A table whose columns are numbers but for *words*, in a box that scrolls where the page is narrow."""
    sides = ["w" if index in words else "n" for index in range(len(header))]
    head = joined(tag("th", name, scope="col", class_=side) for name, side in zip(header, sides, strict=True))
    body = joined((tag("tr", _cells(row, sides)) for row in rows), "\n")
    inside = joined(
        [tag("caption", tag("span", caption)), tag("thead", tag("tr", head)), tag("tbody", body)],
        "\n",
    )
    return tag("div", tag("table", inside), class_="scroll", role="region", aria_label=caption, tabindex="0")


def _cells(row: Sequence[str], sides: Sequence[str]) -> Html:
    first = tag("th", row[0], scope="row", class_=sides[0])
    others = (tag("td", cell, class_=side) for cell, side in zip(row[1:], sides[1:], strict=True))
    return joined([first, *others])


def beside(*blocks: str) -> Html:
    """Blocks next to each other where the page is wide enough; empty ones vanish."""
    return tag("div", joined(blocks), class_="beside")


def bar(label: str, parts: Sequence[tuple[str, float]], total: str = "") -> Html:
    """A bar of 100 %: *parts* are names and shares; those of at least an eighth carry their name."""
    said = ", ".join(f"{name} {100 * share:.0f} %" for name, share in parts)
    pieces = joined(
        tag(
            "span",
            f"{name} {100 * share:.0f} %" if share >= 0.125 else "",
            class_=f"part part-{index}",
            style=f"width:{100 * share:.2f}%",
            title=f"{name}: {100 * share:.1f} %",
        )
        for index, (name, share) in enumerate(parts)
    )
    head = joined([tag("span", label), tag("span", total, class_="total")])
    drawn = tag("div", pieces, class_="bar", role="img", aria_label=f"{label}: {said}")
    return tag("div", joined([tag("div", head, class_="bar-head"), drawn]), class_="bar-row")
