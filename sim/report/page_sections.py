"""The page's first half: the answer, its figure, how sure it is, what gives way, and cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sim.planning.limits import Limit
from sim.planning.search import Point
from sim.planning.wording import duration, number
from sim.report.answer import answer as sentence_of
from sim.report.answer import interval_sentence
from sim.report.page_html import Html, beside, joined, paragraph, section, table, tag, text
from sim.report.page_loads import in_use, one_run_each
from sim.report.page_story import Story, spaced, usd
from sim.report.run_figures import knee_figure, percent
from sim.report.windows_text import drawn_words

DUTY_CYCLES = (1.0, 0.6, 0.3)
HOURS_A_MONTH = 730
SOURCES = {
    "sampling": "sampling: which requests came when",
    "gemm": "kernels: linear layers",
    "attention_prefill": "kernels: attention of prompts",
    "attention_decode": "kernels: attention of decodes",
    "elementwise": "kernels: norms and activations",
    "all_reduce": "kernels: all-reduce",
    "host": "the engine's own time on the host",
    "memory": "memory left for the KV cache",
}
ROUNDING = 1e-6  # a knee is where a limit is just met


def answer(story: Story) -> Html:
    """The sentence, its interval, the key figures and a verdict on each limit."""
    knee = story.knee
    blocks = [
        paragraph(knee.scenario.name, "kicker"),
        tag("h1", _unbroken(f"{sentence_of(knee)}.", story.limits)),
        _interval_words(story),
        _tiles(story),
        _verdicts(story),
    ]
    return tag("header", joined(blocks, "\n"))


def _unbroken(words: str, limits: Sequence[Limit]) -> Html:
    """*words* without line ends inside a limit or between a rate and its unit."""
    safe = Html(re.sub(r"\d\S* requests/s", r'<span class="nowrap">\g<0></span>', text(words)))
    for limit in limits:
        safe = Html(safe.replace(text(str(limit)), tag("span", str(limit), class_="nowrap")))
    return safe


def _interval_words(story: Story) -> Html:
    """The knee's intervals in a sentence, or plainly that there is none, and why."""
    given, total = story.at_knee.get("interval") or {}, story.interval
    if story.knee.rate_per_s is None:
        return Html("")
    if words := interval_sentence(given, story.knee.unit):
        return paragraph(words, "interval-words" if total is not None else "note")
    why = story.at_knee.get("interval_reason")
    because = f" ({why})" if why else ""
    return paragraph(
        f"This answer has no error bar{because}. The errors of what it rests on are listed under the "
        "assumptions; leave headroom for them.",
        "note",
    )


def _tiles(story: Story) -> Html:
    knee, summary = story.knee, story.knee.at.summary if story.knee.at else {}
    cost = (summary.get("cost") or {}).get("usd_per_1m_output_tokens")
    recommended = story.answer.get("recommended") or {}
    tiles = [
        (f"{number(knee.rate_per_s)} requests/s", "knee: the highest load within every limit"),
        (f"{number(knee.capacity_rate_per_s)} requests/s", "capacity: beyond it the queue grows"),
        (f"{number(summary.get('output_throughput'))} tokens/s", "output at the knee"),
        (usd(cost), f"a million output tokens, at the knee{_priced(story)}"),
    ]
    if recommended.get("rate_per_s") is not None:
        rule = recommended.get("rule") or "with headroom"
        tiles.insert(1, (f"{number(recommended['rate_per_s'])} requests/s", f"recommended: {rule}"))
    known = [(value, what) for value, what in tiles if not value.startswith("-")]
    items = (tag("li", joined([tag("b", value), tag("span", what)])) for value, what in known)
    return tag("ul", joined(items), class_="tiles")


def _priced(story: Story) -> str:
    hour_usd = story.knee.scenario.cost.get("gpu_hour_usd")
    return "" if hour_usd is None else f" and {usd(hour_usd)} a GPU hour"


def _verdicts(story: Story) -> Html:
    """Each limit at the knee and at the first load that fails; without a knee, at what came closest."""
    knee, missed = story.knee, story.answer.get("nearest_miss")
    beyond = next((p for p in knee.points if knee.at and p.load > knee.at.load and not p.passes), None)
    place = "at the knee" if knee.at or not missed else f"closest, at {number(missed['rate_per_s'])}/s"
    header = ["limit", "verdict", place, "allowed", "of the limit"]
    header += [f"at the first load that fails, {number(beyond.rate_per_s)}/s"] if beyond else []
    rows = []
    for limit in story.limits:
        value_s = knee.limits[limit.name]["at_knee"]
        if knee.at is None and missed:
            value_s = missed["limits"][limit.name]["value"]
        share = "-" if value_s is None else percent(value_s / limit.bound_s)
        cells = [limit.label, _verdict(limit, value_s), duration(value_s), duration(limit.bound_s), share]
        rows.append([*cells, *([_next(limit, beyond)] if beyond else [])])
    if knee.at is not None:
        after = [_queue_verdict(beyond)] if beyond else []
        rows.append(["queue", _queue_verdict(knee.at), "", "", "", *after])
    return table("Verdict on each limit", header, rows, words=(0, 1))


def _verdict(limit: Limit, value_s: float | None) -> Html:
    if value_s is None:
        return tag("span", "not evaluated", class_="missed")
    if value_s <= limit.bound_s * (1 + ROUNDING):
        return tag("span", "\N{CHECK MARK} holds", class_="holds")
    return tag("span", "\N{BALLOT X} missed", class_="missed")


def _queue_verdict(point: Point) -> Html:
    if point.stable:
        return tag("span", "\N{CHECK MARK} steady", class_="holds")
    return tag("span", "\N{BALLOT X} grows without end", class_="missed")


def _next(limit: Limit, beyond: Point) -> Html:
    value_s = limit.value_s(beyond.summary)
    return joined([duration(value_s), " ", _verdict(limit, value_s)])


def figure(story: Story) -> Html:
    """The knee's figure and every load behind it."""
    words = (
        "What the engine does at each load that was tried. The knee is where the first limit is met; beyond "
        "the capacity the queue grows for as long as the load lasts. "
    )
    judged = tag("a", "How each load was judged.", href="#loads")
    hint = tag("span", " Rest the pointer on a point for its value.", class_="screen")
    drawn = knee_figure(story.knee, story.interval)
    return section("figure", "The knee", paragraph(joined([words, judged, hint])), drawn)


def how_sure(story: Story) -> Html:
    """Where the interval comes from: one row for each thing that is not known exactly."""
    given = story.at_knee.get("interval") or {}
    parts = {name: part for name, part in (given.get("parts") or {}).items() if isinstance(part, Mapping)}
    known = {name: part for name, part in parts.items() if part.get("relative") is not None}
    if not known:
        return Html("")
    largest = max(part["relative"] for part in known.values()) or 1.0
    rows = []
    for name in sorted(known, key=lambda name: -known[name]["relative"]):
        part = known[name]
        moved = f"\N{PLUS-MINUS SIGN}{100 * part['relative']:.1f} %"
        uncertain = part.get("uncertainty")
        shown = "-" if uncertain is None else f"\N{PLUS-MINUS SIGN}{percent(uncertain)}"
        rows.append(
            [
                SOURCES.get(name, spaced(name)),
                moved,
                _gauge(part["relative"] / largest),
                shown,
                _grounds(part),
            ]
        )
    header = ["what is not known exactly", "moves the knee by", "", "its own error", "from"]
    words = (
        "Each row alone would move the knee by so much, at the confidence of the interval; rows add in "
        "quadrature. An error of the simulator's logic is in no row: it is what the checks below are for."
    )
    drawn = table("The knee's error budget", header, rows, words=(0, 2, 4))
    return section("sure", "How sure that is", paragraph(words), drawn)


def _grounds(part: Mapping[str, Any]) -> str:
    if part.get("source"):
        return str(part["source"])
    if part.get("replications") is None:
        return ""
    if part.get("blocks") is not None:
        return f"traces drawn again: {drawn_words(part['replications'], part)}"
    each = f" of {part['requests_each']:,} requests" if part.get("requests_each") else ""
    return f"{part['replications']} replications{each}"


def gives_way(story: Story) -> Html:
    """What limits the knee, measured where it was, and how busy everything is at each load."""
    knee = story.knee
    reason = f"{knee.reason[:1].upper()}{knee.reason[1:]}."
    tables = beside(_elasticities(story), _thresholds(story.answer))
    looked = tag("h3", "Three loads looked into") if len(story.runs) == 3 else Html("")
    blocks = (paragraph(reason + _binds(story)), tables, looked, one_run_each(story), in_use(story.runs))
    return section("gives-way", "What gives way first, and why", *blocks)


def _binds(story: Story) -> str:
    """The binding resource, where it is known, in a sentence after the reason."""
    binding = story.at_knee.get("binding") or {}
    if not binding.get("resource"):
        return ""
    after = f"; after it, {spaced(binding['next'])}" if binding.get("next") else ""
    return f" What binds there is {spaced(binding['resource'])}{after}."


def _elasticities(story: Story) -> Html:
    """How the knee, and the capacity where it is known, moves with each resource; largest first."""
    of_knee = (story.at_knee.get("binding") or {}).get("elasticities") or {}
    of_capacity = story.answer.get("capacity_elasticities") or {}
    known = {name: x for name, x in of_knee.items() if isinstance(x, float | int)}
    if not known:
        return Html("")
    ordered = sorted(known, key=lambda name: -abs(known[name]))
    largest = max(abs(x) for x in known.values()) or 1.0
    header = ["resource", "knee", "", *(["capacity"] if of_capacity else [])]
    rows = []
    for name in ordered:
        cells = [spaced(name), _signed(known[name]), _gauge(abs(known[name]) / largest)]
        rows.append([*cells, *([_signed(of_capacity.get(name))] if of_capacity else [])])
    return table("By how much 1 % more of a resource moves the load", header, rows, words=(0, 2))


def _signed(elasticity: float | None) -> str:
    if elasticity is None:
        return "-"
    return f"{elasticity:+.2f} %" if abs(elasticity) >= 0.005 else "0 %"


def _gauge(share: float) -> Html:
    return tag("span", class_="gauge", style=f"--share:{100 * share:.1f}%")


def _thresholds(answer: Mapping[str, Any]) -> Html:
    """Other knees that the answer knows: power, roofline, cache."""
    found: list[tuple[str, str]] = []
    if (rate := answer.get("power_knee_rate_per_s")) is not None:
        found.append(("power knee (throughput / mean E2E)", f"{number(rate)} requests/s"))
    names = {
        "linear_batch": "linear layers are compute-bound from batch",
        "ten_percent_batch": "a decode step is 10 % slower from batch",
        "kv_equals_weights_batch": "KV reads cost as much as weights at batch",
    }
    batches = {**(answer.get("roofline_knees") or {})}
    for key, words in names.items():
        if isinstance(batches.get(key), float | int):
            found.append((words, number(batches[key])))
        elif batches.get(f"{key}_reason"):
            found.append((words, f"none: {batches[f'{key}_reason']}"))
    if isinstance(answer.get("cache_knee_batch"), float | int):
        found.append(("cache knee: blocks run out at batch", number(answer["cache_knee_batch"])))
    return table("Other knees", ["", "value"], found) if found else Html("")


def cost(story: Story) -> Html:
    """Dollars a million tokens at the knee and below it, where the GPU is paid for and idles."""
    scenario, knee = story.knee.scenario, story.knee
    hour_usd = scenario.cost.get("gpu_hour_usd")
    if hour_usd is None or knee.at is None:
        why = "no price of a GPU hour is known" if hour_usd is None else "no load meets the limits"
        return section("cost", "Cost", paragraph(f"There is no cost to state: {why}."))
    replicas = int(scenario.deployment.get("replicas") or 1)
    gpus = replicas * int(scenario.engine.get("tensor_parallel_size") or 1)
    price = scenario.hardware.get("price") or {}
    source = scenario.sources.get("cost.gpu_hour_usd", "scenario")
    from_where = f"{price['source']}, {price['date']}" if source.startswith("hardware") and price else source
    words = (
        f"{gpus} GPU{'s' if gpus > 1 else ''} at {usd(hour_usd)} an hour ({from_where}): "
        f"{usd(gpus * hour_usd * HOURS_A_MONTH)} a month of {HOURS_A_MONTH} hours, busy or not. The knee is "
        "a peak; a duty cycle is the mean load as a share of it."
    )
    cycles = [(f"{percent(share)} of the knee", share) for share in DUTY_CYCLES]
    own = scenario.load.get("rate_per_s")
    if own and own < knee.at.rate_per_s:
        share = own / knee.at.rate_per_s
        cycles.insert(1, (f"{percent(share)}: the scenario's own load", share))
    rows = [_cost_row(name, share, knee.at, gpus * hour_usd) for name, share in cycles]
    header = ["duty cycle", "mean requests/s", "$/1M output tokens", "$/1M in and out", "$/1,000 requests"]
    return section("cost", "Cost", paragraph(words), table("Cost by duty cycle", header, rows))


def _cost_row(name: str, share: float, at: Point, hour_usd: float) -> list[str]:
    rates = ("output_throughput", "total_token_throughput", "request_throughput")
    output, total, requests = (float(at.summary[key] or 0.0) * share * 3600 for key in rates)
    prices = [(1e6, output), (1e6, total), (1e3, requests)]
    cells = [usd(hour_usd * size / per_hour if per_hour else None) for size, per_hour in prices]
    return [name, number(at.rate_per_s * share), *cells]
