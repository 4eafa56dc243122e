"""The command line: what it prints where, and its exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from analytic import FakeScenario, queueing
from support import Called

import sim.report.page
import sim.results
import sim.scenario
import sim.simulation
from sim.cli.main import main
from sim.faults import InputFault

ROOT = Path(__file__).parents[1]


@pytest.fixture
def analytic(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Replace loading and simulating by formulas; answers what `load` was asked for."""
    asked: list[tuple[str, list[str]]] = []

    def load(source: str, changes: list[str]) -> FakeScenario:
        asked.append((source, list(changes)))
        return FakeScenario()

    monkeypatch.setattr(sim.scenario, "load", load)
    monkeypatch.setattr(sim.simulation, "simulate", lambda scenario, *_, **__: scenario)
    answer = queueing(service_s=0.08, tpot_s=0.018)
    monkeypatch.setattr(sim.results, "Result", answer)
    monkeypatch.setattr(sim.results, "run_of", lambda scenario, *_, **__: answer(scenario))
    return asked


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sim", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_knee_prints_the_answer_first(kneesim: Called, analytic: Any) -> None:
    """The first line on stdout is the answer in one sentence; nothing is on stderr when piped."""
    status, out, err = kneesim("knee", "chat")
    assert status == 0
    assert out.startswith("Serves 7.36 requests/s (95 % interval ")
    assert err == ""


def test_json_is_one_document(kneesim: Called, analytic: Any) -> None:
    """With --json stdout parses as a whole, for knee and for run."""
    for command in ("knee", "run"):
        status, out, _ = kneesim(command, "chat", "--json")
        assert status == 0
        assert isinstance(json.loads(out), dict)
        assert out.endswith("}\n")


def test_changes_and_seed_reach_the_scenario(kneesim: Called, analytic: list[Any]) -> None:
    """key=value arguments are handed on in order, before or after options; --seed is run.seed."""
    kneesim("run", "chat", "load.rate_per_s=6", "--seed", "3", "engine.max_num_seqs=128")
    assert analytic == [("chat", ["load.rate_per_s=6", "engine.max_num_seqs=128", "run.seed=3"])]


def test_out_writes_the_knees_files(
    kneesim: Called, analytic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--out DIR holds figure, answer, report, points and page; what was written is said on stderr."""
    from test_figures import LEDGER

    monkeypatch.setattr(sim.simulation, "ledger_of", lambda scenario: Ledger(LEDGER))
    monkeypatch.setattr(sim.report.page, "run_loads", lambda knee: ())
    monkeypatch.setattr(sim.report.page, "page", lambda knee, runs, ledger: "<!DOCTYPE html>")
    status, out, err = kneesim("knee", "chat", "--json", "--out", str(tmp_path / "an answer"))
    names = {"knee.png", "knee.svg", "knee.json", "knee.md", "points.csv", "page.html"}
    assert status == 0
    assert {path.name for path in (tmp_path / "an answer").iterdir()} == names
    assert all(name in err for name in names)
    assert json.loads(out) == json.loads((tmp_path / "an answer" / "knee.json").read_text(encoding="utf-8"))


class Ledger:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def as_dict(self) -> dict[str, Any]:
        return self.values


def test_faults_are_sentences_on_stderr(kneesim: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fault of an input is a line on stderr, status 2, no traceback, nothing on stdout."""

    def load(source: str, changes: list[str]) -> FakeScenario:
        raise InputFault(
            ["chat.yaml:3: engine.max_seqs is unknown", "chat.yaml:9: slo.ttft_p99_s must be > 0"]
        )

    monkeypatch.setattr(sim.scenario, "load", load)
    assert kneesim("run", "chat.yaml") == (
        2,
        "",
        "chat.yaml:3: engine.max_seqs is unknown\nchat.yaml:9: slo.ttft_p99_s must be > 0\n",
    )


def test_our_own_faults_have_status_1(kneesim: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the program shows its traceback and asks for a report; it is never the user's."""
    monkeypatch.setattr(sim.scenario, "load", lambda *_: 1 / 0)
    status, out, err = kneesim("run", "chat")
    assert (status, out) == (1, "")
    assert "ZeroDivisionError" in err
    assert "please report it" in err


def test_an_interrupt_ends_quietly(kneesim: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends with status 130 and without a traceback."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sim.scenario, "load", interrupted)
    status, _, err = kneesim("run", "chat")
    assert status == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("list", "gpus"), "kind gpus is unknown"),
        (("list", "hardwar"), "did you mean hardware?"),
        (("show", "model", "lama-3-8b"), "did you mean llama-3-8b?"),
        (("show", "engine", "vlm-v1"), "engine vlm-v1 is unknown; did you mean vllm-v1@0.33?"),
        (("frobnicate",), "No such command"),
        (("run",), "Missing argument"),
        (("run", "chat", "--max-leap", "0"), "--max-leap"),
        (("conformance", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_wrong_words_are_named(kneesim: Called, arguments: tuple[str, ...], sentence: str) -> None:
    """Unknown names, commands and options: status 2, a sentence on stderr, nothing on stdout."""
    status, out, err = kneesim(*arguments)
    assert (status, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", ["hardware", "models", "workloads", "engines", "scenarios"])
def test_what_is_listed_can_be_shown(kneesim: Called, kind: str) -> None:
    """`list` begins lines with names, and JSON is these alone; `show` knows each, by the singular too."""
    status, out, _ = kneesim("list", kind)
    names = [line.split()[0] for line in out.splitlines()]
    assert status == 0
    assert names == json.loads(kneesim("list", kind, "--json")[1])
    assert names == sorted(names)
    for name in names[:2]:
        assert kneesim("show", kind, name)[0] == 0
        assert kneesim("show", kind.removesuffix("s"), name)[0] == 0


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("hardware", "a100-80gb-sxm 79.2 GiB, 2,039 GB/s, 312 TFLOP/s in bf16; kernels measured"),
        ("hardware", "a100-40gb-sxm 39.5 GiB, 1,555 GB/s, 312 TFLOP/s in bf16; kernels estimated"),
        ("models", "qwen2.5-7b 7.62 billion parameters, 28 layers, 57,344 B of KV cache a token"),
        ("workloads", "fixed-1024-1024 prompt 1,024, output 1,024 tokens in the mean; written for Kneesim"),
    ],
)
def test_a_list_says_what_matters(kneesim: Called, kind: str, line: str) -> None:
    """Memory, rates and origin of a GPU; size of a model and its tokens; mean lengths of a workload."""
    status, out, _ = kneesim("list", kind)
    assert status == 0
    assert line in [" ".join(text.split()) for text in out.splitlines()]


def test_schema_is_json(kneesim: Called) -> None:
    """`schema` prints a JSON schema that has the scenario's sections."""
    status, out, _ = kneesim("schema")
    assert status == 0
    assert {"hardware", "model", "engine", "workload", "load", "slo", "run"} <= set(
        json.loads(out)["properties"]
    )


def test_memory_prints_the_ledger(kneesim: Called, analytic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger as text ends in its verdict; as JSON it has the contract's keys."""
    from test_figures import LEDGER

    monkeypatch.setattr(sim.simulation, "ledger_of", lambda scenario: Ledger(LEDGER))
    assert kneesim("memory", "chat")[1].endswith("fits\n")
    assert json.loads(kneesim("memory", "chat", "--json")[1]) == LEDGER


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_poor_terminal_gets_ascii(encoding: str, analytic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stdout cannot encode a sign, the whole answer comes in ASCII instead of half of it."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["kneesim", "knee", "chat"])
    with pytest.raises(SystemExit) as end:
        main()
    stdout.flush()
    printed = stdout.buffer.getvalue()  # type: ignore[attr-defined]
    assert end.value.code == 0
    assert printed.isascii()
    assert b"TTFT p99 <= 1 s" in printed
    assert b"arrivals poisson" in printed


def test_a_closed_pipe_is_no_fault() -> None:
    """`kneesim schema | head -c 1` says nothing on stderr."""
    command = f'"{sys.executable}" -m sim schema | head -c 1 > {os.devnull}'
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stderr == ""


SMALL = """\
hardware: a100-80gb-sxm
model: llama-3-8b
workload: {arrivals: {kind: poisson}, lengths: {kind: fixed, prompt_tokens: 512, output_tokens: 32}}
load: {rate_per_s: 4}
slo: {ttft_p99_s: 500ms, tpot_p99_s: 40ms}
run: {requests: 400}
"""


def test_a_real_question_from_file_to_files(tmp_path: Path) -> None:
    """A scenario file is simulated at every load; stdout is JSON alone, and the knee is one of the points."""
    (tmp_path / "small one.yaml").write_text(SMALL, encoding="utf-8")
    ended = shell("knee", str(tmp_path / "small one.yaml"), "--out", str(tmp_path / "out"), "--json")
    answer = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert answer["feasible"]
    assert answer["knee"]["rate_per_s"] in [
        point["rate_per_s"] for point in answer["points"] if point["passes"]
    ]
    assert answer["knee"]["rate_per_s"] <= answer["capacity_rate_per_s"]
    assert len(list((tmp_path / "out").iterdir())) == 6


def test_equal_questions_get_equal_bytes(tmp_path: Path) -> None:
    """Two runs, with different hash seeds, print the same bytes but for the simulator's own speed."""
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    answers = []
    for seed in ("0", "1"):
        ended = shell("run", str(tmp_path / "small.yaml"), "--json", PYTHONHASHSEED=seed)
        answer = json.loads(ended.stdout)
        del answer["simulator"]["wall_s"], answer["simulator"]["requests_per_s"]
        answers.append(json.dumps(answer))
    assert answers[0] == answers[1]


def test_a_real_fault_is_one_sentence() -> None:
    """A wrong value on the command line: its key, what it must be, what came; status 2."""
    ended = shell("run", "chat-8b-a100", "load.rate_per_s=-3")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "load.rate_per_s must be" in ended.stderr
    assert "-3" in ended.stderr


def test_python_m_sim_is_kneesim() -> None:
    """`python -m sim --version` answers as kneesim does."""
    ended = shell("--version")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("kneesim ")


def test_starting_imports_nothing_heavy() -> None:
    """The command line starts without pandas, matplotlib, scipy, pyarrow, simpy or rich."""
    script = "import sys, sim.cli.main; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy = {"pandas", "matplotlib", "scipy", "pyarrow", "simpy", "rich"}
    assert heavy.isdisjoint(ended.stdout.split())
