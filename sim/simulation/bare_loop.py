"""What SimPy itself charges: the yardstick of ``kneesim bench``."""

from __future__ import annotations

from collections.abc import Generator

from simpy import Environment, Event


def bare_loop(timeouts: int) -> None:
    """``yield env.timeout(1)``, over and over, in one process of an empty environment."""

    def ticks(env: Environment) -> Generator[Event, None, None]:
        for _ in range(timeouts):
            yield env.timeout(1)

    env = Environment()
    env.process(ticks(env))
    env.run()
