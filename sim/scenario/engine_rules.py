"""Requirements of engine presets: which settings they have, and what those need of each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.scenario.presets import GROUPS, Preset, engine_preset, preset_names, presets_with

if TYPE_CHECKING:
    from sim.scenario.rules import Report

Values = Mapping[str, Any]


def engine_rules(engine: Values, report: Report) -> None:
    """The rules of the preset of *engine*; none where the preset itself is at fault."""
    if engine.get("preset") not in preset_names():  # told already
        return
    preset = engine_preset(engine["preset"])
    _setting_rules(engine, preset, report)
    _threshold_rules(engine, report)
    _layout_rule(engine, report)
    if not engine.get("enable_chunked_prefill") and preset.scheduler != GROUPS and not preset.reserves_answer:
        _whole_prompt_rules(engine, report)
    _static_rules(engine, report)


def _setting_rules(engine: Values, preset: Preset, report: Report) -> None:
    """A setting that the preset does not have may only say what holds anyway."""
    for key, holds in preset.lacks.items():
        if report.tree.get(("engine", key)) is not None and engine.get(key) not in (None, holds):
            *others, last = presets_with(key)
            have = f"{', '.join(others)} and {last} have it" if others else f"{last} has it"
            report(f"engine.{key}", f"is no setting of engine.preset {preset.name}; {have}")


def _threshold_rules(engine: Values, report: Report) -> None:
    budget, threshold = engine.get("max_num_batched_tokens"), engine.get("long_prefill_token_threshold")
    if budget and threshold and threshold > budget:
        report("engine.long_prefill_token_threshold", f"must be <= max_num_batched_tokens {budget}, or it is "
               f"no limit (got {threshold})")  # fmt: skip
    if engine.get("long_prefill_token_threshold_adaptive") and not threshold:
        report("engine.long_prefill_token_threshold_adaptive", "needs long_prefill_token_threshold, which it "
               "raises")  # fmt: skip


def _layout_rule(engine: Values, report: Report) -> None:
    lacks = "enable_prefix_caching" in engine_preset(engine["preset"]).lacks  # told already
    if engine.get("kv_layout") == "contiguous" and engine.get("enable_prefix_caching") and not lacks:
        report("engine.enable_prefix_caching", "does not go with engine.kv_layout contiguous, which has no "
               "blocks to share")  # fmt: skip


def _whole_prompt_rules(engine: Values, report: Report) -> None:
    """Everything that is due in a step must fit in it, as the engine itself demands when it starts."""
    budget, preset = engine.get("max_num_batched_tokens"), engine["preset"]
    for key, why in (
        ("max_model_len", "computes a prompt in one step"),
        ("max_num_seqs", "decodes all that run in one step"),
    ):
        least = engine.get(key)
        if budget and least and budget < least:
            report(
                "engine.max_num_batched_tokens",
                f"must be >= {key} {least} with engine.preset {preset}, which {why} (got {budget})",
            )


def _static_rules(engine: Values, report: Report) -> None:
    if engine.get("preset") != "static":
        return
    if (layout := engine.get("kv_layout")) not in (None, "contiguous"):
        report("engine.kv_layout", f"must be contiguous with engine.preset static (got {layout})")
    budget, sequences = engine.get("max_num_batched_tokens"), engine.get("max_num_seqs")
    if budget and sequences and budget < sequences:
        report("engine.max_num_batched_tokens", f"must be >= max_num_seqs {sequences} with engine.preset "
               f"static, whose groups decode in one step (got {budget})")  # fmt: skip
