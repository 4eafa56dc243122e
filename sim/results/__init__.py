"""What a run answers, read off its records alone."""

from sim.results.result import Result
from sim.results.streaming import run_of

__all__ = ["Result", "run_of"]
