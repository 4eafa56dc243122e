"""The prefix cache: which free blocks still hold content that a prompt may begin with.

The engine keeps one list of free blocks. A block that is given back with content in it (a full block:
its hash is known) goes to the end of the list, a request's last block first; one without goes to the
front; blocks are taken from the front and lose their content. So content is evicted in the order of its
last use, and the tail of a prompt before its head. A block that somebody holds is in no list.

Block by block, a long prompt would cost hundreds of steps of Python. Blocks are anonymous, though, and
what is next to each other in a prompt is nearly always next to each other in the list. So the list is one
of *pieces*: neighbouring blocks of one content with the same number of holders. Blocks without content are
a number, since they all lie in front. A hit on part of a piece splits it; the rest stays where it was.

What a sequence's tokens are is told by streams (`Content`): two sequences that name the same stream have
the same tokens as far as both follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Union

ENDLESS = 1 << 60


class Content:
    """What the tokens of a sequence are, and what of them the prefix cache knows.

    *shared* lists (stream, end): up to token *end*, exclusive, they are those of that stream, which others
    may have too. What follows, the answer included, is the sequence's own (*tail* -1) or of stream *tail*.
    *path* is the same in blocks: (stream, end), None for its own. *holdings* are the sequence's
    *full_blocks* blocks with known content as (piece, end).
    """

    __slots__ = ("full_blocks", "holdings", "path")

    def __init__(self, block_size: int, shared: tuple[tuple[int, int], ...] = (), tail: int = -1) -> None:
        self.full_blocks = 0
        self.holdings: list[tuple[Piece, int]] = []
        path: list[tuple[int | None, int]] = []
        first = 0
        for stream, end_token in shared:
            end = end_token // block_size
            if end > first:
                path.append((stream, end))
                first = end
        path.append((None if tail < 0 else tail, ENDLESS))
        self.path = path

    @property
    def tail(self) -> int | None:
        """The stream of the answer, None for the sequence's own."""
        return self.path[-1][0]


_NOBODY = Content(1)  # the stream of what nobody will look for
Stream = Union[int, Content]  # noqa: UP007  # a content that several may have, or what one sequence has


class Piece:
    """Blocks *first* to *end* (exclusive) of a stream: one copy of them, *holders* sequences use it.

    *rest* is what was split off at *end*: whoever held more than this piece goes on there. *older* and
    *newer* are its neighbours in the list of free blocks.
    """

    __slots__ = ("end", "first", "holders", "newer", "older", "rest", "stream")

    def __init__(self, stream: Stream, first: int, end: int, holders: int) -> None:
        self.stream = stream
        self.first = first
        self.end = end
        self.holders = holders
        self.rest: Piece | None = None
        self.older = self.newer = self

    def __repr__(self) -> str:
        return f"<Piece {self.stream}[{self.first}:{self.end}] x{self.holders}>"


class Hit(NamedTuple):
    """The longest cached beginning of a sequence, in blocks, and how many of those are free."""

    blocks: int
    free_blocks: int
    parts: list[tuple[Piece, int, int]]  # first and end block of each piece's share


NO_HIT = Hit(0, 0, [])


class PrefixCache:
    """Content of the blocks of a pool, and the order in which it is lost.

    The scheduler counts free blocks (*cached-but-free ones included*) and takes them without saying which;
    it says how many are left before anything that depends on their order (`settle`).
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blank_blocks = num_blocks  # free, without content
        self.cached_blocks = 0  # free, with content
        self.evicted_blocks = 0  # that have lost content which somebody could have looked for
        self._streams: dict[Stream, list[Piece]] = {}  # of each stream, oldest copy first
        self._list = Piece(_NOBODY, 0, 0, 0)  # its newer neighbour is the next to be taken

    def lookup(self, content: Content, tokens: int) -> Hit:
        """What is cached of the *tokens* of *content*: not the last, which is computed to be answered."""
        block, free = 0, 0
        parts: list[tuple[Piece, int, int]] = []
        last = (tokens - 1) // self.block_size
        for stream, end in content.path:
            pieces = self._streams.get(content if stream is None else stream)
            if pieces is None:
                break
            if end > last:
                end = last
            while block < end:
                piece, until = _oldest_copy(pieces, block, end)
                if piece is None:
                    return Hit(block, free, parts)
                parts.append((piece, block, until))
                if not piece.holders:
                    free += until - block
                block = until
            if block == last:
                break
        return Hit(block, free, parts) if block else NO_HIT

    def hold(self, content: Content, hit: Hit) -> None:
        """*content* uses the blocks of *hit* from now on; those that were free are no longer."""
        for piece, first, end in hit.parts:
            while first >= piece.end and piece.rest is not None:  # split for an earlier part
                piece = piece.rest
            if first > piece.first:
                piece = self._split(piece, first)
            if end < piece.end:
                self._split(piece, end)
            if not piece.holders:
                self._unlink(piece)
            piece.holders += 1
            content.holdings.append((piece, end))
        self.cached_blocks -= hit.free_blocks
        content.full_blocks = hit.blocks

    def fill(self, content: Content, tokens: int) -> None:
        """The blocks that *tokens* computed tokens of *content* fill can be found from now on."""
        full, first = tokens // self.block_size, content.full_blocks
        if full <= first:
            return
        for stream, end in content.path:
            if end > first:
                if end > full:
                    end = full
                self._add(content, content if stream is None else stream, first, end)
                if end == full:
                    break
                first = end
        content.full_blocks = full

    def give_back(self, content: Content, blocks: int) -> int:
        """Who held *blocks* of *content* no longer does; returns how many nobody else holds."""
        blank = blocks - content.full_blocks
        self.blank_blocks += blank
        cached = 0
        for held, end in reversed(content.holdings):
            for piece in (held,) if held.end >= end else reversed(list(_until(held, end))):
                piece.holders -= 1
                if not piece.holders:
                    cached += piece.end - piece.first
                    self._free(piece)
        self.cached_blocks += cached
        content.holdings = []
        content.full_blocks = 0
        return blank + cached

    def leave(self, full_blocks: int, blank_blocks: int) -> None:
        """Who was alone with its tokens gives back *full_blocks* of them, and *blank_blocks* others."""
        self.blank_blocks += blank_blocks
        self.cached_blocks += full_blocks
        newest = self._list.older
        if newest.stream is not _NOBODY or newest is self._list:
            newest = Piece(_NOBODY, 0, 0, 0)
            _link(newest, self._list.older, self._list)
        newest.end += full_blocks

    def settle(self, free_blocks: int) -> None:
        """Blocks were taken until *free_blocks* are left: blank ones first, then the oldest content."""
        if not self.cached_blocks:  # and then nobody has said which blocks came back
            self.blank_blocks = free_blocks
            return
        taken = self.blank_blocks + self.cached_blocks - free_blocks
        if taken <= self.blank_blocks:
            self.blank_blocks -= taken
            return
        taken -= self.blank_blocks
        self.blank_blocks = 0
        self.cached_blocks -= taken
        while taken:
            piece = self._list.newer
            size = piece.end - piece.first
            if size > taken:
                piece.end -= taken
                size = taken
            else:
                self._unlink(piece)
                if piece.stream is not _NOBODY:
                    self._forget(piece, piece.stream)
            taken -= size
            if piece.stream is not _NOBODY:
                self.evicted_blocks += size

    # -- pieces ------------------------------------------------------------------------------------

    def _add(self, content: Content, stream: Stream, first: int, end: int) -> None:
        """A copy of blocks *first* to *end* of *stream*, newer than all others, which *content* holds."""
        pieces = self._streams.setdefault(stream, [])
        if pieces and content.holdings:
            last, held = content.holdings[-1]
            if last is pieces[-1] and last.holders == 1 and last.end == held == first:
                last.end, last.rest = end, None
                content.holdings[-1] = last, end
                return
        piece = Piece(stream, first, end, 1)
        pieces.append(piece)
        content.holdings.append((piece, end))

    def _split(self, piece: Piece, at: int) -> Piece:
        """Cut *piece* in two at block *at*; returns the upper part, which would be evicted first."""
        upper = Piece(piece.stream, at, piece.end, piece.holders)
        upper.rest, piece.rest, piece.end = piece.rest, upper, at
        pieces = self._streams[piece.stream]
        pieces.insert(pieces.index(piece) + 1, upper)
        if not piece.holders:
            _link(upper, piece.older, piece)
        return upper

    def _free(self, piece: Piece) -> None:
        """*piece* becomes the newest of the list, one with what was behind it where that has just come."""
        newest = self._list.older
        if newest.stream == piece.stream and newest.first == piece.end and newest is not self._list:
            pieces = self._streams[piece.stream]
            at = pieces.index(piece) + 1
            if at < len(pieces) and pieces[at] is newest:  # no copy between them in age
                piece.end, piece.rest = newest.end, newest.rest
                self._unlink(newest)
                del pieces[at]
        _link(piece, self._list.older, self._list)

    def _forget(self, piece: Piece, stream: Stream) -> None:
        pieces = self._streams[stream]
        if len(pieces) == 1:
            del self._streams[stream]
        else:
            pieces.remove(piece)

    def _unlink(self, piece: Piece) -> None:
        piece.older.newer, piece.newer.older = piece.newer, piece.older


def _link(piece: Piece, older: Piece, newer: Piece) -> None:
    piece.older, piece.newer = older, newer
    older.newer = newer.older = piece


def _until(piece: Piece, end: int) -> Iterator[Piece]:
    """*piece* and what was split off from it, up to block *end*."""
    yield piece
    while piece.end < end and piece.rest is not None:
        piece = piece.rest
        yield piece


def _oldest_copy(pieces: list[Piece], block: int, end: int) -> tuple[Piece | None, int]:
    """The oldest piece with *block* in it, and up to where, at most *end*, it is the oldest."""
    for piece in pieces:
        if piece.first <= block < piece.end:
            return piece, min(end, piece.end)
        if block < piece.first < end:  # from there on this one is older than any behind it
            end = piece.first
    return None, block
