"""The page's last part: memory, what everything rests on, warnings, the scenario itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sim.planning.knee import Knee
from sim.planning.wording import gibibytes, number
from sim.report.answer import how_judged
from sim.report.assumptions import CHECKED_ALONE, assumptions, dtype
from sim.report.page_html import Html, bar, folded, joined, paragraph, section, table, tag, text
from sim.report.page_story import Story
from sim.report.text import points_table
from sim.scenario import Scenario

EIGHT_BIT = ("fp8", "fp8_e4m3", "fp8_e5m2", "int8")
NOT_USED = ("l2_bytes", "power_w")  # of a profile, by any answer


def memory(story: Story) -> Html:
    """The ledger of one GPU as the engine's start-up log accounts for it."""
    ledger, engine = story.ledger, story.knee.scenario.engine
    total = ledger["gpu_memory_bytes"]
    names = {
        "weights": "weights",
        "activation": "activations",
        "overhead": "non-torch and CUDA graphs",
        "fragmentation": "fragmentation",
        "kv_cache": "KV cache",
    }
    sizes = {words: ledger.get(f"{key}_bytes") or 0 for key, words in names.items()}
    rest = total - sum(sizes.values())
    parts = [("weights", sizes["weights"]), ("KV cache", sizes["KV cache"])]
    parts += [(name, sizes[name]) for name in ("activations", "non-torch and CUDA graphs")]
    shares = [(name, size / total) for name, size in [*parts, ("left to others", max(rest, 0))]]
    keys = joined(
        tag("li", joined([tag("i", class_=f"part-{index}"), name])) for index, (name, _) in enumerate(shares)
    )
    utilization = engine.get("gpu_memory_utilization") or 1.0
    rows = [
        ["total memory, as the driver reports", gibibytes(total), ""],
        [f"× gpu_memory_utilization {utilization:g}", gibibytes(utilization * total), "the engine's budget"],
        *([name, gibibytes(size), _how_known(name, engine)] for name, size in sizes.items() if size),
        ["left to others", gibibytes(rest), ""],
    ]
    drawn = bar(f"One GPU, {gibibytes(total)}", shares)
    ledger_rows = table("Memory of one GPU", ["", "size", ""], rows, words=(0, 2))
    return section(
        "memory", "Memory ledger", tag("ul", keys, class_="keys"), drawn, ledger_rows, _pool(ledger)
    )


def _how_known(name: str, engine: Mapping[str, Any]) -> str:
    key = {"activations": "activation_bytes", "non-torch and CUDA graphs": "overhead_bytes"}.get(name)
    if key is None:
        return ""
    return f"engine.{key}" if engine.get(key) is not None else f"estimated; engine.{key} overrides"


def _pool(ledger: Mapping[str, Any]) -> Html:
    rows = [
        ["KV bytes a token", f"{ledger['kv_bytes_per_token']:,.0f} B"],
        ["GPU blocks", f"{ledger['num_gpu_blocks']:,} of {ledger['block_size']} tokens"],
        ["GPU KV cache size", f"{ledger['kv_cache_tokens']:,} tokens"],
        [
            f"maximum concurrency for {ledger['max_model_len']:,} tokens per request",
            f"{ledger['max_concurrency']:.2f}x",
        ],
    ]
    if ledger.get("mean_concurrency") is not None:
        rows.append(["requests at this workload's mean context", number(ledger["mean_concurrency"])])
    return table("What the KV cache holds, as the engine prints it", ["", ""], rows)


def grounds(story: Story) -> Html:
    """The assumptions, each coefficient's origin and error, and each setting's source."""
    knee = story.knee
    held = assumptions(knee.scenario, knee.requests)
    listed = joined(tag("li", joined([tag("b", f"{name}: "), words])) for name, words in held.items())
    provenance = knee.scenario.hardware.get("provenance") or {}
    used = [key for key in provenance if _is_used(key, knee.scenario)]
    unused = [key for key in provenance if key not in used]
    blocks = [tag("ul", listed), _provenance_table("What this answer uses of the profile", provenance, used)]
    if unused:
        rest = _provenance_table("Also in the profile", provenance, unused)
        blocks.append(folded(f"{len(unused)} numbers of the profile that this answer does not use", rest))
    if origins := knee.scenario.engine.get("provenance"):
        blocks.append(_engine_table(knee.scenario.engine, origins))
    blocks += [*_traffic(knee), _settings(knee)]
    return section("grounds", "Assumptions and where they come from", *blocks)


def _provenance_table(caption: str, provenance: Mapping[str, Any], keys: Sequence[str]) -> Html:
    rows = []
    for key in keys:
        origin = provenance[key]
        errors = [origin.get("error_median_pct"), origin.get("error_p90_pct")]
        shown = "-" if None in errors else f"{errors[0]:g} % / {errors[1]:g} %"
        points = "-" if origin.get("points") is None else f"{origin['points']:,}"
        kind = origin["kind"]
        marked = tag("b", kind) if kind == "estimated" else kind
        rows.append([_path(key), marked, points, shown, origin["source"]])
    header = ["number", "origin", "points", "held-out error, median / p90", "source"]
    return _long_last(table(caption, header, rows, words=(0, 1, 4)))


def _engine_table(engine: Mapping[str, Any], origins: Mapping[str, Any]) -> Html:
    """The numbers of the engine file that say where they come from."""
    rows = []
    for key, origin in origins.items():
        interval, sd = origin.get("interval"), origin.get("relative_sd")
        spread = f"{interval[0]:g} to {interval[1]:g}" if interval else "-" if sd is None else f"sd {sd:.0%}"
        points = "-" if origin.get("points") is None else f"{origin['points']:,}"
        kind = origin["kind"]
        marked = tag("b", kind) if kind == "estimated" else kind
        rows.append([_path(key), _plain(engine.get(key)), marked, points, spread, origin["source"]])
    header = ["setting", "value", "origin", "points", "90 % interval", "source"]
    return _long_last(table(f"Of the engine file {engine.get('name')}", header, rows, words=(0, 2, 5)))


def _long_last(drawn: Html) -> Html:
    """The table with a wide last column, whose cells hold sentences."""
    return Html(re.sub(r'<td class="w">(?=(?:(?!<td).)*</td></tr>)', '<td class="w long">', drawn))


def _is_used(key: str, scenario: Scenario) -> bool:
    """Whether a profile's entry bears on this scenario: its types, and as many GPUs as share a model."""
    engine, provenance = scenario.engine, scenario.hardware["provenance"]
    section_of, _, name = key.partition(".")
    kernel, _, detail = name.partition(".")
    gpus = int(engine.get("tensor_parallel_size") or 1)
    if key in NOT_USED or kernel in CHECKED_ALONE:
        return False
    if section_of == "link":
        return gpus > 1
    if kernel == "all_reduce":
        return gpus > 1 and detail.partition(".")[0] in ("", str(gpus))
    if kernel == "gemm" and detail:
        weights = dtype(scenario, "weight_dtype")
        return detail.startswith(weights) or f"kernels.gemm.{weights}" not in provenance
    eight_bit = dtype(scenario, "kv_cache_dtype") in EIGHT_BIT
    if kernel.endswith("_fp8"):
        return eight_bit
    return not (eight_bit and f"kernels.{kernel}_fp8" in provenance)


def _traffic(knee: Knee) -> list[Html]:
    """What is known of the workload and the model."""
    workload, model = knee.scenario.workload, knee.scenario.model
    facts = [
        ("workload", workload.get("description")),
        ("workload's source", workload.get("source")),
        ("its licence", workload.get("licence")),
        ("model's shape", model.get("source")),
    ]
    rows = [[name, str(words)] for name, words in facts if words]
    for key, origin in (workload.get("provenance") or {}).items():
        rows.append([f"workload {key}: {origin['kind']}", origin["source"]])
    return [_long_last(table("Traffic and model", ["", ""], rows, words=(0, 1)))] if rows else []


def _settings(knee: Knee) -> Html:
    """Each key of the engine, the load, the limits and the run, and where its value was set."""
    scenario = knee.scenario
    rows = []
    for name in ("engine", "admission", "deployment", "load", "slo", "run", "cost"):
        for key, value in (getattr(scenario, name, None) or {}).items():
            if value is not None and key != "provenance":
                path = f"{name}.{key}"
                rows.append([_path(path), tag("code", _plain(value)), scenario.sources.get(path, "-")])
    caption, header = "Settings (base units: seconds, bytes, tokens)", ["key", "value", "set by"]
    drawn = table(caption, header, rows, words=(0, 2))
    return folded(f"{len(rows)} settings and who set each", drawn)


def _path(dotted: str) -> Html:
    """A dotted path that may be broken after its dots."""
    return tag("code", Html(text(dotted).replace(".", ".<wbr>")))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def warnings_of(story: Story) -> list[str]:
    """What the knee and the run at the knee (else at the lowest load) warn of, each once."""
    knee = story.knee
    judged = knee.at or knee.points[0]
    return list(dict.fromkeys([*knee.warnings, *judged.summary.get("warnings", [])]))


def warnings(story: Story) -> Html:
    found = warnings_of(story)
    listed = tag("ul", joined(tag("li", f"{words[:1].upper()}{words[1:]}.") for words in found))
    return section("warnings", "Warnings", listed if found else paragraph("None."))


def loads_tried(story: Story) -> Html:
    """Every run of the search."""
    header, cells = points_table(story.knee)
    words = f"{how_judged(story.knee)} Where the queue grows, percentiles depend on how long one looks."
    drawn = table("Loads, from the lowest", header, cells, words=(0, 1))
    rows = Html(drawn.replace('<tr><th scope="row" class="w">', '<tr><th scope="row" class="n">'))
    return section("loads", "Every load tried", paragraph(words), rows)


def scenario_yaml(story: Story) -> Html:
    """The resolved scenario, ready to be run again."""
    words = (
        "Complete, in base units: saved to a file it gives this answer again. Comments say who set a value."
    )
    code = tag("pre", tag("code", resolved_yaml(story.knee.scenario)), tabindex="0")
    shown = folded("The resolved scenario as YAML", paragraph(words), code)
    return section("scenario", "The scenario", shown)


def resolved_yaml(scenario: Scenario) -> str:
    """*scenario*'s resolved sections as YAML, the source of each value in a comment."""
    resolved = scenario.resolved()
    sources = resolved.pop("sources")
    return "\n".join(_yaml_lines(resolved, sources, "", "")) + "\n"


def _yaml_lines(
    values: Mapping[str, Any], sources: Mapping[str, str], path: str, indent: str
) -> Iterator[str]:
    for key, value in values.items():
        below = f"{path}.{key}" if path else str(key)
        comment = f"  # {sources[below]}" if below in sources else ""
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_flow(key)}:{comment}"
            yield from _yaml_lines(value, sources, below, f"{indent}  ")
        else:
            yield f"{indent}{_flow(key)}: {_flow(value)}{comment}"


def _flow(value: Any) -> str:
    """*value* on one line of YAML."""
    import yaml

    style: dict[str, Any] = {"default_flow_style": True, "allow_unicode": True, "sort_keys": False}
    return yaml.safe_dump(value, width=float("inf"), **style).removesuffix("...\n").strip()


def identity(story: Story, beside: Sequence[str]) -> Html:
    """Version and hashes: what one needs to make the page again."""
    knee = story.knee
    made = knee.points[0].summary["kneesim"]
    lines = [
        joined(["Kneesim ", tag("b", made["version"]), f", seed {knee.scenario.run['seed']}"]),
        joined(["scenario sha256 ", tag("code", knee.scenario.sha256)]),
        joined([f"profile {made['profile']} sha256 ", tag("code", made["profile_sha256"])]),
        joined(["Beside this page: ", joined((tag("code", name) for name in beside), ", ")]),
    ]
    return tag("footer", joined((paragraph(line) for line in lines), "\n"))
