"""The memory ledger against the start-up logs of real engines: their numbers, row by row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sim.cli.main import app
from sim.faults import InputFault
from sim.validation.kv_capacity import CARD, CONCURRENCY, LOGGED_POOL, REFUSAL, SWAP, Report, check_logs
from sim.validation.kv_logs import is_logs, read_logs

LOGS = Path(__file__).parent / "data" / "kv_capacity.csv"
SHARED = Path(__file__).parents[2] / "shared" / "data" / "measured" / "kv_capacity.csv"


@pytest.fixture(scope="module")
def report() -> Report:
    return check_logs(LOGS)


def missed(report: Report, check: str) -> set[str]:
    """The logs of which the answer to *check* does not hold."""
    return {row.id for row in report.checks if row.check == check and not row.holds}


def test_the_logged_memory_gives_the_logged_tokens(report: Report) -> None:
    """To the digit that the log prints, or within 0.2 %; but for K09, of four workers with unlike memory."""
    rows = [row for row in report.checks if row.check == LOGGED_POOL]
    assert len(rows) == 8
    assert missed(report, LOGGED_POOL) == {"K09"}
    assert max(abs(row.error_pct or 0.0) for row in rows if row.id != "K09") < 0.2


def test_blocks_in_a_swap_space_have_the_bytes_of_a_block(report: Report) -> None:
    """CPU blocks are the swap space over a block's bytes: exact, and free of what the profile run found."""
    rows = {row.id: row for row in report.checks if row.check == SWAP}
    assert {name: row.ours for name, row in rows.items()} == {
        "K01": 2048,  # Llama-3-8B: 4 GiB of 2 MiB
        "K11": 7281,  # opt-125m
        "K13": 1638,  # Llama-3-70B on two GPUs: 2.5 MiB each
        "K31": 1170,  # Llama-3.2-3B: 2 GiB of 1.75 MiB
        "K39": 327,  # Llama-2-13B: no groups of heads, 12.5 MiB
        "P01": 1820,  # Qwen3-4B
    }
    assert missed(report, SWAP) == set()


def test_concurrency_is_the_logged_one_to_two_decimals(report: Report) -> None:
    """Tokens over the longest context; but for K55, a hybrid model whose numbers do not divide."""
    rows = [row for row in report.checks if row.check == CONCURRENCY]
    assert len(rows) == 12
    assert missed(report, CONCURRENCY) == {"K55"}


def test_the_card_alone_gives_the_tokens_within_five_percent(report: Report) -> None:
    """The card's memory, the model, the engine's version and settings go in; nothing of the log's memory.

    K01 is missed: its activations are seven times those of the same model at the defaults.
    """
    median = report.summary()[CARD]["median_abs_pct"]
    assert median is not None
    assert median < 2.0
    assert missed(report, CARD) == {"K01"}
    assert {row.id for row in report.checks if row.check == CARD} == {
        "K01",
        "K03",
        "K17",
        "K19",
        "K31",
        "P01",
    }


def test_what_the_engine_refused_is_refused(report: Report) -> None:
    """A context that the pool cannot hold once: of a dense model, of one on two GPUs, of a windowed one."""
    assert {row.id for row in report.checks if row.check == REFUSAL} == {"K03", "K13", "K57"}
    assert missed(report, REFUSAL) == set()


def test_what_fits_is_not_refused(tmp_path: Path) -> None:
    """The same pool with a context that it holds: refused by that log, it would count as a miss."""
    text = LOGS.read_text(encoding="utf-8")
    head, refused = text.splitlines()[0], next(line for line in text.splitlines() if line.startswith("K03,"))
    table = tmp_path / "logs.csv"
    table.write_text(f"{head}\n{refused.replace(',29000,', ',16000,')}\n", encoding="utf-8")
    assert missed(check_logs(table), REFUSAL) == {"K03"}


def test_a_printed_memory_is_known_to_half_its_last_digit(tmp_path: Path) -> None:
    """4.5 GiB may be 4.45 to 4.55; bytes are exact."""
    table = tmp_path / "logs.csv"
    names = "id,engine_version,gpu,tp,model,max_model_len,reported_kv_tokens,reported_blocks,notes"
    notes = ("KV memory 4.5 GiB", "KV memory 4.50 GiB", "4831838208 bytes for k/v cache")
    lines = [f"L{i},vLLM 0.11,L4,1,Llama-3-8B,,,,{note}" for i, note in enumerate(notes)]
    table.write_text("\n".join([names, *lines]) + "\n", encoding="utf-8")
    logs = read_logs(table)
    assert [log.pool_bytes for log in logs] == [4.5 * 2**30] * 3
    assert [log.pool_digit_bytes for log in logs] == pytest.approx([0.05 * 2**30, 0.005 * 2**30, 0.0])


def test_raising_the_context_limit_shrinks_a_v0_pool_until_prompts_are_chunked(tmp_path: Path) -> None:
    """vllm#10517: activations grow with max_model_len, as a prompt is one step, and drop where the engine
    itself turns chunked prefill on."""
    row = "{0},,vLLM V0,RTX 3090,23.58,1,Llama-3.1-8B,0.9,{0},1,,max_num_seqs=4{1}"
    columns = "id,source,engine_version,gpu,gpu_mem_gib,tp,model,gpu_memory_utilization,max_model_len"
    lines = [f"{columns},reported_kv_tokens,reported_blocks,notes"]
    path = tmp_path / "logs.csv"
    lines += [row.format(length, "") for length in (20000, 29000, 35000)]
    lines += [row.format(20001, " max_num_batched_tokens=29000")]
    path.write_text("\n".join(lines) + "\n")
    pools = {check.id: check.ours for check in check_logs(path).checks}
    assert pools["29000"] < pools["20000"] < pools["35000"]
    assert pools["20000"] == pytest.approx(1.56 * 20000, rel=0.02)
    assert pools["20001"] == pools["29000"]


def test_a_log_without_card_or_model_says_why_it_is_not_asked(report: Report) -> None:
    """Each question that is not asked has its reason."""
    reasons = {(name, check): reason for name, check, reason in report.skipped}
    assert reasons["K15", CARD] == "there is no hardware profile for GPU "
    assert "there is no dense model in the catalogue called DeepSeek-R1" in reasons["K61", CARD]
    assert "shares memory out in its own way" in reasons["K53", CARD]


def test_versions_are_read_from_numbers_or_dates() -> None:
    """A number, else what was current in the log's month; V0 by its name, or because there was no other."""
    logs = {log.id: log for log in read_logs(LOGS)}
    assert (logs["K17"].version, logs["K17"].is_v0) == ((0, 26), False)
    assert (logs["K31"].version, logs["K31"].is_v0) == ((0, 8), True)
    assert (logs["K19"].version, logs["K19"].is_v0) == ((0, 10), False)
    assert (logs["K11"].version, logs["K11"].is_v0) == ((0, 4), True)
    assert (logs["K17"].settings, logs["P01"].settings) == ({"cuda_graphs": False}, {"max_num_seqs": 1})


def test_the_command_knows_such_a_table_by_its_columns(tmp_path: Path) -> None:
    """`validate` on start-up logs prints this report, as a page or a document; bad numbers are named."""
    assert is_logs(LOGS)
    said = CliRunner().invoke(app, ["validate", str(LOGS), "--json"])
    document = json.loads(said.output)
    assert document["summary"][SWAP] == {"n": 6, "hold": 6, "median_abs_pct": 0.0}
    path = tmp_path / "bad.csv"
    path.write_text(LOGS.read_text().replace(",39.5,", ",big,"))
    with pytest.raises(InputFault, match=r"bad\.csv:2: must be a number \(got big\)"):
        read_logs(path)


def test_the_public_table_holds_as_its_extract_does() -> None:
    """Beside the misses of the extract only K31, whose row does not tell its number of sequences."""
    if not SHARED.exists():
        pytest.skip("the public table is not here")
    summary = (report := check_logs(SHARED)).summary()
    assert missed(report, LOGGED_POOL) == {"K09"}
    assert missed(report, CONCURRENCY) == {"K55"}
    assert missed(report, SWAP) == missed(report, REFUSAL) == set()
    assert missed(report, CARD) <= {"K01", "K31"}
    median = summary[CARD]["median_abs_pct"]
    assert median is not None
    assert median < 5.0
