"""What an engine preset is: a policy over one scheduler frame, and all that can be said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]

CONTINUOUS, PREFILL_FIRST, GROUPS = "continuous", "prefill first", "groups"
"""The schedulers: one budget for decodes and chunks; steps of prompts or of decodes; static groups."""

RECORDED, READ, APPROXIMATED = "recorded", "read, not recorded", "approximated"
"""The engine's own schedules are repeated step by step; its source was read; or the nearest that our
schedulers do, with what they leave out among the limits."""


@dataclass(frozen=True)
class Facts:
    """The four answers in which engines differ most."""

    reserves: str
    """What admission sets aside for a request."""
    head_of_line: str
    """What happens behind a request that cannot be admitted."""
    victim: str
    """Who loses its blocks when they run short, and where it waits again."""
    mixing: str
    """Whether prefill and decode share a step."""

    def as_dict(self) -> dict[str, str]:
        """By the name of the question."""
        return {
            "admission reserves": self.reserves,
            "a request that does not fit": self.head_of_line,
            "when blocks run short": self.victim,
            "prefill and decode": self.mixing,
        }


@dataclass(frozen=True)
class Rule:
    """One rule in plain words, why it is there, and the test that holds it (a function of tests/)."""

    says: str
    why: str = ""
    test: str = ""


@dataclass(frozen=True)
class Chapter:
    """Rules of one kind; those of a step are in the order in which the engine obeys them."""

    title: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Preset:
    """One engine at one version."""

    name: str
    title: str
    scheduler: str
    """`CONTINUOUS`, `PREFILL_FIRST` or `GROUPS`."""
    facts: Facts
    defaults: Callable[[Values, Values, Values], dict[str, Any]]
    """(hardware, model, engine as given) -> every engine key that the preset sets."""
    default_words: Mapping[str, str]
    """How a default follows from GPU, model and other keys, in words; the others are constants."""
    lacks: Mapping[str, Any]
    """Settings that it does not have, and what holds instead."""
    status: str
    """How far it is verified: `RECORDED`, `READ`, or other words where there is no engine to compare with."""
    verification: str
    differences: tuple[str, ...] = ()
    """From the preset *differs_from*."""
    differs_from: str = ""
    chapters: tuple[Chapter, ...] = ()
    limits: tuple[str, ...] = field(default=())
    """What of the engine is not simulated."""
    self_preemption_ends_step: bool = True
    null_blocks: int = 1
    """KV blocks that the engine keeps to itself."""
    reserves_answer: bool = False
    """Admission sets each request's own answer aside too, as long as its limit permits."""
    estimates_answers: bool = False
    """Admission sets a share of the answers to come aside, and who loses blocks is SGLang's choice."""

    @property
    def engine(self) -> str:
        """Its name without the version."""
        return self.name.partition("@")[0]

    @property
    def version(self) -> tuple[int, ...]:
        """Its version, to be compared; empty where it has none."""
        return tuple(int(part) for part in self.name.partition("@")[2].split(".") if part)
