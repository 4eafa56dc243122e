"""Traffic: when requests arrive, how long they are, how long their clients wait.

`generate` makes a run's requests from a resolved scenario's sections; everything is drawn before the clock
starts, from named streams of one seed.
"""

from sim.workload.lengths import mean_context_tokens, mean_tokens
from sim.workload.requests import Requests, draw_think, generate
from sim.workload.streams import stream
from sim.workload.trace import Trace, read_trace

__all__ = [
    "Requests",
    "Trace",
    "draw_think",
    "generate",
    "mean_context_tokens",
    "mean_tokens",
    "read_trace",
    "stream",
]
