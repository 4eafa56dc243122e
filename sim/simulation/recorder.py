"""What a run leaves behind: one row a request, one row a batch, in columns.

Columns, not objects: a run of millions of requests costs tens of bytes each.
"""

from __future__ import annotations

from array import array
from struct import Struct

import numpy as np

UNFINISHED, COMPLETED, CANCELLED, REJECTED, NEVER_SCHEDULABLE, TIMED_OUT = range(6)
STATUS = ("unfinished", "completed", "cancelled", "rejected", "never_schedulable", "timed_out")

STEP = np.dtype(
    [
        ("start_s", "f8"),
        ("end_s", "f8"),
        ("prefill_pairs", "f4"),
        ("iterations", "i4"),
        ("context_tokens", "i4"),
        ("prefill_tokens", "i4"),
        ("blocks_first", "i4"),
        ("blocks_last", "i4"),
        ("waiting", "i4"),
        ("decodes", "u2"),
        ("prefill_sequences", "u2"),
        ("held_by", "i1"),
    ]
)
STRETCH = np.dtype([("stretch_request", "i4"), ("stretch_first_row", "i4"), ("stretch_last_row", "i4")])
GAP = np.dtype([("gap_request", "i4"), ("gap_s", "f8")])
TURN = np.dtype([("turn_request", "i4"), ("turn_s", "f8"), ("turn_to", "i1")])
PREEMPTED, RESUMED, DECODING_AGAIN = range(3)  # what a request turns to

# Rows are packed as they come: one call a row, and the array is a view of the bytes.
pack_step = Struct("=2df6i2Hb").pack
pack_stretch = Struct("=3i").pack
_pack_gap = Struct("=id").pack
_pack_turn = Struct("=idb").pack


class Recorder:
    """Columns that the replica fills.

    *Requests* (index = row of the workload): status, queued_s (enters the engine's queue),
    first_scheduled_s, first_token_s, finish_s (last token, or leaving), preemptions, cached_tokens (found
    in the prefix cache when first scheduled); partial_answers.
    NaN where it did not happen.

    *Steps* (`STEP`): one row a composition (iterations that repeat one batch of decodes) or a step
    with prefill in it: context_tokens are the KV tokens read in the first iteration, prefill_pairs
    the query-key pairs of the chunks, blocks_first and blocks_last the KV blocks in use in its first
    and last iteration, waiting the queue at its end (of a step with prefill: at its start), held_by
    what the head of the queue waited for when it was formed.

    *Stretches* (`STRETCH`): the rows, first to last, in which a request decoded without a break.
    *Gaps* (`GAP`): pauses between two tokens that are no single iteration.
    *Turns* (`TURN`): when a request was preempted, scheduled again, and had its next token, in order.
    """

    __slots__ = (
        "abandoned_tokens",
        "cached_tokens",
        "finish_s",
        "first_scheduled_s",
        "first_token_s",
        "gaps",
        "num_rows",
        "partial_answers",
        "preemptions",
        "queued_s",
        "settled_s",
        "shared_rows",
        "status",
        "steps",
        "stretches",
        "turns",
    )

    def __init__(self, num_requests: int) -> None:
        nan = array("d", [float("nan")])
        self.status = array("b", bytes(num_requests))
        self.queued_s = nan * num_requests
        self.first_scheduled_s = nan * num_requests
        self.first_token_s = nan * num_requests
        self.finish_s = nan * num_requests
        self.preemptions = array("I", bytes(4 * num_requests))
        self.cached_tokens = array("I", bytes(4 * num_requests))

        self.num_rows = 0
        self.shared_rows = 0  # the last rows of steps that are the next records' too
        self.settled_s = float("inf")  # nothing happens before to a request of the next records
        self.steps = bytearray()
        self.abandoned_tokens = 0  # computed for requests that were then cancelled

        self.stretches = bytearray()
        self.gaps = bytearray()
        self.turns = bytearray()
        self.partial_answers: dict[int, int] = {}  # tokens that cancelled requests had got

    @property
    def own_rows(self) -> int:
        """Rows of steps that are in no other records."""
        return self.num_rows - self.shared_rows

    def stretch(self, request: int, first_row: int) -> None:
        """*request* decoded in every iteration from row *first_row* to the last row written."""
        if first_row < self.num_rows:
            self.stretches += pack_stretch(request, first_row, self.num_rows - 1)

    def gap(self, request: int, seconds: float) -> None:
        """*request* waited *seconds* between two tokens, over more than one iteration."""
        self.gaps += _pack_gap(request, seconds)

    def turn(self, request: int, at_s: float, to: int) -> None:
        """*request* is preempted, resumed or decodes again (*to*) *at_s*."""
        self.turns += _pack_turn(request, at_s, to)

    def put(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Write *values* into *rows* of the column *name*."""
        self.column(name)[rows] = values

    def column(self, name: str) -> np.ndarray:
        """The column *name* as an array, without a copy."""
        logs = ((self.steps, STEP), (self.stretches, STRETCH), (self.gaps, GAP), (self.turns, TURN))
        for packed, row in logs:
            if name in (row.names or ()):
                return np.frombuffer(packed, row)[name]
        values = getattr(self, name)
        return np.frombuffer(values, values.typecode) if len(values) else np.empty(0, values.typecode)
