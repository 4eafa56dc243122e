"""Traces whose prompts have block ids: read as they are, checked, and told as the streams they share."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.faults import InputFault
from sim.workload import Contents, generate
from sim.workload.chains import Chains, chain_blocks, check_chains, compress
from sim.workload.trace import Trace, parse_trace

MOONCAKE = {"timestamp": 3000, "input_length": 1200, "output_length": 7, "hash_ids": [0, 1, 2]}
BLOCK = 4


def lines(*records: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


def read(*records: dict[str, Any]) -> Trace:
    return parse_trace(lines(*records), "t.jsonl")


def faults_of(content: bytes, zero_output: str = "drop") -> tuple[str, ...]:
    with pytest.raises(InputFault) as caught:
        parse_trace(content, "t.jsonl", zero_output)
    return caught.value.faults


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Chains of ids in which some go on from a part of an earlier one, and the prompts' tokens."""
    chains: list[list[int]] = []
    fresh = 0
    for _ in range(draw(st.integers(1, 16))):
        before = draw(st.sampled_from([[], *chains]))
        kept, more = draw(st.integers(0, len(before))), draw(st.sampled_from([0, 0, 1, 1, 2, 5]))
        more += kept + more == 0
        chains.append(before[:kept] + list(range(fresh, fresh + more)))
        fresh += more
    return chains, [len(chain) * BLOCK - draw(st.integers(0, BLOCK - 1)) for chain in chains]


def shared_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two chains have in common from the first on."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))  # fmt: skip


def shared_tokens(contents: Contents, one: int, other: int) -> int:
    """How many tokens two requests share, by their segments."""
    shared = 0
    for (a, end), (b, until) in zip(contents.of(one)[0], contents.of(other)[0], strict=False):
        if a != b:
            break
        shared = min(end, until)
        if end != until:
            break
    return shared


def assert_streams_begin_alike(contents: Contents) -> None:
    """Every stream begins at one token after one stream, and ends rise."""
    begins: dict[int, tuple[int, int]] = {}
    for request in range(len(contents)):
        before, start = -1, 0
        segments, tail = contents.of(request)
        for stream, end in segments:
            assert end > start
            assert begins.setdefault(stream, (before, start)) == (before, start)
            before, start = stream, end
        if tail >= 0 and tail != before:
            assert begins.setdefault(tail, (before, start)) == (before, start)


@given(trees())
@settings(max_examples=150, deadline=None)
def test_compressed_chains_share_what_the_ids_do(tree: tuple[list[list[int]], list[int]]) -> None:
    """Between any two requests: the tokens of their common first ids, within both prompts."""
    ids, prompts = tree
    contents = compress(Chains.of(ids, range(len(ids))), np.array(prompts), BLOCK)
    if contents is not None:
        assert_streams_begin_alike(contents)
    for one in range(len(ids)):
        for other in range(one):
            blocks = shared_blocks(ids[one], ids[other])
            expected = min(blocks * BLOCK, prompts[one], prompts[other])
            assert (shared_tokens(contents, one, other) if contents else 0) == expected


@given(trees())
@settings(max_examples=100, deadline=None)
def test_compression_leaves_no_needless_segments(tree: tuple[list[list[int]], list[int]]) -> None:
    """A stream is of two requests at least, and after all of it come two kinds of streams or none."""
    ids, prompts = tree
    contents = compress(Chains.of(ids, range(len(ids))), np.array(prompts), BLOCK)
    if contents is None:
        return
    told = [[stream for stream, _ in contents.of(request)[0]] for request in range(len(ids))]
    after = {(a, b) for streams in told for a, b in pairwise(streams)}
    for stream in range(int(contents.ids.max()) + 1):
        assert sum(stream in streams for streams in told) > 1
        assert sum(before == stream for before, _ in after) != 1


@given(trees())
@settings(max_examples=100, deadline=None)
def test_ids_of_blocks_alone_become_ids_of_prefixes(tree: tuple[list[list[int]], list[int]]) -> None:
    """Blocks that repeat, in a prompt or after others, are told apart by what comes before them."""
    ids, prompts = tree
    blocks = [[name % 3 for name in chain] for chain in ids]
    chained = chain_blocks(Chains.of(blocks, range(len(ids))))
    check_chains(chained, np.array(prompts), BLOCK, "t.jsonl")
    rows = np.split(chained.ids, chained.offsets[1:-1])
    for one in range(len(ids)):
        for other in range(one):
            assert shared_blocks(rows[one].tolist(), rows[other].tolist()) == shared_blocks(
                blocks[one], blocks[other]
            )


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([[1, 2], [3, 2]], "t.jsonl:2: hash id 2 comes after 3 here and after 1 on line 1"),
        ([[1, 2], [2, 4]], "t.jsonl:2: hash id 2 comes first here and after 1 on line 1"),
        ([[1, 2], [3, 1]], "t.jsonl:2: hash id 1 comes after 3 here and first on line 1"),
        ([[5, 5], [6, 7]], "t.jsonl:1: hash id 5 comes after 5 here and first on line 1"),
    ],
)
def test_chains_that_contradict_each_other_are_named(ids: list[list[int]], sentence: str) -> None:
    """By line and by the ids before, with the key that reads such a file."""
    prompts = np.array([len(chain) * BLOCK for chain in ids])
    with pytest.raises(InputFault) as caught:
        check_chains(Chains.of(ids, [1, 2]), prompts, BLOCK, "t.jsonl")
    assert caught.value.faults[0].startswith(sentence)
    assert caught.value.faults[0].endswith("write prefixes.hash_of: block")


def test_a_wrong_block_size_is_told_with_the_right_one() -> None:
    """A prompt has an id for each of its blocks; a last block that is not full may be without."""
    chains = Chains.of([[1, 2], [1, 3, 4]], [1, 2])
    for prompts in ([700, 1500], [1024, 1536], [1100, 1536]):
        check_chains(chains, np.array(prompts), 512, "t.jsonl")
    with pytest.raises(InputFault) as caught:
        check_chains(chains, np.array([700, 1500]), 16, "t.jsonl")
    assert caught.value.faults[0] == (
        "t.jsonl:1: hash_ids has 2 ids for a prompt of 700 tokens, which in blocks of 16 has 44; "
        "prefixes.block_tokens: 512 fits every prompt"
    )


def test_a_mooncake_file_as_it_is() -> None:
    """Milliseconds, whole or not, from the first request; requests of one time in the file's order."""
    trace = read(
        {**MOONCAKE, "timestamp": 6000},
        MOONCAKE,
        {**MOONCAKE, "timestamp": 3000.25, "input_length": 1600, "hash_ids": [0, 1, 8, 9]},
    )
    assert trace.arrival_ns is not None
    assert trace.arrival_ns.tolist() == [0, 250_000, 3_000_000_000]
    whole = read(MOONCAKE, {**MOONCAKE, "timestamp": 6000}).arrival_ns
    assert whole is not None
    assert whole.tolist() == [0, 3_000_000_000]
    assert trace.prompt_tokens.tolist() == [1200, 1600, 1200]
    assert trace.chains is not None
    assert trace.chains.block_tokens == 512
    assert [trace.chains.names[i] for i in trace.chains.ids[3:7]] == [0, 1, 8, 9]
    assert trace.chains.lines.tolist() == [2, 3, 1]
    assert trace.notes == {"trace_rows_sorted": 2}


def test_a_bailian_file_as_it_is() -> None:
    """`chat_id` says that times are seconds and blocks have 16 tokens."""
    chat = {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 20,
            "output_length": 132, "type": "text", "turn": 1, "hash_ids": [4, 5]}  # fmt: skip
    trace = read(chat, {**chat, "chat_id": 160, "timestamp": 62.5})
    assert trace.arrival_ns is not None
    assert trace.arrival_ns.tolist() == [0, 1_386_000_000]
    assert trace.chains is not None
    assert trace.chains.block_tokens == 16


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "t.jsonl is empty"),
        (lines(MOONCAKE) + b"\n{'a': 1}\n", "t.jsonl:2: is not JSON"),
        (lines(MOONCAKE)[:-5], "t.jsonl:1: is not JSON"),
        (lines(MOONCAKE) + b"\n\n[1]", "t.jsonl:3: must be a JSON object"),
        (lines({"timestamp": 1, "input_length": 5}), "t.jsonl:1: no column for the output tokens"),
        (lines({"id": "a", "requests": []}), "t.jsonl:1: a line holds a whole session"),
        (lines({**MOONCAKE, "hash_ids": 7}), "t.jsonl:1: hash_ids must be a list of whole numbers or texts"),
        (lines({**MOONCAKE, "hash_ids": [1, None]}), "t.jsonl:1: hash_ids must be a list"),
        (lines({**MOONCAKE, "input_length": 0}), "t.jsonl:1: input_length must be at least 1"),
        (lines({**MOONCAKE, "input_length": True}), "t.jsonl:1: input_length must be a number (got 'True')"),
        (lines(MOONCAKE, {"timestamp": 1, "output_length": 2}), "t.jsonl:2: input_length is empty"),
        (lines({**MOONCAKE, "timestamp": float("nan")}), "timestamp must be a number (got 'NaN')"),
        (lines({**MOONCAKE, "timestamp": -1}), "t.jsonl:1: timestamp must not be negative"),
        (lines({**MOONCAKE, "timestamp": 1e16}), "is too large for milliseconds"),
    ],
)  # fmt: skip
def test_faults_of_a_file_of_lines(content: bytes, sentence: str) -> None:
    """One fault, one sentence, with the line."""
    faults = faults_of(content)
    assert len(faults) == 1
    assert sentence in faults[0]


def test_zero_output_of_a_file_of_lines() -> None:
    """Dropped with its ids, or refused by line."""
    content = lines({**MOONCAKE, "output_length": 0, "hash_ids": [7, 8, 9]}, MOONCAKE)
    trace = parse_trace(content, "t.jsonl")
    assert trace.chains is not None
    assert trace.chains.lines.tolist() == [2]
    assert len(trace.chains.ids) == 3
    assert faults_of(content, "error")[0].startswith("t.jsonl:1: has no output token")


def test_contents_taken_apart() -> None:
    """Any rows in any order; those set apart share neither prompts nor answers that are gone on from."""
    at = np.array([0, 2, 2, 3])
    contents = Contents(at, np.array([0, 4, 4]), np.array([5, 9, 7]), np.array([4, 2, -1]))
    rows = np.array([2, 0, 1, 0])
    told = [contents.take(rows).of(row) for row in range(4)]
    assert told == [contents.of(row) for row in rows.tolist()]
    apart = contents.take(rows, apart=np.array([0, 0, 1, 2]))
    assert [apart.of(row) for row in range(4)] == [
        (((4, 7),), -1), (((0, 5), (4, 9)), 4), ((), 7), (((10, 5), (14, 9)), 14)
    ]  # fmt: skip


def replay(path: Path, requests: int, prefixes: dict[str, Any] | None = None) -> Any:
    here = {"kind": "trace", "path": str(path)}
    workload = {"arrivals": here, "lengths": here, "prefixes": prefixes or {"kind": "trace"}}
    return generate(workload, {"rate_per_s": 1.0}, {"requests": requests, "seed": 1})


def test_a_trace_sent_again_is_sent_by_others(tmp_path: Path) -> None:
    """The second pass has the rows, and what they share, of the first, and shares nothing with it."""
    path = tmp_path / "day.jsonl.gz"
    rows = [{**MOONCAKE, "timestamp": time, "hash_ids": [0, 1, 10 + time], "output_length": 1 + time}
            for time in range(3)]  # fmt: skip
    path.write_bytes(gzip.compress(lines(*rows)))
    sent = replay(path, 7)
    assert sent.contents is not None
    assert sent.output_tokens.tolist() == [1, 2, 3, 1, 2, 3, 1]
    shared = [[shared_tokens(sent.contents, a, b) for b in range(7) if b != a] for a in (0, 3, 6)]
    assert shared == [[1024, 1024, 0, 0, 0, 0], [0, 0, 0, 1024, 1024, 0], [0] * 6]
    assert sent.notes["prompt_tokens_seen_before"] == 4 * 1024


def test_a_trace_whose_ids_are_passed_over(tmp_path: Path) -> None:
    """Without sharing, and with ids of blocks alone, the requests are the same ones."""
    path = tmp_path / "day.jsonl"
    path.write_bytes(lines(MOONCAKE, {**MOONCAKE, "timestamp": 6000, "hash_ids": [5, 1, 2]}))
    plain = replay(path, 5, {"kind": "none"})
    assert plain.contents is None
    apart = replay(path, 5, {"kind": "trace", "hash_of": "block"})
    assert apart.contents is None  # the first blocks differ
    assert np.array_equal(plain.prompt_tokens, apart.prompt_tokens)
    with pytest.raises(InputFault, match="contradict each other"):
        replay(path, 5)


def test_a_trace_without_ids_or_block_size(tmp_path: Path) -> None:
    """Lines may have no ids; a CSV file cannot have any; an unmarked file needs the block size."""
    bare = {key: value for key, value in MOONCAKE.items() if key != "hash_ids"}
    path = tmp_path / "day.jsonl"
    path.write_bytes(lines(bare, {**bare, "timestamp": 6000}))
    assert replay(path, 2).contents is None
    unmarked = {"arrival_s": 1, "prompt_tokens": 64, "output_tokens": 2, "hash_ids": ["a"]}
    path.write_bytes(lines(unmarked, {**unmarked, "arrival_s": 2}))
    with pytest.raises(InputFault, match=r"write prefixes\.block_tokens"):
        replay(path, 2)
    assert replay(path, 2, {"kind": "trace", "block_tokens": 64}).contents is not None
    table = tmp_path / "day.csv"
    table.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,2\n1,1,2\n")
    with pytest.raises(InputFault, match=r"day\.csv: prefixes\.kind trace needs hash_ids"):
        replay(table, 2)
