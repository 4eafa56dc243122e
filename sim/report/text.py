"""Answers as plain text for a terminal: aligned columns, three digits, a unit with every number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.planning.knee import Knee
from sim.planning.limits import turned_away_share
from sim.planning.search import Point
from sim.planning.wording import NAMES, duration, gibibytes, joined, number, output_rate, turned_away
from sim.report.assumptions import assumptions
from sim.report.windows_text import drawn_words, missed_words, served_words, window_facts, within_words
from sim.results.windows import MOST_TURNED_AWAY

LATENCIES = ("ttft_s", "queue_s", "tpot_s", "itl_s", "stall_s", "e2e_s")
STATISTICS = ("mean", "p50", "p90", "p99", "max")
LOADS = {"rate_per_s": "requests/s", "time_scale": "times as fast"}
TPOT = "TPOT is (E2E - TTFT) / (output tokens - 1) of a request; ITL is each gap between two tokens"
PLAIN = str.maketrans(
    {
        "\N{LESS-THAN OR EQUAL TO}": "<=",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{EN DASH}": "-",
        "\N{MICRO SIGN}": "u",
        "\N{RIGHTWARDS ARROW}": "->",
    }
)


def plain(text: str) -> str:
    """*text* in ASCII, for terminals and pipes that cannot show more."""
    return text.translate(PLAIN).encode("ascii", "replace").decode("ascii")


def headline(knee: Knee) -> str:
    """The answer in one sentence."""
    limits = knee.asked
    asked = joined([str(limit) for limit in limits])
    if knee.rate_per_s is None:
        return f"No load meets {asked}: {knee.reason}"
    first = [limit.label for limit in limits if limit.name == knee.breaking_limit]
    served = f"{served_words(knee, interval_words(knee))} {within_words(knee)}"
    if not first and knee.first_unstable_rate_per_s is None:
        return f"Serves at least {served}; nothing gave way"
    if not first and (beyond := first_beyond(knee)) is not None and beyond.turns_away:
        return f"Serves {served}; beyond that, more than {100 * MOST_TURNED_AWAY:g} % are turned away"
    gives_way = first[0] if first else "the queue"
    return f"Serves {served}; {gives_way} gives way first"


def first_beyond(knee: Knee) -> Point | None:
    """The first load tried beyond the knee that does not pass."""
    at = knee.at
    return next((p for p in knee.points if at and p.load > at.load and not p.passes), None)


def interval_words(knee: Knee) -> str:
    """` (95 % interval 5.5-5.7 sampling, 5.1-6.1 in total)`, or nothing where there is none."""
    interval = knee.load_interval
    if interval is None:
        return ""
    name = f"{100 * interval.confidence:.3g} % interval"
    sampling = f"{_range(interval.sampling)} sampling"
    total = interval.total
    return f" ({name} {sampling}, {_range(total)} in total)" if total else f" ({name} {sampling})"


def interval_facts(knee: Knee) -> list[tuple[str, str]]:
    """Where the interval comes from: each part, half its width in percent of the knee."""
    interval = knee.interval
    if interval is None or knee.rate_per_s is None:
        return []
    low, high = interval.sampling
    widths = {"sampling": (high - low) / 2 / knee.rate_per_s}
    widths |= {name: part.relative for name, part in interval.parts.items()}
    words = [
        f"{name.replace('_', ' ')} {100 * width:.1f} %" for name, width in widths.items() if width >= 5e-4
    ]
    each = f" of {interval.requests:,} requests" if interval.requests else ""
    drawn = ("replications", f"{interval.replications}{each}")
    if interval.drawn is not None:
        drawn = ("traces drawn again", drawn_words(interval.replications, interval.drawn))
    facts = [("interval, +-", ", ".join(words)), drawn]
    if knee.binding and knee.binding["resource"]:
        shown = {n: e for n, e in knee.binding["elasticities"].items() if abs(e) >= 0.005}
        ranked = sorted(shown, key=lambda name: -shown[name])
        listed = ", ".join(f"{name.replace('_', ' ')} {shown[name]:+.2f}" for name in ranked)
        facts.append(("what binds", f"{listed} (percent of the knee a percent more of each)"))
    return facts


def hardware_facts(knee: Knee) -> list[tuple[str, str]]:
    """Power knee, roofline knees and cache knee, each with a reason where there is none."""
    facts = []
    if len(knee.points) > 1:
        facts.append(("power knee", _per_s(knee.power_knee_rate_per_s, "requests")))
    names = {
        "linear_batch": "linear layers compute-bound",
        "ten_percent_batch": "decode step 10 % slower",
        "kv_equals_weights_batch": "KV reads equal weights",
    }
    found = knee.hardware_knees.get("roofline_knees", {})
    for name, words in names.items():
        if name in found:
            batch = found[name]
            reason = f"never: {found.get(f'{name}_reason')}"
            facts.append((words, reason if batch is None else f"from a batch of {number(batch)}"))
    if (cache := knee.hardware_knees.get("cache_knee_batch")) is not None:
        facts.append(("cache full", f"from a batch of {number(cache)}"))
    return facts


def knee_text(knee: Knee) -> str:
    """The answer, what it was judged by, and every load tried."""
    notes = [f"note: {warning}" for warning in knee.warnings]
    held = aligned(list(assumptions(knee.scenario, knee.requests).items()))
    answer = [f"{headline(knee)}."]
    return _blocks(answer, aligned(knee_facts(knee)), table(*points_table(knee)), held, notes)


def knee_facts(knee: Knee) -> list[tuple[str, str]]:
    """What there is to say beside the headline, each with its name."""
    facts = [
        ("capacity", _per_s(knee.capacity_rate_per_s, "requests")),
        ("saturated throughput", _per_s(knee.saturated_output_throughput, "output tokens")),
        *hardware_facts(knee),
    ]
    if knee.at is None:
        return facts
    served = _per_s(output_rate(knee.at.summary), "output tokens")
    price = cost_words(knee.at.summary.get("cost"))
    at_knee = [
        *(window_facts(knee.at.summary) if knee.windows else []),
        ("throughput at the knee", served),
        ("cost at the knee", price or "unknown"),
    ]
    return [("beyond the knee", knee.reason), *interval_facts(knee), *facts, *at_knee]


def run_text(summary: Mapping[str, Any]) -> str:
    """A run's summary: who was served, how fast, at what occupancy."""
    counts = summary["requests"]
    lost = turned_away(counts)
    served = f"{counts['completed']:,} of {counts['offered']:,} requests completed"
    stability = [] if summary["stable"] else [unstable_words(summary)]
    cache = summary.get("kv_cache", {})
    usage = f"{_percent(cache.get('usage_mean'))} mean, {_percent(cache.get('usage_max'))} max"
    tokens = _per_s(output_rate(summary), "output tokens")
    facts = [
        ("throughput", f"{_per_s(output_rate(summary, 'request_throughput'), 'requests')}, {tokens}"),
        ("goodput", _goodput(summary)),
        *window_facts(summary),
        ("KV cache in use", usage),
        *_sharing_facts(summary),
        ("batch size, mean", number(summary.get("batch_size_mean"))),
        ("in the system, mean", number(summary.get("concurrency_mean"))),
        ("preemptions", number(summary.get("preemptions"))),
        ("head of the queue", held_words(summary.get("binding"))),
        ("cost", cost_words(summary.get("cost")) or "-"),
    ]
    return _blocks(
        [f"{served}; {lost}" if lost else served, *stability],
        [*table(*latency_table(summary)), TPOT],
        aligned(facts),
        [f"note: {text}" for text in summary.get("warnings", ()) if not text.startswith("unstable")],
    )


def _sharing_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the prefix cache found, and TTFT by traffic class: of runs that have something to tell."""
    facts = []
    if summary.get("prefix_cache_hit_tokens"):
        facts.append(
            ("found in prefix cache", f"{_percent(summary['prefix_cache_hit_rate'])} of the prompt tokens")
        )
    classes = summary.get("by_class", {})
    if len(classes) > 1:
        facts += [(f"TTFT p99, {name}", duration(row["ttft_s"]["p99"])) for name, row in classes.items()]
    return facts


def memory_text(ledger: Mapping[str, Any]) -> str:
    """The memory of one GPU as the engine's log accounts for it, ending in how many requests fit."""
    parts = ("weights", "activation", "overhead", "fragmentation", "kv_cache")
    left = ledger["gpu_memory_bytes"] - sum(ledger.get(f"{part}_bytes") or 0 for part in parts)
    rows = [
        ("GPU memory", gibibytes(ledger["gpu_memory_bytes"])),
        ("weights", gibibytes(ledger["weights_bytes"])),
        ("activations", gibibytes(ledger["activation_bytes"])),
        ("overhead", gibibytes(ledger["overhead_bytes"])),
        ("fragmentation", gibibytes(ledger.get("fragmentation_bytes"))),
        ("KV cache", gibibytes(ledger["kv_cache_bytes"])),
        *([("left to others", gibibytes(left))] if ledger["fits"] else []),
        ("KV bytes a token", f"{ledger['kv_bytes_per_token']:,.0f} B"),
        ("blocks", f"{_whole(ledger['num_gpu_blocks'])} of {ledger['block_size']} tokens"),
        ("KV cache tokens", _whole(ledger["kv_cache_tokens"])),
        (
            "requests at full context",
            f"{number(ledger['max_concurrency'])} of {_whole(ledger['max_model_len'])} tokens",
        ),
        ("requests at mean context", number(ledger.get("mean_concurrency"))),
    ]
    verdict = "fits" if ledger["fits"] else f"does not fit: {ledger.get('reason') or 'the pool is too small'}"
    return _blocks(aligned(rows), [verdict])


def bench_text(figures: Mapping[str, Any]) -> str:
    """The simulator's speed: seconds a request, and how many bare timeouts that is."""
    cells = [
        [
            name,
            f"{row['requests']:,}",
            duration(row["seconds_per_request"], padded=True),
            number(row["timeouts_per_request"], padded=True),
        ]
        for name, row in figures["scenarios"].items()
    ]
    lines = table(["scenario", "requests", "time a request", "bare timeouts a request"], cells)
    return _blocks(lines, [f"bare timeouts: {number(figures['bare_timeouts_per_s'])} a second"])


def points_table(knee: Knee) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the table of loads: verdict, rates, each limit's statistic, KV cache.

    Where windows decide, a limit's statistic is that of the worst window that may not miss it.
    """
    limits, by_windows = knee.asked, knee.may_miss is not None
    loads = [LOADS[name] for name in knee.points[0].loads]
    missed = ["windows missed"] if by_windows else []
    labels = [limit.label + (", worst" if by_windows else "") for limit in limits]
    header = [*loads, "verdict", *missed, "tokens/s", *labels, "KV mean", "KV max"]
    cells = []
    for point in knee.points:
        cache = point.summary.get("kv_cache", {})
        cells.append(
            [
                *(number(load, padded=True) for load in point.loads.values()),
                verdict_of(knee, point),
                *([missed_words(point.summary)] if by_windows else []),
                number(output_rate(point.summary), padded=True),
                *(duration(limit.value_s(point.summary), padded=True) for limit in limits),
                _percent(cache.get("usage_mean")),
                _percent(cache.get("usage_max")),
            ]
        )
    return header, cells


def verdict_of(knee: Knee, point: Point) -> str:
    """A word or a few: knee, passes, queue grows, turns away so many, or which limits are missed."""
    if point is knee.at:
        return "knee"
    if point.turns_away:
        return f"turns away {number(100 * turned_away_share(point.summary), 2)} %"
    if not point.stable:
        return "queue grows"
    if not point.completed:
        return "nothing served"
    return "misses " + ", ".join(limit.label for limit in point.broken) if point.broken else "passes"


def latency_table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a run's latencies; an undefined row ends in its reason."""
    cells = []
    for key in LATENCIES:
        statistics = summary.get(key)
        if statistics is None:
            continue
        name = NAMES[key.removesuffix("_s")]
        reason = statistics.get("reason") or ""
        cells.append(
            [
                name,
                *(duration(statistics.get(x), padded=True) for x in STATISTICS),
                str(statistics.get("n", "")),
                reason,
            ]
        )
    header = ["latency", *STATISTICS, "n", ""]
    if not any(row[-1] for row in cells):
        return header[:-1], [row[:-1] for row in cells]
    return header, cells


def table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as their widest cell; numbers to the right, words to the left."""
    columns = [list(column) for column in zip(*cells, strict=True)]
    sides = [str.rjust if all(_is_numeric(cell) for cell in column) else str.ljust for column in columns]
    widths = [max(map(len, [name, *column])) for name, column in zip(header, columns, strict=True)]
    rows = [header, ["-" * width for width in widths], *cells]
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def markdown_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """The same as Markdown."""
    rows = [list(header), ["---"] * len(header), *map(list, cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def aligned(facts: Sequence[tuple[str, str]]) -> list[str]:
    """`name   value` lines with the values below each other."""
    width = max(len(name) for name, _ in facts)
    return [f"{name:<{width}}  {value}" for name, value in facts]


def cost_words(cost: Mapping[str, Any] | None) -> str | None:
    """`$0.42 a million output tokens`, or None where no price or no token is known."""
    dollars = (cost or {}).get("usd_per_1m_output_tokens")
    return None if dollars is None else f"${dollars:,.2f} a million output tokens"


def held_words(binding: Mapping[str, Any] | None) -> str:
    """What held up the next in the queue, as shares of busy time: `waits 71 % for max_num_seqs`."""
    shares = (binding or {}).get("shares", {})
    held = sorted((name for name in shares if name != "nothing"), key=lambda name: -shares[name])
    words = [f"{_percent(shares[name])} for {name}" for name in held if shares[name] >= 0.0005]
    return f"waits {', '.join(words)} (of busy time)" if words else "waits for nothing"


def unstable_words(summary: Mapping[str, Any]) -> str:
    growth = number(summary.get("queue_growth_per_s"))
    return f"UNSTABLE: the queue grows by {growth} requests/s; percentiles depend on how long one looks"


def _is_numeric(cell: str) -> bool:
    return cell[:1].isdigit() or cell == "-"


def _goodput(summary: Mapping[str, Any]) -> str:
    share = summary.get("goodput_fraction")
    if share is None:
        return "-"
    return f"{number(summary['request_goodput'])} requests/s ({_percent(share)} of offered)"


def _per_s(value: float | None, what: str) -> str:
    return "unknown" if value is None else f"{number(value)} {what}/s"


def _range(ends: Sequence[float]) -> str:
    return f"{number(ends[0])}\N{EN DASH}{number(ends[1])}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _blocks(*blocks: list[str]) -> str:
    """Blocks of lines with an empty line between them; empty blocks vanish."""
    return "\n\n".join("\n".join(block) for block in blocks if block)
