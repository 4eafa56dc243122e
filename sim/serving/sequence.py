"""A request's progress in a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.serving.prefix_cache import Content

# LEAVING has its last token and keeps slot and blocks for one step more (asynchronous scheduling).
WAITING, PREFILL, DECODE, DONE, LEAVING = range(5)


class Sequence:
    """One request inside a replica: what the scheduler needs to know of it, and no more.

    A decoding sequence is not touched while it decodes. Its length follows from *origin*: after
    iteration t it holds ``origin + t`` computed tokens. *generated* is therefore up to date only
    outside decoding, and `Scheduler` says what a sequence holds when somebody asks.
    """

    __slots__ = (
        "admission",
        "blocks",
        "came",
        "computed",
        "content",
        "finish_iteration",
        "first_row",
        "gap_since_s",
        "generated",
        "index",
        "origin",
        "output_tokens",
        "priority",
        "prompt_tokens",
        "read_tokens",
        "reserved_tokens",
        "state",
    )

    def __init__(self, index: int, prompt_tokens: int, output_tokens: int) -> None:
        self.index = index  # its row in the records
        self.came = index  # rises in order of arrival
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens  # at which it stops
        self.read_tokens = 0  # of its answer, then its reader leaves; 0: stays, or has left
        self.priority = 0  # smaller is more urgent
        self.content: Content | None = None  # what its tokens are, where that matters
        self.admission = 0  # rises along the running sequences
        self.generated = 0
        self.computed = 0  # tokens whose KV is in the cache (while it prefills)
        self.blocks = 0  # KV blocks held (while it prefills)
        self.reserved_tokens = 0
        self.origin = 0
        self.finish_iteration = 0
        self.state = WAITING
        self.first_row = 0  # the step log's row of its first decode since it last (re)started
        self.gap_since_s = -1.0  # time of its last token while it is held up; negative: it is not

    def __repr__(self) -> str:
        state = ("waiting", "prefill", "decode", "done", "leaving")[self.state]
        return f"<Sequence {self.index} {state} {self.prompt_tokens}+{self.output_tokens}>"
