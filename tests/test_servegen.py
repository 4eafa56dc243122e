"""A folder of ServeGen's clients as a workload of classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from scenario_inputs import SCENARIO, Catalogue

from sim.cli.main import app
from sim.faults import InputFault
from sim.workload import generate
from sim.workload.readers.servegen import servegen_workload

PROMPTS = dict.fromkeys(range(100, 301), 1 / 201)
OUTPUTS = {tokens: 0.95**tokens for tokens in range(1, 200)}  # not added up to 1: shares are relative
WINDOW = {"input_tokens": str(PROMPTS), "output_tokens": str(OUTPUTS)}


def write_client(
    folder: Path, number: int, rates: list[float], pattern: str = "Gamma", cv: float = 2.0
) -> None:
    """A client's two files, a window of 600 s for each of *rates*."""
    folder.mkdir(exist_ok=True)
    rows = [f"{600 * window},{rate},{cv},{pattern},0.25,4" for window, rate in enumerate(rates)]
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows))
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps({"0": WINDOW, "600": WINDOW}))


def test_the_command_makes_the_workload_that_a_fault_promises(tmp_path: Path) -> None:
    """`kneesim workload fit FOLDER` writes a file that scenarios can name."""
    write_client(tmp_path / "service", 0, [1.0, 3.0])
    out = tmp_path / "catalogue" / "workloads" / "mine.yaml"
    done = CliRunner().invoke(app, ["workload", "fit", str(tmp_path / "service"), "--out", str(out)])
    assert done.exit_code == 0
    assert "1 of 1 clients, with 100.0% of 2 requests/s" in done.output
    loaded = Catalogue(tmp_path / "catalogue").load(SCENARIO.replace("workload: chat", "workload: mine"))
    assert list(loaded.workload["classes"]) == ["client-0"]


def test_clients_become_classes(tmp_path: Path) -> None:
    """Those with nine tenths of the rate, by their mean rates, with their own shape; lengths as often as
    the windows have them."""
    folder = tmp_path / "service"
    write_client(folder, 0, [1.0, 3.0])
    write_client(folder, 1, [2.5, 2.5], "Weibull", cv=0.5)
    write_client(folder, 2, [0.01, 0.01])
    workload = servegen_workload(folder)
    assert list(workload["classes"]) == ["client-1", "client-0"]
    assert [part["share"] for part in workload["classes"].values()] == [2.5, 2.0]
    steady, growing = (part["arrivals"] for part in workload["classes"].values())
    assert steady == {"kind": "weibull", "cv": 0.5}
    assert (growing["kind"], growing["cv"], growing["series"]["rates"]) == ("gamma", 2.0, [0.5, 1.5])
    assert growing["series"]["period_s"] == 1200
    catalogue = Catalogue(tmp_path / "catalogue")
    catalogue.write("workloads/service.yaml", yaml.safe_dump(workload))
    text = SCENARIO.replace("workload: chat", "workload: service") + "run: {requests: 8000}\n"
    loaded = catalogue.load(text)
    requests = generate(loaded.workload, loaded.load, loaded.run)
    for tokens, shares in ((requests.prompt_tokens, PROMPTS), (requests.output_tokens, OUTPUTS)):
        drawn = np.searchsorted(np.sort(tokens), list(shares), side="right") / len(tokens)
        written = np.cumsum(list(shares.values())) / sum(shares.values())
        assert np.abs(drawn - written).max() < 0.02 + 1.95 / np.sqrt(len(tokens))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("chunk-0-trace.csv", "0,1", r"chunk-0-trace\.csv:1: must have start, rate, CV and distribution"),
        ("chunk-0-trace.csv", "", r"chunk-0-trace\.csv has no windows"),
        ("chunk-0-dataset.json", "[1]", r"chunk-0-dataset\.json: must have the shares of each length"),
        ("chunk-0-dataset.json", "{}", r"has no chunk-\*-dataset\.json with input_tokens and output_tokens"),
    ],
)
def test_a_clumsy_client_is_a_sentence(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    """With its file."""
    write_client(tmp_path / "service", 0, [1.0])
    (tmp_path / "service" / name).write_text(content)
    with pytest.raises(InputFault, match=sentence):
        servegen_workload(tmp_path / "service")
    with pytest.raises(InputFault, match=r"has no chunk-\*-trace\.csv"):
        servegen_workload(tmp_path)
