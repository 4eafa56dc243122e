"""Traffic: when requests arrive, how long they are, how long their clients wait.

`generate` makes a run's requests from a resolved scenario's sections; everything is drawn before the clock
starts, from named streams of one seed.
"""

from sim.workload.classes import Users, answers_decide, classes_of, streams_of, take, users_of
from sim.workload.contents import Contents
from sim.workload.lengths import mean_context_tokens, mean_tokens
from sim.workload.patience import again_s
from sim.workload.requests import Follows, Requests, draw_think, generate, generate_chunks
from sim.workload.sharing import lru_hit_ratio, reusable_tokens
from sim.workload.streams import Streams, stream
from sim.workload.trace import Trace, read_trace

__all__ = [
    "Contents",
    "Follows",
    "Requests",
    "Streams",
    "Trace",
    "Users",
    "again_s",
    "answers_decide",
    "classes_of",
    "draw_think",
    "generate",
    "generate_chunks",
    "lru_hit_ratio",
    "mean_context_tokens",
    "mean_tokens",
    "read_trace",
    "reusable_tokens",
    "stream",
    "streams_of",
    "take",
    "users_of",
]
