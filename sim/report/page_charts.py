"""Small charts as inline SVG: colours come from the page's style sheet, so light, dark and print all work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10

from sim.report.page_html import Html, tag

Point = tuple[float, float]
AREAS = ("shade", "interval", "warm", "area")
RIGHT, BOTTOM, LEFT = 16.0, 34.0, 54.0


@dataclass(frozen=True)
class Scale:
    """From *low* to *high*, linear or logarithmic; *words* makes a tick's label."""

    low: float
    high: float
    words: Callable[[float], str]
    log: bool = False

    def share(self, value: float) -> float:
        """Where *value* lies, 0 at *low* and 1 at *high*; what has no logarithm is far below."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        if value <= 0:
            return -1.0
        return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))

    def ticks(self, most: int) -> list[float]:
        """At most about *most* round values within the scale."""
        return _decades(self.low, self.high, most) if self.log else _round_steps(self.low, self.high, most)


def _round_steps(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= 0.999 * rough)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    first, last = floor(log10(low)), ceil(log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        inside = [float(f"{v:.12g}") for v in values if low * 0.999 <= v <= high * 1.001]
        if len(inside) <= most:
            return inside
    every = ceil(len(inside) / most)
    return inside[::every]


def log_scale(values: Iterable[float], words: Callable[[float], str], room: float = 1.4) -> Scale:
    """A logarithmic scale around the positive ones of *values*."""
    seen = [value for value in values if value > 0] or [1.0]
    return Scale(min(seen) / room, max(seen) * room, words, log=True)


def linear_scale(values: Iterable[float], words: Callable[[float], str], room: float = 1.15) -> Scale:
    """From zero to a little above the largest of *values*."""
    return Scale(0.0, room * max(values, default=0.0) or 1.0, words)


@dataclass
class Chart:
    """One panel. *says* is what it shows in a sentence, for those who cannot see it.

    Classes (`s-knee`, `limit`, ...) are those of page.css. *top* is the room for words above the plotting
    area; what lies outside the scales is cut off.
    """

    says: str
    x: Scale
    y: Scale
    width: float = 440.0
    height: float = 210.0
    top: float = 30.0
    _inside: list[str] = field(default_factory=list)
    _around: list[str] = field(default_factory=list)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the plotting area."""
        return self.width - LEFT - RIGHT, self.height - self.top - BOTTOM

    def at(self, x: float, y: float) -> Point:
        """Position in the plotting area, in its own units."""
        wide, high = self.size
        return wide * self.x.share(x), high * (1 - self.y.share(y))

    def line(self, points: Sequence[Point], style: str) -> None:
        """A line through *points*."""
        if len(points) > 1:
            self._inside.append(tag("path", d=_path(self._clamped(points)), class_=f"line {style}"))

    def area(self, points: Sequence[Point]) -> None:
        """The area between *points* and zero."""
        if len(points) > 1:
            floor_y = self.at(0, self.y.low)[1]
            (first, _), (last, _) = self.at(*points[0]), self.at(*points[-1])
            over = _path(self._clamped(points))[1:]
            outline = f"M{_n(first)} {_n(floor_y)}L{over}L{_n(last)} {_n(floor_y)}Z"
            self._inside.append(tag("path", d=outline, class_="area"))

    def dots(self, points: Sequence[tuple[float, float, str]], style: str, *, hollow: bool = False) -> None:
        """A dot at each x, y; its words appear under the pointer."""
        kind = f"dot {style} hollow" if hollow else f"dot {style}"
        for x, y, words in points:
            cx, cy = self.at(x, y)
            named = tag("title", words)
            self._inside.append(tag("circle", named, cx=_n(cx), cy=_n(cy), r="3.4", class_=kind))

    def shade(self, low: float, high: float, style: str) -> None:
        """The region between two values of x, over the whole height."""
        left, right = sorted((self.at(low, self.y.low)[0], self.at(high, self.y.low)[0]))
        size = {"width": _n(max(right - left, 0.8)), "height": _n(self.size[1])}
        self._inside.insert(0, tag("rect", x=_n(left), y="0", **size, class_=style))

    def upright(self, x: float, style: str, words: str = "", row: int = 0) -> None:
        """A vertical line at *x*, with *words* above it in one of two rows."""
        at, share = self.at(x, self.y.low)[0], self.x.share(x)
        if not -0.001 <= share <= 1.001:
            return
        bottom = _n(self.size[1])
        self._inside.append(tag("line", x1=_n(at), x2=_n(at), y1="0", y2=bottom, class_=style))
        if words:
            anchor = "start" if share < 0.15 else "end" if share > 0.55 else "middle"
            place = {"x": _n(LEFT + at), "y": _n(self.top - 5 - 13 * row), "text_anchor": anchor}
            self._around.append(tag("text", words, **place, class_=f"mark {style}-word"))

    def level(self, y: float, style: str, words: str = "") -> None:
        """A horizontal line at *y*, with *words* on it at the left, clear of its ends."""
        at = self.at(self.x.low, y)[1]
        if not -0.001 <= self.y.share(y) <= 1.001:
            return
        self._inside.append(tag("line", x1="0", x2=_n(self.size[0]), y1=_n(at), y2=_n(at), class_=style))
        if words:
            below = 12.0 if at < 14 else -4.0
            self._inside.append(tag("text", words, x="5", y=_n(at + below), class_=f"mark {style}-word"))

    def svg(self, x_name: str) -> Html:
        """The chart; *x_name* stands below the x axis."""
        wide, high = self.size
        box = f"0 0 {_n(self.width)} {_n(self.height)}"
        # A nested svg cuts off what leaves the plotting area.
        inner = tag(
            "svg", Html("".join(self._inside)), x=_n(LEFT), y=_n(self.top), width=_n(wide), height=_n(high)
        )
        name = tag("text", x_name, x=_n(LEFT + wide / 2), y=_n(self.height - 3), text_anchor="middle")
        content = Html("".join([self._grid(), inner, *self._around, name]))
        return tag("svg", content, viewBox=box, role="img", aria_label=self.says)

    def _grid(self) -> str:
        wide, high = self.size
        drawn = [tag("rect", x=_n(LEFT), y=_n(self.top), width=_n(wide), height=_n(high), class_="plot")]
        for value in self.y.ticks(5):
            y = self.top + high * (1 - self.y.share(value))
            drawn.append(tag("line", x1=_n(LEFT), x2=_n(LEFT + wide), y1=_n(y), y2=_n(y), class_="gridline"))
            place = {"x": _n(LEFT - 6), "y": _n(y + 4), "text_anchor": "end"}
            drawn.append(tag("text", self.y.words(value), **place))
        for value in self.x.ticks(max(3, int(wide / 54))):
            x = LEFT + wide * self.x.share(value)
            drawn.append(
                tag("line", x1=_n(x), x2=_n(x), y1=_n(self.top), y2=_n(self.top + high), class_="gridline")
            )
            place = {"x": _n(x), "y": _n(self.top + high + 15), "text_anchor": "middle"}
            drawn.append(tag("text", self.x.words(value), **place))
        return "".join(drawn)

    def _clamped(self, points: Sequence[Point]) -> list[Point]:
        """Positions of *points*, none of them further than a panel's height outside."""
        high = self.size[1]
        return [(x, min(max(y, -high), 2 * high)) for x, y in (self.at(*point) for point in points)]


def panel(title: str, chart: Html, note: str = "") -> Html:
    """A chart under its title and, in grey, the unit or which way is better."""
    words = tag("strong", title) + (Html(" ") + tag("span", note) if note else "")
    return tag("figure", Html(tag("figcaption", Html(words)) + chart))


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """A line of swatches: classes and names. *entries* whose class has `dot` in it get a dot."""
    items = []
    for style, name in entries:
        if "dot" in style:
            swatch = tag("circle", cx="13", cy="6", r="3.4", class_=style)
        elif style in AREAS:
            swatch = tag("rect", x="0", y="0", width="26", height="12", class_=style)
        else:
            swatch = tag("line", x1="0", x2="26", y1="6", y2="6", class_=f"line {style}")
        picture = tag("svg", swatch, viewBox="0 0 26 12", class_="swatch", aria_hidden="true")
        items.append(tag("li", Html(picture + tag("span", name))))
    return tag("ul", Html("".join(items)), class_="legend")


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _n(value: float) -> str:
    """*value* to a tenth, without needless digits."""
    return f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.0f}"
