"""What traffic is like, in text; and a profile as a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.planning.wording import number
from sim.report.text import aligned, table
from sim.workload.fitting import Fit
from sim.workload.portrait import CACHES_BLOCKS, Portrait


def portrait_text(portrait: Portrait) -> str:
    """Requests, lengths, arrivals in windows, sharing and classes."""
    told = portrait.as_dict()
    facts = [("requests", f"{told['requests']:,}")]
    if told["rate_per_s"]:
        facts.append(("rate", f"{number(told['rate_per_s'])} requests/s over {number(told['span_s'])} s"))
    if upon_answers := told["sent_upon_answers"]:
        facts.append(("not in the rate", f"{upon_answers:,} that users send upon answers"))
    for kind, value in told["lengths"]["correlation"].items():
        facts.append(
            (f"{kind} correlation", "not defined: a length is constant" if value is None else f"{value:.3f}")
        )
    blocks = ["\n".join(aligned(facts)), "\n".join(_lengths(told))]
    if told["arrivals"]:
        blocks.append("\n".join(_windows(told["arrivals"])))
    if told["sharing"]:
        blocks.append("\n".join(aligned(_sharing(told["sharing"]))))
    if told["classes"]:
        blocks.append("\n".join(_classes(told["classes"])))
    return "\n\n".join(blocks)


def _lengths(told: Mapping[str, Any]) -> list[str]:
    names = ("mean", "p50", "p90", "p99", "max")
    rows = [[side, *(_tokens(told["lengths"][f"{side}_tokens"][name]) for name in names)]
            for side in ("prompt", "output")]  # fmt: skip
    return table(["tokens", *names], rows)


def _windows(arrivals: Mapping[str, Any]) -> list[str]:
    rows = zip(
        arrivals["windows_s"],
        arrivals["index_of_dispersion"],
        arrivals["share_without_arrivals"],
        strict=True,
    )
    cells = [[f"{window_s:g}", number(index), f"{100 * quiet:.1f} %"] for window_s, index, quiet in rows]
    return table(["window (s)", "variance / mean of counts (Poisson: 1)", "without arrivals"], cells)


def _sharing(sharing: Mapping[str, Any]) -> list[tuple[str, str]]:
    unlimited = (
        "prefix hits, cache without limit",
        f"{100 * sharing['infinite_hit_ratio']:.1f} % of the tokens",
    )
    return [unlimited, *(
        (f"of {blocks:,} blocks of {sharing['block_tokens']}",
         f"{100 * sharing['lru_hit_ratio'][str(blocks)]:.1f} % of the blocks")
        for blocks in CACHES_BLOCKS
    )]  # fmt: skip


def _classes(classes: Mapping[str, Any]) -> list[str]:
    header = ["class", "share", "prompt p50", "prompt p99", "output p50", "output p99"]
    rows = [
        [name, f"{100 * own['share']:.1f} %"]
        + [_tokens(own[side][p]) for side in ("prompt_tokens", "output_tokens") for p in ("p50", "p99")]
        for name, own in classes.items()
    ]
    return table(header, rows)


def _tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def fit_text(fit: Fit) -> str:
    """The profile beside its trace, and what it does not have."""
    rows = [[name, _value(both["recorded"]), _value(both["drawn"])] for name, both in fit.differences.items()]
    parts = ("arrivals", "lengths", "prefixes")
    kinds = [(key, fit.workload.get(key, {}).get("kind", "none")) for key in parts]
    if classes := fit.workload.get("classes"):
        kinds = [("classes", f"{len(classes)} kinds of requests, each with its rate over time")]
    facts = aligned(kinds)
    sentences = [*(f"Found: {sentence}." for sentence in fit.found),
                 *(f"Not in the profile: {sentence}." for sentence in fit.missed)]  # fmt: skip
    compared = table(["", "trace", f"profile, mean of {len(fit.drawn)} seeds"], rows)
    return "\n\n".join(["\n".join(facts), "\n".join(compared), "\n".join(sentences)]).rstrip()


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def profile_yaml(workload: Mapping[str, Any]) -> str:
    """*workload* as a file: keys in their order, lists of numbers on one line where they fit."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Lists in brackets, mappings in lines."""

    Dumper.add_representer(
        list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
    )
    return yaml.dump(dict(workload), Dumper=Dumper, sort_keys=False, width=110, allow_unicode=True)
