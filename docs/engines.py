"""Writes docs/engines.md: every preset's rules as it states them, beside what recordings say of ours.

`python docs/engines.py` writes the page. A table of recorded cases stands beside the rules where
tests/recordings has any.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from worked_example import table

from sim.cli.engines import defaults_by_gpu
from sim.scenario import Preset, engine_preset, preset_names, presets_with
from sim.validation.conformance import compare

PAGE = Path(__file__).with_name("engines.md")
RECORDINGS = Path(__file__).parents[1] / "tests" / "recordings"
INTRODUCTION = """
# Engines

Written by `docs/engines.py` from the presets in `sim/scenario/presets/`. What each engine does, rule by
rule, for those who know it to check; the reason, where there is one; and the test that holds the rule.
`kneesim show engine NAME` prints a preset's settings.

Our scheduler does not walk the engine's lists in every step: sequences that decode are counted, and looked at
when they come, go or run short of blocks (`sim/serving/scheduler.py` says why that is the same). The rules
are those of the engine; that ours come to the same is what the recordings are for.
"""


def recorded_cases() -> Iterator[dict[str, Any]]:
    """Every case of every recording."""
    for path in sorted(RECORDINGS.rglob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())


def conformance() -> list[str]:
    """Cases, steps and matches by version, policy, caching and asynchronous scheduling."""
    cases, steps, preemptions, matched = tallies = tuple(Counter[Any]() for _ in range(4))
    for case in recorded_cases():
        config = case["config"]
        kind = (
            f"{config.get('engine', 'vllm')} {config.get('engine_version', '')}".strip(),
            config["policy"],
            "on" if config["enable_prefix_caching"] else "off",
            "on" if config.get("async_scheduling") else "off",
        )
        compared, mismatch = compare(case)
        cases[kind] += 1
        steps[kind] += compared
        matched[kind] += mismatch is None
        preemptions[kind] += sum(len(row[2]) for row in case["trace"])
    if not cases:
        return ["There is no recording in tests/recordings."]
    rows = [[*kind, *(f"{tally[kind]:,}" for tally in tallies)] for kind in sorted(cases)]
    total = [f"{tally.total():,}" for tally in tallies]
    header = [
        "engine",
        "policy",
        "prefix caching",
        "asynchronous",
        "cases",
        "steps",
        "preemptions",
        "matched",
    ]
    return [table(header, [*rows, ["all", "", "", "", *total]])]


def section(preset: Preset) -> Iterator[str]:
    """All that *preset* says of itself."""
    yield f"## {preset.name}"
    yield f"{preset.title}: **{preset.status}**; {preset.verification}."
    yield table(["question", "answer"], [[key, value] for key, value in preset.facts.as_dict().items()])
    if preset.differences:
        yield f"Differences from {preset.differs_from}:"
        yield "\n".join(f"- {difference}" for difference in preset.differences)
    yield from by_gpu(preset)
    if preset.lacks:
        yield (
            "Settings that it does not have: "
            + "; ".join(f"`{key}` ({', '.join(presets_with(key))})" for key in preset.lacks)
            + "."
        )
    if preset.limits:
        yield "Not simulated:"
        yield "\n".join(f"- {limit}" for limit in preset.limits)
    yield from chapters(preset)


def by_gpu(preset: Preset) -> Iterator[str]:
    """The rules of the defaults, and what they come to."""
    yield "Defaults that follow from others:"
    yield "\n".join(f"- `{key}`: {words}" for key, words in preset.default_words.items())
    values = defaults_by_gpu(preset)
    keys = list(next(iter(values.values())))
    if len({tuple(of_gpu.values()) for of_gpu in values.values()}) > 1:
        rows = [[gpu, *(f"{of_gpu[key]:,}" for key in keys)] for gpu, of_gpu in values.items()]
        yield table(["GPU, at 131,072 tokens of context", *keys], rows)


def chapters(preset: Preset) -> Iterator[str]:
    """The numbered rules; those that another preset has told already are not told again."""
    told = engine_preset(preset.differs_from).chapters if preset.differs_from else ()
    shared = [chapter.title for chapter in preset.chapters if chapter in told]
    if shared:
        yield f"As in {preset.differs_from}: {'; '.join(shared)}."
    numbers = count(1)
    for chapter in preset.chapters:
        rows = [
            [str(next(numbers)), rule.says, rule.why, f"`{rule.test}`" if rule.test else ""]
            for rule in chapter.rules
        ]
        if chapter not in told:
            yield f"### {chapter.title} ({preset.name})"
            yield table(["", "rule", "why", "test"], rows)


def page() -> str:
    """The whole page: the preset that others are compared with comes first."""
    presets = [engine_preset(name) for name in preset_names()]
    presets.sort(key=lambda preset: (bool(preset.differs_from), preset.name != "vllm-v1@0.32", preset.name))
    parts = [
        INTRODUCTION.strip(),
        "## Recorded and repeated",
        "Schedules of the engine's own scheduler, without a model, over random cases: every step's tokens by "
        "request, preemptions, ends, free blocks and cached tokens must be ours. `make conformance` and "
        "`kneesim conformance FILE` compare; `tests/record` records. Of 0.33.0, what differs from 0.32.0 is "
        "kept: under fcfs nothing does.",
        *conformance(),
    ]
    return "\n\n".join([*parts, *(part for preset in presets for part in section(preset))]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
