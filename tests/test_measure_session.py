"""Sessions of `calibrate measure`: time, resumption, and what goes wrong on a card. Without torch."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from fake_device import FakeDevice

from sim import InputFault
from sim.calibration.measure.command import measure, report
from sim.calibration.measure.device import CannotRun
from sim.calibration.measure.points import Point
from sim.calibration.measure.progress import line
from sim.calibration.measure.session import run_session
from sim.calibration.table import COLUMNS, read_tables


def gemms(count: int, dtype: str = "bf16") -> list[Point]:
    return [Point("gemm", dtype, m=16 + index, n=4096, k=4096) for index in range(count)]


def decode(variant: str = "") -> Point:
    return Point(
        "attention_decode", "bf16", batch=8, q_len=1, kv_len=1023, heads=32, kv_heads=8, head_dim=128,
        kv_dtype="bf16", variant=variant,
    )  # fmt: skip


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def sessions(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["sessions"])


def shapes(path: Path) -> list[str]:
    return [row["m"] for row in rows(path) if not row["source"].endswith(("burst", "sustained"))]


def test_the_table_is_one_that_fit_reads(tmp_path: Path) -> None:
    """A session's table has the columns of every kernel table, and its reader takes the rows it knows."""
    out = tmp_path / "t.csv"
    copy = Point("copy", "bf16", bytes=2**20)
    all_reduce = Point("all_reduce", "bf16", bytes=2**20, n_gpus=2, variant="graph")
    run_session(FakeDevice(), [*gemms(3), decode(), decode("ragged"), copy, all_reduce], out, 1.0)
    assert out.read_text(encoding="utf-8").splitlines()[0] == ",".join(COLUMNS)
    table = read_tables([out])
    assert table.card.name == "h100-80gb-sxm"
    read = set(zip(table.rows["op"], table.rows["source"], strict=True))
    assert {
        ("gemm", "kneesim-torch"),
        ("attention_decode", "kneesim-flashinfer"),
        ("attention_decode", "kneesim-flashinfer-ragged"),
        ("all_reduce", "kneesim-torch-graph"),
    } <= read
    assert set(table.left_out["op"]) == {"copy"}


def test_times_are_in_microseconds(tmp_path: Path) -> None:
    """What the device took 1.5 ms for says 1500 in its row."""
    out, point = tmp_path / "t.csv", gemms(1)[0]
    device = FakeDevice()
    device.slow[point] = 1.5e-3
    run_session(device, [point], out, 1.0)
    assert float(rows(out)[0]["time_us"]) == 1500


@pytest.mark.parametrize("minutes", [0.5, 2.0])
def test_the_time_is_kept(tmp_path: Path, minutes: float) -> None:
    """A session with more points than time ends when its minutes are up, the long run included."""
    device = FakeDevice()
    start_s = device.now_s
    _, record = run_session(device, gemms(5000), tmp_path / "t.csv", minutes)
    assert minutes * 60 * 0.95 < device.now_s - start_s < minutes * 60 + 1
    assert record.left == 5000 - record.measured > 0


def test_a_second_session_goes_on(tmp_path: Path) -> None:
    """The same command again measures what is left, nothing twice, and keeps both sessions' conditions."""
    out, points = tmp_path / "t.csv", gemms(300)
    _, first = run_session(FakeDevice(), points, out, 0.4)
    _, second = run_session(FakeDevice(), points, out, 6.0)
    assert 0 < first.measured < 300
    assert first.measured + second.measured == 300
    assert shapes(out) == [str(point.m) for point in points]
    assert [session["measured"] for session in sessions(out)] == [first.measured, second.measured]


def test_a_row_is_of_one_variant_and_one_library(tmp_path: Path) -> None:
    """Ragged lengths are another point than equal ones; a library installed since measures anew."""
    out, device = tmp_path / "t.csv", FakeDevice()
    run_session(device, [decode()], out, 1.0)
    run_session(device, [decode(), decode("ragged")], out, 1.0)
    assert device.measured.count(decode()) == device.measured.count(decode("ragged")) == 1
    device.attention = "vllm_flash_attn"
    run_session(device, [decode(), decode("ragged")], out, 1.0)
    assert device.measured.count(decode()) == device.measured.count(decode("ragged")) == 2


def test_a_killed_session_leaves_a_whole_table(tmp_path: Path) -> None:
    """Whenever it is looked at, the table has whole rows; at most those of a second are missing."""
    out, device, seen = tmp_path / "t.csv", FakeDevice(), []

    def look(point: Point) -> None:
        if out.exists():
            assert out.read_text(encoding="utf-8").endswith("\n")
            assert all(row["time_us"] and None not in row for row in rows(out))
            seen.append(len(device.measured) - len(rows(out)))

    device.before = look
    run_session(device, gemms(100), out, 1.0)
    assert len(seen) > 90
    assert max(seen) <= 1.0 / 0.1


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    """Ctrl-C in the middle loses nothing, and the next session starts there."""
    out, device = tmp_path / "t.csv", FakeDevice()

    def interrupt(point: Point) -> None:
        if len(device.measured) == 37:
            raise KeyboardInterrupt

    device.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_session(device, gemms(100), out, 6.0)
    assert len(rows(out)) == 37
    again = FakeDevice()
    run_session(again, gemms(100), out, 6.0)
    assert again.measured[0] == gemms(100)[37]


def test_what_does_not_fit_is_skipped_and_said(tmp_path: Path) -> None:
    """Out of memory costs one point, which is named beside the table and in the answer, and tried again."""
    out, large = tmp_path / "t.csv", Point("gemm", "bf16", m=16, n=4096, k=65536)
    device = FakeDevice(memory_bytes=1e8)
    table, record = run_session(device, [large, *gemms(3)], out, 1.0)
    assert shapes(out) == ["16", "17", "18"]
    assert sessions(out)[0]["skipped"][0]["point"] == str(large)
    assert "1 points did not fit in memory, such as gemm bf16 m=16 n=4096 k=65536" in report(table, record)
    run_session(FakeDevice(), [large, *gemms(3)], out, 1.0)
    assert len(shapes(out)) == 4


def test_what_has_no_kernel_is_counted_by_reason(tmp_path: Path) -> None:
    """A card without 4-bit kernels measures the rest and says so once, with the number of points."""
    device = FakeDevice()
    table, record = run_session(device, [*gemms(2), *gemms(5, "int4")], tmp_path / "t.csv", 1.0)
    assert record.cannot == {"gemm int4": {"reason": "no kernel for int4", "points": 5}}
    assert "not measured: gemm int4 (5 points): no kernel for int4" in report(table, record)
    assert len(device.tried) == len(set(device.tried)) == 2


def test_a_point_that_fails_is_not_tried_for_ever(tmp_path: Path) -> None:
    """A shape that a library refuses is left out for good; the others go on."""
    out, bad = tmp_path / "t.csv", gemms(3)[1]

    def refuse(point: Point) -> None:
        if point == bad:
            raise CannotRun("shape not supported")

    device, again = FakeDevice(), FakeDevice()
    device.before = refuse
    run_session(device, gemms(3), out, 1.0)
    run_session(again, gemms(3), out, 1.0)
    assert shapes(out) == ["16", "18"]
    assert bad not in again.measured


def test_a_lost_device_ends_the_session_and_the_next_goes_past_it(tmp_path: Path) -> None:
    """A kernel that takes the device down is a sentence; rows before it stay, the next session avoids it."""
    out, deadly = tmp_path / "t.csv", gemms(10)[4]

    def die(point: Point) -> None:
        if point == deadly:
            raise InputFault(f"the device does not answer any more after {point}")

    device = FakeDevice()
    device.before = die
    with pytest.raises(InputFault, match="does not answer"):
        run_session(device, gemms(10), out, 1.0)
    assert len(rows(out)) == 4
    again = FakeDevice()
    again.before = die
    run_session(again, gemms(10), out, 1.0)
    assert len(shapes(out)) == 9


def test_what_has_no_small_points_is_measured_too(tmp_path: Path) -> None:
    """A whole layer is large at its smallest: what is guessed of it comes from a layer that is in no plan."""
    layer = Point(
        "layer_mixed", "bf16", m=2056, n=28672, k=8192, batch=8, q_len=2048, kv_len=8191, heads=64,
        kv_heads=8, head_dim=128, kv_dtype="bf16", variant="fused",
    )  # fmt: skip
    device = FakeDevice()
    run_session(device, [layer], tmp_path / "t.csv", 2.0)
    assert device.measured[0] == layer


def test_a_time_that_is_none_is_no_row(tmp_path: Path) -> None:
    """A clock that saw nothing pass gives no row of zero."""
    out, point = tmp_path / "t.csv", gemms(2)[0]
    device = FakeDevice()
    device.slow[point] = 0.0
    _, record = run_session(device, gemms(2), out, 1.0)
    assert shapes(out) == ["17"]
    assert record.skipped[0]["kind"] == "failed"


def test_long_points_wait(tmp_path: Path) -> None:
    """What would take a fiftieth of the time or more comes after everything shorter."""
    long = Point("gemm", "bf16", m=2**17, n=2**17, k=2**16)  # 2e15 flops
    device = FakeDevice()
    run_session(device, [long, *gemms(50)], tmp_path / "t.csv", 6.0)
    assert device.measured.index(long) == 50


def test_one_long_run_against_bursts(tmp_path: Path) -> None:
    """Six minutes hold half a minute without a pause: rows `burst` and `sustained`, and once a table."""
    out, device = tmp_path / "t.csv", FakeDevice()
    table, record = run_session(device, gemms(20), out, 6.0)
    assert device.sustained_s == [30.0]
    burst, sustained = (
        float(row["time_us"])
        for end in ("burst", "sustained")
        for row in rows(out)
        if row["source"].endswith(end)
    )
    assert sustained / burst == pytest.approx(1.875, rel=1e-3)  # the later half of a card that slows down
    assert "when run on and on, against bursts" in report(table, record)
    again = FakeDevice()
    run_session(again, gemms(25), out, 6.0)
    assert again.sustained_s == []


def test_clocks_are_looked_at_now_and_then(tmp_path: Path) -> None:
    """Conditions are kept at the start, the end, and every ten seconds between."""
    out = tmp_path / "t.csv"
    run_session(FakeDevice(), gemms(5000), out, 2.0)
    kept = sessions(out)[0]["conditions"]
    assert len(kept) == pytest.approx(12, abs=2)
    assert all(entry["sm_mhz"] == 1980.0 for entry in kept)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a,b\n1,2\n", "no kernel table of ours"),
        ("", "no kernel table of ours"),
        (",".join(COLUMNS) + "\nb200-180gb-sxm,s,gemm,bf16,1,2,3,,,,,,,,,1,5\n", "a table of b200-180gb-sxm"),
    ],
)
def test_another_file_is_not_written_over(tmp_path: Path, content: str, sentence: str) -> None:
    """A file that is no table, or one of another card, is refused and left as it was."""
    out = tmp_path / "t.csv"
    out.write_text(content, encoding="utf-8")
    with pytest.raises(InputFault, match=sentence):
        run_session(FakeDevice(), gemms(3), out, 1.0)
    assert out.read_text(encoding="utf-8") == content


def test_another_file_beside_it_is_not_written_over(tmp_path: Path) -> None:
    """Nor is a .json of the table's name that holds something else."""
    beside = tmp_path / "t.json"
    beside.write_text('{"mine": 1}', encoding="utf-8")
    with pytest.raises(InputFault, match="must hold the conditions of t"):
        run_session(FakeDevice(), gemms(3), tmp_path / "t.csv", 1.0)
    assert beside.read_text(encoding="utf-8") == '{"mine": 1}'


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"minutes": 0}, r"--minutes must be a number above 0 .got 0"),
        ({"minutes": float("nan")}, "--minutes must be a number above 0"),
        ({"out": Path("t.json")}, "must not end with .json"),
        ({"out": Path()}, "is a folder"),
        (
            {"models": ["llama-9b", "gwen2-7b"]},
            r"(?s)llama-9b is unknown.*gwen2-7b is unknown; did you mean qwen2-7b",
        ),
    ],
)
def test_faults_of_the_command_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], sentence: str
) -> None:
    """Each before anything is measured, torch or no torch; all unknown models at once."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputFault, match=sentence):
        measure(**{"device": "cpu", "out": Path("t.csv"), **given})


def test_the_bar_says_how_far_and_what(tmp_path: Path) -> None:
    """Half of six minutes is half of the bar; a narrow terminal cuts the end off."""
    assert line(180, 360, "gemm bf16 m=1", 80) == "[############............] 3:00 of 6:00  gemm bf16 m=1"
    assert len(line(180, 360, "gemm bf16 m=1", 30)) == 30
