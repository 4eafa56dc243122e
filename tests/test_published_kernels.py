"""Kernel timings as Vidur and AIConfigurator publish them become rows of the one table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from sim.calibration.published import read_published
from sim.calibration.table import KernelTable, read_tables
from sim.cli.main import app
from sim.faults import InputFault

DATA = Path(__file__).parent / "data" / "published"
LLAMA = DATA / "Meta-Llama-3-70B"
AIC = DATA / "aiconfigurator"


def shapes(table: KernelTable, *columns: str) -> list[tuple[float, ...]]:
    """These columns of a table's rows."""
    return [tuple(row) for row in table.rows[list(columns)].itertuples(index=False)]


def test_vidurs_linear_layers_are_four_gemms_a_line() -> None:
    """Llama-3-70B on one GPU: qkv 10240 by 8192, output 8192 by 8192, gate and up 57344, down from 28672; the
    medians are milliseconds there and microseconds here."""
    table, left_out = read_published("vidur", [LLAMA / "mlp.csv"], "A100-80GB")
    assert left_out == {}
    assert shapes(table, "m", "n", "k", "time_us")[::2] == [
        (32768, 10240, 8192, 20282.5),
        (32768, 8192, 8192, 17653.5),
        (32768, 57344, 8192, 136406.5),
        (32768, 8192, 28672, 62616.5),
    ]
    assert set(table.rows["source"]) == {"vidur-Meta-Llama-3-70B"}
    assert set(table.rows["dtype"]) == {"fp16"}


def test_vidurs_attention_is_that_of_one_gpu() -> None:
    """64 query and 8 KV heads over two GPUs are 32 and 4; a row is a prompt's chunk or a step of a batch;
    what took no time on the profiler's clock is left out."""
    table, left_out = read_published("vidur", [LLAMA / "attention.csv"], "a100-80gb-sxm")
    columns = ("op", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "time_us")
    assert shapes(table, *columns) == [
        ("attention_decode", 1, 1, 32, 32, 4, 128, 15),
        ("attention_decode", 2, 1, 32, 32, 4, 128, 14),
        ("attention_decode", 48, 1, 32, 32, 4, 128, 12),
        ("attention_prefill", 1, 64, 0, 32, 4, 128, 15),
    ]
    assert left_out == {"no time, or one below the profiler's resolution": 1}


def test_vidurs_all_reduces_over_nodes_are_another_operation() -> None:
    """Two workers with one device a node talk over the network; a profile's link is that within a node."""
    table, left_out = read_published("vidur", [DATA / "a100_dgx" / "all_reduce.csv"], "a100-80gb-sxm")
    assert shapes(table, "bytes", "n_gpus", "time_us") == [(2048, 2, 10)]
    assert left_out == {"another collective": 1, "an all-reduce over several nodes": 1}


def test_aiconfigurators_gemms_keep_their_framework_and_dtype() -> None:
    """bfloat16 is bf16 here; what no fit knows is counted and left out."""
    table, left_out = read_published("aiconfigurator", [AIC / "gemm_perf.txt"], "B200")
    assert shapes(table, "source", "dtype", "m", "n", "k") == [
        ("aiconfigurator-vllm", "bf16", 9, 3584, 32),
        ("aiconfigurator-vllm", "bf16", 1024, 8192, 51200),
    ]
    assert table.rows["time_us"].iloc[1] == pytest.approx(450.8773, abs=1e-3)
    assert left_out == {"gemm: dtype nvfp4 is unknown": 1}


def test_aiconfigurators_attention_counts_what_is_cached() -> None:
    """A prompt has isl new tokens after step cached ones; a generation's one token follows step cached."""
    paths = [AIC / "context_attention_perf.txt", AIC / "generation_attention_perf.txt"]
    table, _ = read_published("aiconfigurator", paths, "h200-141gb-sxm")
    columns = ("op", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "dtype", "kv_dtype")
    assert shapes(table, *columns) == [
        ("attention_prefill", 1, 8192, 0, 64, 64, 256, "bf16", "bf16"),
        ("attention_prefill", 4, 12288, 0, 40, 40, 128, "bf16", "bf16"),
        ("attention_decode", 16, 1, 32767, 8, 4, 128, "bf16", "bf16"),
        ("attention_decode", 16, 1, 8191, 12, 1, 128, "bf16", "fp8"),
    ]


def test_aiconfigurators_messages_are_counted_in_elements() -> None:
    """2^20 bf16 elements are 2 MiB; NCCL's int8 ones are a byte each; eager and graph are two sources."""
    paths = [AIC / "custom_allreduce_perf.txt", AIC / "nccl_perf.txt"]
    table, left_out = read_published("aiconfigurator", paths, "H100")
    custom = "aiconfigurator-custom_allreduce-vllm_custom_"
    assert shapes(table, "source", "n_gpus", "bytes", "dtype") == [
        (custom + "graph", 2, 2**21, "bf16"),
        (custom + "eager", 2, 2**21, "bf16"),
        (custom + "graph", 8, 2**30, "bf16"),
        ("aiconfigurator-nccl-nccl", 8, 2048, "bf16"),
        ("aiconfigurator-nccl-nccl", 8, 2048, "int8"),
    ]
    assert left_out == {"another collective": 1}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a Git LFS pointer, not the data"),
        ("framework,moe_dtype,latency\nVLLM,bf16,1\n", "no table of aiconfigurator that is known here"),
        (
            "framework,device,gemm_dtype,m,n,k,latency\nVLLM,NVIDIA H200,bfloat16,512,4096,4096,0.08\n",
            "the rows are of NVIDIA H200 (h200-141gb-sxm), not of a100-80gb-sxm",
        ),
        (
            "framework,gemm_dtype,m,n,k,latency\nVLLM,bfloat16,512,4096,4096,0.00008\n",
            "is time_us in milliseconds?",
        ),
        (
            "framework,gemm_dtype,m,n,k,latency\nVLLM,bfloat16,512,x,4096,0.08\n",
            ":2: n must be a number (got x)",
        ),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: str, fault: str) -> None:
    """Pointers in place of data, other operations' tables, another card's, other units, bad cells."""
    path = tmp_path / "gemm_perf.txt"
    path.write_text(content)
    with pytest.raises(InputFault, match=r"gemm_perf\.txt") as caught:
        read_published("aiconfigurator", [path], "a100-80gb-sxm")
    assert fault in str(caught.value)


def test_the_command_writes_a_table_and_says_what_it_left_out(tmp_path: Path) -> None:
    """`calibrate import` writes what `calibrate fit` reads: the same rows, with a count of each kind."""
    folder = tmp_path / "Meta-Llama-3-70B"
    shutil.copytree(LLAMA, folder)
    out = tmp_path / "table.csv.gz"
    files = [str(folder / name) for name in ("mlp.csv", "attention.csv")]
    said = CliRunner().invoke(
        app, ["calibrate", "import", "vidur", *files, "--gpu", "A100-80GB", "--out", str(out)]
    )
    assert said.exit_code == 0, said.output
    assert "gemm               vidur-Meta-Llama-3-70B" in said.output
    assert "left out" in said.output
    assert len(read_tables([out]).rows) == 12
