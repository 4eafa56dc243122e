"""A scenario in simulated time: the only code that knows SimPy."""

from sim.simulation.clockwork import Clockwork
from sim.simulation.server import Run, ledger_of
from sim.simulation.simulate import simulate, simulate_in_parts

__all__ = ["Clockwork", "Run", "ledger_of", "simulate", "simulate_in_parts"]
