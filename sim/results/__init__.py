"""What a run answers, read off its records alone."""

from sim.results.result import Result

__all__ = ["Result"]
