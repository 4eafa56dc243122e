"""What no server can beat: values that the card's datasheet makes impossible, a wrong unit for one."""

from __future__ import annotations

from typing import Any

from sim.hardware import HardwareProfile
from sim.model import ModelSpec
from sim.validation.predict import Case

_ROUNDING = 0.98  # of a bound: published values are rounded


def impossible(case: Case, column: str, value: float) -> str:
    """Why *value* of *column* (ms, or tokens/s) cannot be; nothing if it can.

    A decode step reads every weight outside the embedding once at the datasheet's bandwidth; a token takes
    two flops a weight at its peak. Prompts are all computed: where some were cached, TTFT may well be below.
    """
    latency = column.partition("_")[0]
    if column == "out_tok_s":
        most = _most_tok_s(case)
        return "" if value <= most / _ROUNDING else (
            f"faster than the card's peak: {value:.3g} output tokens/s of at most {most:.3g}; check the unit"
        )  # fmt: skip
    if latency not in ("ttft", "tpot"):
        return ""
    least_ms = 1e3 * (_read_s(case) if latency == "tpot" else _first_token_s(case))
    if value >= _ROUNDING * least_ms:
        return ""
    asks = "were prompts cached?" if latency == "ttft" and value > 1e-2 * least_ms else "check the unit"
    return f"faster than the card's peak: {value:.3g} ms of at least {least_ms:.3g}; {asks}"


def _parts(case: Case) -> tuple[HardwareProfile, ModelSpec, dict[str, Any]]:
    scenario = case.setup.scenario
    return (
        HardwareProfile.from_mapping(scenario.hardware),
        ModelSpec.from_mapping(scenario.model),
        scenario.engine,
    )


def _weights(model: ModelSpec) -> float:
    """Weights that every token meets: all but the embedding."""
    return float(model.parameters - model.vocab_size * model.hidden_size * (not model.tie_word_embeddings))


def _read_s(case: Case) -> float:
    profile, model, engine = _parts(case)
    gpus = engine["tensor_parallel_size"]
    embedding = 2 * model.vocab_size * model.hidden_size * (not model.tie_word_embeddings)
    held = model.weight_bytes(engine["weight_dtype"], gpus) - embedding / gpus
    return held / profile.memory_bandwidth_bytes_per_s


def _token_s(case: Case) -> float:
    """One token's flops at the peak of one replica's GPUs."""
    profile, model, engine = _parts(case)
    peak = profile.peak_flops(model.weight_dtype(engine["weight_dtype"]))
    return 2.0 * _weights(model) / (peak * engine["tensor_parallel_size"])


def _most_tok_s(case: Case) -> float:
    users = case.setup.scenario.load.get("concurrency")
    by_flops = 1.0 / _token_s(case)
    return case.setup.replicas * (by_flops if users is None else min(by_flops, users / _read_s(case)))


def _first_token_s(case: Case) -> float:
    """Mean (and median) wait of prompts that come at the load's rate and take their flops at the peak.

    Half of a finite run's n requests are before the average one: s + n/2 (s - 1/rate), s a prompt's seconds.
    """
    load, point = case.setup.scenario.load, case.point
    prompt_s = (point.isl_mean or 1.0) * _token_s(case)
    behind_s = 0.0
    if "concurrency" not in load:
        between_s = 1.0 / load["rate_per_s"] if "rate_per_s" in load else 0.0
        behind_s = max(prompt_s - between_s, 0.0) * (case.setup.scenario.run["requests"] - 1) / 2
    return prompt_s + behind_s
