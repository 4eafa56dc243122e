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
ATTEMPT = np.dtype(
    [("attempt_request", "i4"), ("attempt_sent_s", "f8"), ("attempt_left_s", "f8"), ("attempt_status", "i1")]
)
PREEMPTED, RESUMED, DECODING_AGAIN = range(3)  # what a request turns to

# Rows are packed as they come: one call a row, and the array is a view of the bytes.
pack_step = Struct("=2df6i2Hb").pack
pack_stretch = Struct("=3i").pack
_pack_gap = Struct("=id").pack
_pack_turn = Struct("=idb").pack
_pack_attempt = Struct("=i2db").pack


class Recorder:
    """Columns that the replica fills.

    *Requests* (index = row of the workload): status, sent_s (if others than the client's intention decide),
    queued_s (enters the engine's queue), first_scheduled_s, first_token_s, finish_s (last token, or leaving),
    preemptions, cached_tokens (found in the prefix cache when first scheduled); partial_answers.
    NaN where it did not happen. They are those of a request's last attempt, but sent_s is the first one's.

    *Steps* (`STEP`): one row a composition (iterations that repeat one batch of decodes) or a step
    with prefill in it: context_tokens are the KV tokens read in the first iteration, prefill_pairs
    the query-key pairs of the chunks, blocks_first and blocks_last the KV blocks in use in its first
    and last iteration, waiting the queue at its end (of a step with prefill: at its start), held_by
    what the head of the queue waited for when it was formed.

    *Stretches* (`STRETCH`): the rows, first to last, in which a request decoded without a break.
    *Gaps* (`GAP`): pauses between two tokens that are no single iteration.
    *Turns* (`TURN`): when a request was preempted, scheduled again, and had its next token, in order.
    *Attempts* (`ATTEMPT`): those that failed and were followed by another, when each was sent and left;
    `column` also has their attempt_tokens, as much of an answer as was computed for them, and of each column
    of requests what it was for them (attempt_cached_tokens and so on).

    A request that is tried again gets a row of its own beyond the requests' (`again`), so that whatever is
    left of its last attempt in an engine does not touch it. `column` shows one row a request all the same,
    and of the logs what its last attempt has written.
    """

    __slots__ = (
        "_last",
        "_retried",
        "abandoned_tokens",
        "attempts",
        "cached_tokens",
        "finish_s",
        "first_scheduled_s",
        "first_token_s",
        "gaps",
        "given_up",
        "num_requests",
        "num_rows",
        "preemptions",
        "queued_s",
        "released_s",
        "sent_s",
        "settled_s",
        "shared_rows",
        "status",
        "steps",
        "stretches",
        "turns",
    )

    def __init__(self, num_requests: int) -> None:
        nan = array("d", [float("nan")])
        self.num_requests = num_requests
        self.status = array("b", bytes(num_requests))
        self.queued_s = nan * num_requests
        self.first_scheduled_s = nan * num_requests
        self.first_token_s = nan * num_requests
        self.finish_s = nan * num_requests
        self.preemptions = array("I", bytes(4 * num_requests))
        self.cached_tokens = array("I", bytes(4 * num_requests))
        self.sent_s: array[float] | None = None  # `expect_delays` makes it a column
        self.released_s: array[float] | None = None  # `expect_silence` does

        self.num_rows = 0
        self.shared_rows = 0  # the last rows of steps that are the next records' too
        self.settled_s = float("inf")  # nothing happens before to a request of the next records
        self.steps = bytearray()
        self.abandoned_tokens = 0  # computed for requests that were then cancelled

        self.stretches = bytearray()
        self.gaps = bytearray()
        self.turns = bytearray()
        self.attempts = bytearray()
        self.given_up: dict[int, int] = {}  # row: tokens of an answer that was given up
        self._retried: list[int] = []  # rows of the log of attempts
        self._last: dict[int, int] = {}  # request: row of its last attempt, where that is not the first

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

    def abandoned(self, row: int, tokens: int, computed_tokens: int) -> None:
        """The answer of *row* was given up after *tokens*; the engine had computed so much for it."""
        self.given_up[row] = tokens
        self.abandoned_tokens += computed_tokens

    def expect_delays(self) -> None:
        """Sends may be later than intended: `sent_s` says when they were."""
        self.sent_s = array("d", [float("nan")]) * self.num_requests

    def expect_silence(self) -> None:
        """Clients may leave without a word: `released_s` says until when the engine went on for nobody."""
        self.released_s = array("d", [float("nan")]) * self.num_requests

    def released(self, row: int, at_s: float) -> None:
        """The engine is done *at_s* with *row*, whose client had left without a word."""
        if self.released_s is not None:
            self.released_s[row] = at_s

    def again(self, request: int, sent_s: float) -> int:
        """The row of another attempt of *request*, whose last one, sent at *sent_s*, has failed."""
        last = self._last.get(request, request)
        self.attempts += _pack_attempt(request, sent_s, self.finish_s[last], self.status[last])
        self._retried.append(last)
        times = (self.queued_s, self.first_scheduled_s, self.first_token_s, self.finish_s, self.released_s)
        for column in times:
            if column is not None:
                column.append(float("nan"))
        for counts in (self.preemptions, self.cached_tokens, self.status):
            counts.append(0)
        self._last[request] = row = len(self.status) - 1
        return row

    def reorder(self, order: np.ndarray) -> None:
        """Makes request *order*[i] the request i; whoever is not in *order* (int64) leaves no record."""
        rows = np.concatenate([order, np.arange(self.num_requests, len(self.status))])
        place = np.full(len(self.status), -1)
        place[rows] = np.arange(len(rows))
        columns = (name for name in self.__slots__ if isinstance(getattr(self, name), array))
        for name in columns:
            values = getattr(self, name)
            own = rows if len(values) == len(self.status) else order
            setattr(self, name, array(values.typecode, np.frombuffer(values, values.typecode)[own].tobytes()))
        for log, row, name in (
            (self.stretches, STRETCH, "stretch_request"),
            (self.gaps, GAP, "gap_request"),
            (self.turns, TURN, "turn_request"),
            (self.attempts, ATTEMPT, "attempt_request"),
        ):
            requests = np.frombuffer(log, row)[name]
            requests[:] = place[requests]
        at = place.tolist()
        self.given_up = {at[row]: tokens for row, tokens in self.given_up.items()}
        self._retried = [at[row] for row in self._retried]
        self._last = {at[request]: at[row] for request, row in self._last.items()}
        self.num_requests = len(order)

    @property
    def partial_answers(self) -> dict[int, int]:
        """Tokens that were computed for requests that were given up, by request."""
        if not self._last:
            return self.given_up
        request = dict(zip(self._last.values(), self._last, strict=True))
        failed = set(self._retried)
        return {request.get(row, row): n for row, n in self.given_up.items() if row not in failed}

    def column(self, name: str) -> np.ndarray:
        """The column *name* as an array, without a copy where no request was tried again."""
        if name == "attempt_tokens":
            return np.array([self.given_up.get(row, 0) for row in self._retried], dtype=np.int64)
        if name.startswith("attempt_") and name not in (ATTEMPT.names or ()):
            values = getattr(self, name.removeprefix("attempt_"))
            return np.array([values[row] for row in self._retried], dtype=values.typecode)
        for packed, row, request in (
            (self.steps, STEP, ""),
            (self.stretches, STRETCH, "stretch_request"),
            (self.gaps, GAP, "gap_request"),
            (self.turns, TURN, "turn_request"),
            (self.attempts, ATTEMPT, ""),
        ):
            if name in (row.names or ()):
                log = np.frombuffer(packed, row)
                return self._of_last_attempts(log, request, name) if request and self._last else log[name]
        values = getattr(self, name)
        if not len(values):
            return np.empty(0, values.typecode)
        whole = np.frombuffer(values, values.typecode)
        if len(whole) == self.num_requests:
            return whole
        rows = np.arange(self.num_requests)
        rows[list(self._last)] = list(self._last.values())
        return whole[rows]

    def _of_last_attempts(self, log: np.ndarray, request: str, name: str) -> np.ndarray:
        """The column *name* of the rows of *log* that last attempts wrote; in *request*, whose they are."""
        requests = np.arange(len(self.status))
        requests[list(self._last.values())] = list(self._last)
        requests[self._retried] = -1
        mine = requests[log[request]]
        return (mine if name == request else log[name])[mine >= 0]
