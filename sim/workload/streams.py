"""Named streams of random numbers: one seed, one independent stream for every source of chance."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Scope:
    """The seed of one part of the traffic: its streams are those of *seed* whose names begin with *part*."""

    seed: int
    part: str


Seed = int | Scope


def within(seed: Seed, part: str) -> Scope:
    """The seed of *part* (`classes.chat`), so that no draw of it moves with what is drawn elsewhere."""
    return Scope(seed.seed, f"{seed.part}{part}.") if isinstance(seed, Scope) else Scope(seed, f"{part}.")


def seed_of(run: Mapping[str, Any]) -> Seed:
    """The seed that *run* names, 1 if none."""
    seed = run.get("seed", 1)
    return seed if isinstance(seed, Scope) else int(seed)


def stream(seed: Seed, name: str) -> np.random.Generator:
    """A new generator at the start of the stream *name* of *seed* (an integer >= 0, or part of one).

    Equal seeds and names give equal numbers in every process; any other seed or name gives an
    independent stream. So a run may draw more from one source without moving another, and two runs with
    one seed share their random numbers (common random numbers).

    PCG64DXSM: numpy's recommendation for many streams side by side (plain PCG64 can correlate between
    them), with a period of 2^128 and about the speed of the fastest generator that numpy has.
    """
    if isinstance(seed, Scope):
        return stream(seed.seed, seed.part + name)
    digest = hashlib.sha256(name.encode()).digest()
    key = np.frombuffer(digest, dtype="<u4", count=4).tolist()
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(seed, spawn_key=key)))
