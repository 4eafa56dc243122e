"""Kernel tables: what a good one gives, and the sentence for each way in which one can be bad."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from sim.calibration.table import COLUMNS, KernelTable, profile_of, read_tables, write_table
from sim.faults import InputFault

SHARED = Path(__file__).parents[2] / "shared" / "data" / "kernels"
CARD = "a100-80gb-sxm"


def gemm(**changes: Any) -> dict[str, Any]:
    """A linear layer of 4096 by 4096, 512 tokens: 17.2 Gflop in 80 us, 69 % of an A100's peak."""
    row = {"op": "gemm", "dtype": "bf16", "m": 512, "n": 4096, "k": 4096, "time_us": 80.0}
    return {"gpu": CARD, "source": "own", **row, **changes}


def decode(**changes: Any) -> dict[str, Any]:
    """64 sequences of 8192 tokens, 8 KV heads: 2.1 GB in 1300 us, 81 % of an A100's bandwidth."""
    shape = {"batch": 64, "kv_len": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128, "kv_dtype": "bf16"}
    row = {"op": "attention_decode", "dtype": "bf16", "time_us": 1300.0}
    return {"gpu": CARD, "source": "own", **row, **shape, **changes}


def reduce(**changes: Any) -> dict[str, Any]:
    """16 MiB a rank over two GPUs in 130 us."""
    row = {"op": "all_reduce", "dtype": "bf16", "bytes": 2**24, "n_gpus": 2, "time_us": 130.0}
    return {"gpu": CARD, "source": "own", **row, **changes}


def written(path: Path, *rows: dict[str, Any], columns: tuple[str, ...] = COLUMNS) -> Path:
    """*rows* as a CSV file."""
    lines = [",".join(columns), *(",".join(str(row.get(name, "")) for name in columns) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def faults_of(*paths: Path, card: str | None = None) -> list[str]:
    """The sentences with which *paths* are refused, without their folder."""
    with pytest.raises(InputFault) as caught:
        read_tables(paths, profile_of(card) if card else None)
    return [sentence.replace(f"{paths[0].parent}/", "") for sentence in caught.value.faults]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.csv"


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_a_table_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    """Sizes come back as floats, names as texts, in every kind of file; what was measured beside is kept."""
    rows = read_tables([written(tmp_path / "first.csv", gemm(), decode(), reduce())]).rows
    copy = write_table(rows.assign(clock_mhz=1410.0), tmp_path / name)
    table = read_tables([copy])
    assert table.card.name == CARD
    assert (table.skipped, table.notes) == ({}, ())
    assert table.rows["op"].tolist() == ["gemm", "attention_decode", "all_reduce"]
    assert table.rows["kv_dtype"].tolist() == ["", "bf16", ""]
    assert table.rows["n"].iloc[0] == 4096.0
    assert table.rows["n"].isna().tolist() == [False, True, True]
    assert table.rows["clock_mhz"].tolist() == [1410.0] * 3


def test_several_tables_are_one(tmp_path: Path) -> None:
    """Rows keep the files' order; a card's alias is the card; columns that no row needs may be absent."""
    few = tuple(name for name in COLUMNS if name in gemm())
    first = written(tmp_path / "a.csv", gemm(), columns=few)
    second = written(tmp_path / "b.csv", decode(gpu="NVIDIA A100-SXM4-80GB"))
    assert read_tables([first, second]).rows["op"].tolist() == ["gemm", "attention_decode"]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (gemm(m="NaN"), "t.csv:3: m must be a number (got NaN)"),
        (gemm(time_us=""), "t.csv:3: time_us is missing"),
        (gemm(time_us=0), "t.csv:3: time_us must be a number above 0 (got 0)"),
        (gemm(time_us="inf"), "t.csv:3: time_us must be a number above 0 (got inf)"),
        (gemm(k=-4096), "t.csv:3: k must be a whole number of at least 1 (got -4096)"),
        (gemm(k="4k"), "t.csv:3: k must be a number (got 4k)"),
        (decode(kv_dtype=""), "t.csv:3: kv_dtype is missing; attention_decode needs it"),
        (decode(batch=1.5), "t.csv:3: batch must be a whole number of at least 1 (got 1.5)"),
        (decode(heads=4), "t.csv:3: kv_heads must not be more than heads"),
        (reduce(n_gpus=1), "t.csv:3: n_gpus must be a whole number of at least 2 (got 1)"),
        (gemm(source=""), "t.csv:3: source is missing"),
    ],
)
def test_a_cell_that_cannot_be_used_is_named_by_its_line(path: Path, row: dict[str, Any], fault: str) -> None:
    """NaN, blank, negative, fractional or textual where the row's operation needs a number."""
    assert faults_of(written(path, gemm(), row)) == [fault]


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    """Two files' cells and an unknown card are one answer; of many faults the first twenty are told."""
    bad = written(tmp_path / "a.csv", *(gemm(m="x") for _ in range(30)))
    odd = written(tmp_path / "b.csv", gemm(gpu="h1000"))
    faults = faults_of(bad, odd)
    assert faults[0] == "a.csv:2: m must be a number (got x)"
    assert faults[20] == "a.csv: and 10 more"
    assert faults[21].startswith("b.csv: gpu: hardware profile h1000 is unknown")
    assert len(faults) == 22


def test_a_missing_column_is_asked_for_where_an_operation_needs_it(path: Path) -> None:
    """Attention needs kv_heads; a table of linear layers does not."""
    columns = tuple(name for name in COLUMNS if name != "kv_heads")
    assert len(read_tables([written(path, gemm(), columns=columns)]).rows) == 1
    assert faults_of(written(path, decode(), columns=columns))[0].startswith("t.csv:1: no column kv_heads; ")


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e-3, "milliseconds"), (1e-6, "seconds"), (1e3, "nanoseconds")]
)
@pytest.mark.parametrize("row", [gemm(m=4096, time_us=640.0), decode(), reduce(bytes=2**28, time_us=2080.0)])
def test_a_wrong_unit_shows_in_impossible_speeds(
    path: Path, row: dict[str, Any], factor: float, unit: str
) -> None:
    """Milliseconds, seconds or nanoseconds in time_us are refused with the unit that would explain them."""
    assert len(read_tables([written(path, row)]).rows) == 1
    (fault,) = faults_of(written(path, {**row, "time_us": row["time_us"] * factor}))
    assert f"is time_us in {unit}?" in fault
    assert f"{row['op']} bf16 of own" in fault


def test_a_few_rows_faster_than_the_card_are_named_and_left_out(path: Path) -> None:
    """One impossible linear layer among twenty is left out, with its line and how far it is over the peak."""
    rows = [gemm(m=512 + i) for i in range(20)] + [gemm(m=600, time_us=20.0)]
    table = read_tables([written(path, *rows)])
    assert len(table.rows) == 20
    assert table.skipped == {"faster than the card's peak": 1}
    (note,) = table.notes
    assert "(line 22 takes 20 us, 3.23 times its FLOP/s)" in note
    tiny = gemm(m=1, n=64, k=64, time_us=0.1)
    assert "(line 2 takes 0.1 us, which no kernel does)" in faults_of(written(path, tiny))[0]


def test_small_warm_weights_may_beat_the_memory(path: Path) -> None:
    """A loop over 8 MiB of weights runs in an L40S's cache: above its memory's speed, and no fault."""
    warm = gemm(gpu="L40S", m=1, n=2048, k=2048, time_us=5.0)
    cold = gemm(gpu="L40S", m=1, n=32768, k=16384, time_us=600.0)
    assert read_tables([written(path, warm)]).notes == ()
    assert "times its memory bandwidth" in faults_of(written(path, cold))[0]


def test_a_table_of_another_card_is_refused(tmp_path: Path) -> None:
    """Another card than the profile's, cards mixed in one table or over two, and cards nobody knows."""
    here, there = gemm(), gemm(gpu="h100-80gb-sxm")
    a, b = written(tmp_path / "a.csv", here), written(tmp_path / "b.csv", there)
    assert faults_of(b, card=CARD) == ["b.csv: the table is of h100-80gb-sxm, the profile of a100-80gb-sxm"]
    several = "the tables are of several cards (a100-80gb-sxm, h100-80gb-sxm); give one card's"
    assert faults_of(a, b) == [several]
    assert faults_of(written(tmp_path / "c.csv", here, there)) == [several]
    (unknown,) = faults_of(written(tmp_path / "d.csv", gemm(gpu="a100-80gb-sx")))
    assert "did you mean a100-80gb-sxm? (for a card" in unknown


def test_a_card_without_a_profile_is_read_with_one_that_stands_in(tmp_path: Path) -> None:
    """Its table is refused with what to do, and read with --base; a known card's and two new ones are not."""
    new = written(tmp_path / "new.csv", gemm(gpu="NVIDIA GeForce RTX 5090"))
    (fault,) = faults_of(new)
    assert fault.endswith("(for a card without a profile: `calibrate fit --base NAME`)")
    l40s = profile_of("l40s-48gb-pcie")
    assert read_tables([new], l40s, stands_in=True).card is l40s
    assert "is unknown" in faults_of(new, card="l40s-48gb-pcie")[0]
    for others in ((gemm(gpu="h100-80gb-sxm"),), (gemm(gpu="one"), gemm(gpu="two"))):
        with pytest.raises(InputFault, match=r"is of h100-80gb-sxm|several cards \(one, two\)"):
            read_tables([written(tmp_path / "others.csv", *others)], l40s, stands_in=True)


def test_what_no_fit_knows_is_kept_apart_and_counted(path: Path) -> None:
    """Unknown operations and dtypes are no fault: they are left out, by reason."""
    norm = {"gpu": CARD, "source": "own", "op": "norm", "dtype": "bf16", "m": 8, "time_us": 3.0}
    table = read_tables([written(path, gemm(), norm, gemm(dtype="nvfp4"), decode(kv_dtype="nvfp4"))])
    assert len(table.rows) == 1
    assert table.skipped == {
        "operation norm is unknown": 1,
        "gemm: dtype nvfp4 is unknown": 1,
        "attention_decode: kv_dtype nvfp4 is unknown": 1,
    }


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, path: Path) -> None:
    """Half a gzip, half a parquet, half a last line; a last line without its end is read, and said."""
    text = written(path, gemm(), gemm(m=1024, time_us=160.0)).read_bytes()
    path.write_bytes(text[:-30])
    assert faults_of(path)[0].endswith("fields; the file is cut off")
    path.write_bytes(text[:-1])
    assert "ends within a line" in read_tables([path]).notes[0]
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(text)[:-20])
    assert faults_of(packed) == ["t.csv.gz: the compressed data end early; the file is cut off"]
    parquet = tmp_path / "t.parquet"
    path.write_bytes(text)
    write_table(read_tables([path]).rows, parquet)
    parquet.write_bytes(parquet.read_bytes()[:-100])
    assert "it may be cut off" in faults_of(parquet)[0]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "t.csv is empty; it needs a header and a line for each timing"),
        (b"gpu,op\n", "t.csv has no rows; a kernel table has a header and a line for each timing"),
        (b"gpu;op\nx;gemm\n", "t.csv:1: the fields are separated by semicolons; separate them by commas"),
        (b"gpu,op\nx,gemm,1,024\n", "t.csv:2: 4 fields, but the header has 2; a number must not have "),
        (
            b"gpu,op\nx,gemm\nx,gemm,1,024\n",
            "t.csv:3: 4 fields, but the header has 2; a number must not have ",
        ),
        (b"gpu,op\nx,ge\xffm\n", "t.csv:2: a table must be text in UTF-8; save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_table_is_refused(path: Path, content: bytes, fault: str) -> None:
    """Empty, a header alone, other separators, more fields than columns, other encodings."""
    path.write_bytes(content)
    assert faults_of(path)[0].startswith(fault)


def test_a_table_given_twice_is_refused(tmp_path: Path, path: Path) -> None:
    """The same file, or a copy of it, would count each timing twice; one shape timed twice is fine."""
    table = written(path, gemm(), decode())
    copy = written(tmp_path / "copy.csv", gemm(), decode())
    assert faults_of(table, table) == ["t.csv is given twice"]
    assert faults_of(table, copy) == ["t.csv, copy.csv: 4 of 4 rows have copies; give each table once"]
    assert len(read_tables([written(path, gemm(), gemm(time_us=81.0))]).rows) == 2


def test_a_file_that_is_not_there_is_named_with_its_neighbour(path: Path) -> None:
    """A misspelt name is answered by the nearest table of the folder."""
    written(path, gemm())
    assert faults_of(path.with_name("tt.csv")) == ["tt.csv is not there; did you mean t.csv?"]
    assert "a kernel table is a file .csv, .csv.gz, .parquet" in faults_of(path.with_name("t.txt"))[0]


@pytest.mark.parametrize("name", ["a100-80gb-sxm", "l40s-48gb-pcie"])
def test_published_tables_are_read_without_false_alarms(name: str) -> None:
    """The L40S's rows all stand, though many small ones ran in its cache. Of the A100's, TensorRT-LLM's
    decode attention has rows above the memory's speed, as if its cache were in 8 bits; they are named."""
    path = SHARED / f"kernels_{name}.csv.gz"
    if not path.exists():
        pytest.skip("the published tables are not here")
    table: KernelTable = read_tables([path])
    assert set(table.skipped) <= {"faster than the card's peak"}
    assert len(table.left_out) == (213 if name == "a100-80gb-sxm" else 0)
    assert set(table.left_out["source"]) <= {"aiconfigurator-trtllm"}
