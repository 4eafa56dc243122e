"""What can go wrong around an answer: hopeless limits, Ctrl-C, full disks, closed pipes, nobody served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import Called, on_a_full_disk

import sim.planning.knee
from sim import files

ROOT = Path(__file__).parents[1]
SMALL = """\
hardware: a100-80gb-sxm
model: llama-3-8b
workload: {arrivals: {kind: poisson}, lengths: {kind: fixed, prompt_tokens: 512, output_tokens: 32}}
load: {rate_per_s: 4}
slo: {ttft_p99_s: 500ms, tpot_p99_s: 40ms}
run: {requests: 300}
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


@pytest.fixture
def kneesim(kneesim: Called) -> Called:
    """`kneesim` of all tests, without the last end of a line in stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status, out, err = kneesim(*arguments)
        return status, out, err.rstrip("\n")

    return call


def bash(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run *command*, in which KNEESIM stands for the command line."""
    whole = command.replace("KNEESIM", f'"{sys.executable}" -m sim')
    return subprocess.run(
        ["bash", "-c", whole],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (("slo=",), "slo must hold at least one limit for a knee to exist"),
        (("load.concurrency=8",), "load must have a rate to have a knee"),
        (("load=burst",), "load must have a rate to have a knee"),
        (("load.rate_per_s=2", "load.concurrency=8"), "exclude one another; write one of them"),
        (("run.requests=20",), "slo.ttft_p99_s: a p99 needs run.requests of at least 100"),
        (("--out", ""), "'--out': must name a folder (got an empty text)"),
    ],
)
def test_a_question_without_an_answer_is_a_sentence(
    kneesim: Called, small: str, changes: tuple[str, ...], sentence: str
) -> None:
    """No limits, no rate, two loads, too few requests, no folder: status 2, and nothing on stdout."""
    status, out, err = kneesim("knee", small, *changes)
    assert (status, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


def test_a_limit_below_the_unloaded_latency_needs_no_search(kneesim: Called, small: str) -> None:
    """One run in which no request meets another settles it: the answer says so, and what came closest."""
    status, out, _ = kneesim("knee", small, "slo.tpot_p99_s=2ms", "--json")
    answer = json.loads(out)
    assert status == 0
    assert not answer["feasible"]
    assert answer["reason"].startswith("even for requests that never meet another TPOT p99 is ")
    assert answer["reason"].endswith("where 2 ms is allowed; a search would be in vain")
    assert len(answer["points"]) == 1
    assert answer["points"][0]["concurrency_max"] == 1
    assert answer["nearest_miss"]["limits"]["tpot_p99_s"]["limit"] == 0.002
    alone_s = answer["nearest_miss"]["limits"]["tpot_p99_s"]["value"]
    kept = json.loads(kneesim("knee", small, f"slo={{tpot_p99_s: {1.5 * alone_s}}}", "--json")[1])
    assert kept["feasible"]


def test_a_limit_just_above_the_unloaded_latency_is_not_given_up(kneesim: Called, small: str) -> None:
    """Where the lonely run may miss a limit by the luck of its lengths, the search decides."""
    varied = "workload.lengths={kind: lognormal, prompt_mean: 512, output_mean: 32, cv: 1}"
    lonely = json.loads(kneesim("run", small, varied, "load.rate_per_s=0.001", "--json")[1])
    bound_s = 0.97 * lonely["ttft_s"]["p99"]
    answer = json.loads(kneesim("knee", small, varied, f"slo={{ttft_p99_s: {bound_s}}}", "--json")[1])
    assert len(answer["points"]) > 5


def test_groups_larger_than_memory_are_cut_and_said(kneesim: Called, small: str) -> None:
    """A static group takes what reservations there is room for, and the answer says how many that are."""
    asked = ("engine.preset=static", "engine.max_num_seqs=256", "load.rate_per_s=0.5")
    status, out, _ = kneesim("run", small, *asked)
    assert status == 0
    assert "requests, not max_num_seqs 256: the KV cache has no room for more reservations" in out
    status, out, err = kneesim("run", small, *asked, "engine.num_gpu_blocks_override=100")
    assert (status, out) == (2, "")
    assert "does not fit" in err


def test_all_rejected_is_an_answer(kneesim: Called, small: str) -> None:
    """Prompts longer than the context: no latency is 0, there is no knee, and the reason counts them."""
    status, out, _ = kneesim("run", small, "engine.max_model_len=256", "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["requests"]["never_schedulable"] == answer["requests"]["offered"] == 300
    assert any("300 prompts have engine.max_model_len tokens or more" in said for said in answer["warnings"])
    assert answer["ttft_s"]["p50"] is None
    assert answer["cost"]["usd_per_1m_output_tokens"] is None
    knee = kneesim("knee", small, "engine.max_model_len=256")[1]
    assert knee.startswith("No load meets TTFT p99")
    assert "300 never schedulable" in knee


@pytest.mark.parametrize("values", ["4", "4,4,4"])
def test_one_point_and_equal_points_make_a_table(kneesim: Called, small: str, values: str) -> None:
    """A sweep of one value, or of one value three times, has a row each and equal numbers in them."""
    status, out, _ = kneesim(
        "sweep", small, "--over", f"load.rate_per_s={values}", "--json", "--workers", "1"
    )
    points = json.loads(out)["points"]
    assert status == 0
    assert len(points) == len(values.split(","))
    assert all(point == points[0] for point in points)


def test_a_sweep_in_which_nobody_is_served_is_a_table(kneesim: Called, small: str) -> None:
    """All rejected at every point: rows without latencies, and the queue's column says why."""
    over = ("--over", "load.rate_per_s=2,4", "--workers", "1")
    status, out, _ = kneesim("sweep", small, "engine.max_model_len=256", *over)
    assert status == 0
    assert out.count("nothing served") == 2


@pytest.mark.parametrize("command", ["run", "knee"])
def test_a_full_disk_is_a_sentence_and_no_half_file(
    kneesim: Called, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Whatever write the disk refuses: status 2, one sentence, the old file as it was, no beginnings."""
    out = tmp_path / "out"
    out.mkdir()
    name = {"run": "requests.csv", "knee": "knee.md"}[command]
    (out / name).write_text("old", encoding="utf-8")
    monkeypatch.setattr(files, "open", on_a_full_disk(name), raising=False)
    status, _, err = kneesim(command, small, "--out", str(out))
    assert status == 2
    assert err.splitlines()[-1] == f"{out / name} cannot be written: No space left on device"
    assert "Traceback" not in err
    assert (out / name).read_text(encoding="utf-8") == "old"
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_answer_that_finds_no_room_on_stdout_is_a_sentence(small: str) -> None:
    """stdout redirected to a full disk: status 2 and the reason, not a traceback."""
    ended = bash(f'KNEESIM run "{small}" > /dev/full')
    assert ended.returncode == 2
    assert ended.stderr == "the answer cannot be printed: No space left on device\n"


@pytest.mark.parametrize(
    "command", ["run SMALL --json", "sweep SMALL --over load.rate_per_s=2,4 --workers 1"]
)
def test_a_reader_who_leaves_is_no_fault(small: str, command: str) -> None:
    """`kneesim ... | head -c 1`, with stderr in the pipe or not: no traceback, status 0."""
    asked = command.replace("SMALL", f'"{small}"')
    for pipe in ("|", "2>&1 |"):
        ended = bash(f"KNEESIM {asked} {pipe} head -c 1 > {os.devnull}; exit ${{PIPESTATUS[0]}}")
        assert (ended.returncode, ended.stderr) == (0, "")


def test_piped_output_is_plain(small: str) -> None:
    """Without a terminal there is no progress bar and no control sequence; stderr is empty."""
    ended = bash(f'KNEESIM run "{small}" | cat', PYTHONIOENCODING="utf-8")
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert "\x1b" not in ended.stdout
    assert ended.stdout.startswith("300 of 300 requests completed")


def test_no_display_is_needed(small: str, tmp_path: Path) -> None:
    """A DISPLAY that is dead and a backend that would open windows: the figures are drawn all the same."""
    hopeless = "'slo={tpot_mean_s: 2ms}'"  # settled by one run
    command = f'KNEESIM knee "{small}" run.requests=100 {hopeless} --out "{tmp_path}/out"'
    ended = bash(command, DISPLAY=":99", MPLBACKEND="TkAgg")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "knee.png").stat().st_size > 10_000


def interrupted_after(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the run after so many of a search."""
    simulated = sim.planning.knee._simulated
    made = 0

    def simulate(scenario: Any) -> Any:
        nonlocal made
        made += 1
        if made > runs:
            raise KeyboardInterrupt
        return simulated(scenario)

    monkeypatch.setattr(sim.planning.knee, "_simulated", simulate)


def test_an_interrupted_knee_keeps_what_is_finished(
    kneesim: Called, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the lonely run, the burst and five loads: these five are in DIR, a sentence says so."""
    interrupted_after(7, monkeypatch)
    out = tmp_path / "out"
    status, printed, err = kneesim("knee", small, "--out", str(out))
    kept = json.loads((out / "unfinished.json").read_text(encoding="utf-8"))
    assert (status, printed) == (130, "")
    assert err == (
        f"interrupted: the 5 loads finished so far are kept in {out / 'unfinished.json'}; "
        "there is no answer yet"
    )
    assert [path.name for path in out.iterdir()] == ["unfinished.json"]
    assert len(kept["points"]) == 5
    rate_per_s = kept["points"][2]["rate_per_s"]
    alone = json.loads(kneesim("run", small, f"load.rate_per_s={rate_per_s!r}", "--json")[1])
    assert kept["points"][2]["ttft_s"] == alone["ttft_s"]


def test_an_interrupted_knee_without_a_folder_says_what_is_lost(
    kneesim: Called, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No --out: the loads are counted and gone; before the first load nothing was lost."""
    interrupted_after(7, monkeypatch)
    status, _, err = kneesim("knee", small)
    assert (status, err) == (
        130,
        "interrupted: 5 loads were finished; nothing is kept without --out DIR",
    )
    monkeypatch.undo()


def test_an_interrupt_at_once_keeps_nothing(
    kneesim: Called, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the very first run."""
    interrupted_after(0, monkeypatch)
    status, _, err = kneesim("knee", small)
    assert (status, err) == (130, "interrupted: no load was finished yet, so nothing is kept")


def test_an_interrupt_while_files_are_written_says_so(
    kneesim: Called, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is on stdout already; the sentence tells that files are missing."""
    import sim.report.page

    def write_page(*_: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(sim.report.page, "write_page", write_page)
    out = tmp_path / "out"
    status, printed, err = kneesim("knee", small, "slo={tpot_mean_s: 2ms}", "--out", str(out))
    assert status == 130
    assert printed.startswith("No load meets")
    assert err.endswith(f"interrupted: the answer is complete, but not all of its files are in {out}")


STOPPED_AT_AN_IMPORT = """
import os, signal, sys
stop_at = sys.argv[-1]
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from sim.cli.start import main
sys.argv = ["kneesim", "knee", "chat-8b-a100"]
main()
"""


@pytest.mark.parametrize("module", ["click", "sim.cli.main", "numpy", "yaml", "sim.planning.knee", "simpy"])
def test_ctrl_c_during_imports_is_as_quiet(module: str) -> None:
    """A signal while *module* is being imported: status 130, no traceback, nothing printed."""
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED_AT_AN_IMPORT, module],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_the_entry_point_imports_next_to_nothing() -> None:
    """Before Ctrl-C can be answered, neither numpy nor click nor yaml is imported."""
    script = "import sys, sim.cli.start; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {"numpy", "click", "yaml", "scipy", "simpy"}.isdisjoint(ended.stdout.split())
