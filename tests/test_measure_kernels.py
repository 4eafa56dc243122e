"""Kernels that `calibrate measure` times, on the CPU: they compute what their rows say. They need torch."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sim import InputFault
from sim.calibration.measure import attention, linear, sdpa
from sim.calibration.measure.bench import Bench
from sim.calibration.measure.clocks import middle_and_spread, repeated
from sim.calibration.measure.conditions import nvidia_smi
from sim.calibration.measure.device import CannotRun, OutOfMemory
from sim.calibration.measure.kernels import prepare
from sim.calibration.measure.points import Point
from sim.calibration.measure.torch_device import TorchDevice, open_device

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

FORBIDDEN = ("click", "simpy", "rich", "matplotlib", "pyarrow", "pytest", "jsonschema", "hypothesis")
HEADS: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 64, "kv_dtype": "bf16"}


def bench(free_bytes: int = 2**30, cache_bytes: int = 2**16) -> Bench:
    torch.manual_seed(1)
    return Bench(torch, torch.device("cpu"), cache_bytes, lambda: free_bytes, most_copies=4)


@pytest.fixture(scope="module")
def device() -> Iterator[TorchDevice]:
    opened = open_device("cpu")
    yield opened
    opened.close()


def prefill(q_len: int, kv_len: int, batch: int = 1) -> Point:
    return Point("attention_prefill", "bf16", batch=batch, q_len=q_len, kv_len=kv_len, **HEADS)


def decode(batch: int, kv_len: int, variant: str = "") -> Point:
    return Point("attention_decode", "bf16", batch=batch, q_len=1, kv_len=kv_len, variant=variant, **HEADS)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "int8", "int4"])
def test_a_linear_layer_is_of_its_shape(dtype: str) -> None:
    """In each dtype X[3, 256] gives Y[3, 128] in 16 bits."""
    calls = linear.gemm(bench(), Point("gemm", dtype, m=3, n=128, k=256)).calls
    answer: Any = calls[0]()
    assert answer.shape == (3, 128)
    assert answer.dtype.itemsize == 2
    assert answer.isfinite().all()


@pytest.mark.parametrize(("most", "dtype"), [(448.0, torch.float8_e4m3fn), (127.0, torch.int8)])
def test_quantised_activations_are_the_activations(most: float, dtype: Any) -> None:
    """Quantised values times their row's scale are the values again, to the type's precision."""
    x = torch.randn(5, 64, dtype=torch.bfloat16) * torch.tensor([[0.01], [1], [3], [50], [1e3]])
    values, scales = linear._quantised(torch, x, True, most, dtype)
    assert values.dtype == dtype
    half_a_step = scales / 2 if dtype == torch.int8 else x.float().abs() / 16 + scales * 2**-10
    assert ((values.float() * scales - x.float()).abs() <= 1.001 * half_a_step).all()


def test_weights_rotate_until_they_are_twice_the_cache() -> None:
    """A small layer has several sets of weights, one larger than the cache twice over has one."""
    small = linear.gemm(bench(), Point("gemm", "bf16", m=1, n=128, k=128))
    large = linear.gemm(bench(), Point("gemm", "bf16", m=1, n=512, k=512))
    assert len(small.calls) == math.ceil(2 * 2**16 / (2 * 128 * 128))
    assert len(large.calls) == 1
    first, second = (call() for call in small.calls[:2])
    assert not torch.equal(first, second)


def test_no_room_is_known_before_it_is_taken() -> None:
    """What exceeds the free memory is refused with both amounts, not tried."""
    with pytest.raises(OutOfMemory, match=r"needs 4\.0 GiB of memory, and 1\.0 GiB are free"):
        linear.gemm(bench(), Point("gemm", "bf16", m=1, n=32768, k=32768))


@pytest.mark.parametrize(
    "point",
    [
        Point("attention_mixed", "bf16", batch=3, q_len=5, kv_len=37, **HEADS),
        prefill(7, 0, batch=2),
        decode(5, 33, "ragged"),
    ],
    ids=str,
)
def test_attention_written_out_is_sdpa(point: Point) -> None:
    """The reference that libraries are held to agrees with PyTorch's kernels, sequence by sequence."""
    here = bench()
    batch = attention.batch_of(here, point)
    answer, first = attention.written_out(here, batch), 0
    for row, (new, total) in enumerate(zip(batch.new, batch.total, strict=True)):
        table = batch.tables[row, : batch.pages[row]].long()
        keys, values = (part[table].flatten(0, 1)[:total].transpose(0, 1).float() for part in batch.caches[0])
        queries = batch.queries[first : first + new].transpose(0, 1).float()
        mask = torch.ones(new, total, dtype=torch.bool).tril(total - new)
        attend = torch.nn.functional.scaled_dot_product_attention
        one = attend(queries[None], keys[None], values[None], attn_mask=mask[None], enable_gqa=True)
        assert torch.allclose(answer[first : first + new], one[0].transpose(0, 1), atol=1e-4)
        first += new


def test_a_library_whose_answers_are_wrong_is_not_used() -> None:
    """The speed of a kernel that was called wrongly is worth nothing: its answers are looked at first."""
    attention.check_answers(bench(), lambda here, batch: [lambda: attention.written_out(here, batch)])
    with pytest.raises(CannotRun, match="off attention written out"):
        attention.check_answers(
            bench(), lambda here, batch: [lambda: attention.written_out(here, batch).flip(0)]
        )


def test_no_two_sequences_share_a_page() -> None:
    """Tables name every page once, and not in order."""
    batch = attention.batch_of(bench(), decode(5, 100, "ragged"))
    used = torch.cat([batch.tables[row, :count] for row, count in enumerate(batch.pages)]).tolist()
    assert sorted(used) == list(range(sum(batch.pages)))
    assert used != sorted(used)


def test_flashinfer_is_given_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page counts, numbers and fill, as its wrappers want them, say what the batch is: the answers agree."""
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_of_our_own())
    attention.check_answers(bench(), attention.flashinfer_calls)


def flashinfer_of_our_own() -> Any:
    """The two wrappers of FlashInfer that are used, by attention written out. Pages of 16 tokens, NHD."""

    class Wrapper:
        def __init__(self, workspace: Any, layout: str, use_tensor_cores: bool = False) -> None:
            assert layout == "NHD"

        def plan(self, indptr: Any, indices: Any, last: Any, heads: int, kv_heads: int, dim: int,
                 page: int, q_data_type: Any, kv_data_type: Any) -> None:  # fmt: skip
            self.prefill([*range(len(last) + 1)], indptr, indices, last)

        def prefill(self, queries: Any, indptr: Any, indices: Any, last: Any) -> None:
            pages = [int(b - a) for a, b in pairwise(indptr)]
            tables = torch.zeros(len(pages), max(pages), dtype=torch.int32)
            for row, count in enumerate(pages):
                tables[row, :count] = indices[indptr[row] : indptr[row] + count]
            total = [16 * (count - 1) + int(end) for count, end in zip(pages, last, strict=True)]
            new = [int(b - a) for a, b in pairwise(queries)]
            self.batch = attention.Batch(new, total, None, [], tables, pages)

        def run(self, q: Any, cache: tuple[Any, Any]) -> Any:
            parts = (self.batch.new, self.batch.total, q, [cache], self.batch.tables, self.batch.pages)
            return attention.written_out(bench(), attention.Batch(*parts))

    class Prefill(Wrapper):
        def plan(self, qo: Any, indptr: Any, indices: Any, last: Any, heads: int, kv_heads: int, dim: int,  # type: ignore[override]
                 page: int, causal: bool, q_data_type: Any, kv_data_type: Any) -> None:  # fmt: skip
            assert causal
            self.prefill(qo, indptr, indices, last)

    return types.SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=Wrapper, BatchPrefillWithPagedKVCacheWrapper=Prefill
    )


def test_without_cuda_attention_is_pytorchs(device: TorchDevice) -> None:
    """The table and the conditions say that SDPA ran, and why no library did."""
    assert device.backend(decode(2, 15)) == "torch_sdpa"
    assert set(device.describe()["attention_not_by"]) == {"flashinfer", "vllm_flash_attn"}
    with pytest.raises(CannotRun, match="no KV cache in 8 bits"):
        device.measure(
            Point("attention_decode", "bf16", batch=1, q_len=1, kv_len=15, **{**HEADS, "kv_dtype": "fp8"}),
            0.0,
        )


@pytest.mark.parametrize(
    ("point", "shape"),
    [
        (prefill(7, 0, batch=2), (2, 4, 7, 64)),
        (prefill(7, 40), (1, 4, 7, 64)),
        (decode(3, 40), (3, 2, 2, 64)),
    ],
    ids=str,
)
def test_sdpa_attends_for_every_query(point: Point, shape: tuple[int, ...]) -> None:
    """[sequences, heads, new tokens, head_dim]; decode gives a KV head's queries as that many tokens."""
    answer: Any = sdpa.sdpa_calls(bench(), point)[0]()
    assert answer.shape == shape
    assert answer.isfinite().all()


def test_a_chunk_sees_what_is_cached_and_itself() -> None:
    """Of 3 new tokens after 4 cached ones, the first sees 5, the second 6, the last all 7."""
    assert sdpa._lower_right(bench(), 3, 7).sum(dim=1).tolist() == [5, 6, 7]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ragged_decode_has_no_padding() -> None:
    """Nested tensors, which CUDA takes in one kernel, hold each sequence's own tokens and no others."""
    answer: Any = sdpa.jagged_decode(bench(), decode(3, 9, "ragged"), [4, 10, 16])()
    assert [part.shape for part in answer.unbind()] == [(2, 2, 64)] * 3


def test_a_mixed_step_is_one_thing_or_its_parts() -> None:
    """Fused it is timed as one; summed as its eight parts, of which attention is two."""
    sizes = {"m": 12, "n": 128, "k": 256, "batch": 4, "q_len": 8, "kv_len": 15, **HEADS}
    fused = prepare(bench(), Point("layer_mixed", "bf16", variant="fused", **sizes), "torch_sdpa")
    summed = prepare(bench(), Point("layer_mixed", "bf16", variant="summed", **sizes), "torch_sdpa")
    assert (len(fused), len(summed)) == (1, 9)
    assert [len(part) for part in (fused[0].calls[0](),)] == [8]  # type: ignore[arg-type]
    alone: list[Any] = [part.calls[0]() for part in summed]
    assert [tuple(part.shape) for part in (alone[1], alone[4], alone[6], alone[8])] == [
        (12, 8 * 64), (12, 256), (12, 256), (12, 256),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "point",
    [
        Point("gemm", "bf16", m=1, n=128, k=128),
        Point("copy", "bf16", bytes=4096),
        Point("elementwise", "bf16", m=2, n=64, bytes=768, variant="silu_mul"),
        Point("elementwise", "bf16", m=2, n=64, bytes=512, variant="rms_norm"),
        Point("launch", "bf16", m=10, variant="eager"),
        decode(4, 31, "ragged"),
        Point("attention_mixed", "bf16", batch=3, q_len=5, kv_len=37, variant="summed", **HEADS),
    ],
    ids=str,
)
def test_times_are_of_one_call(device: TorchDevice, point: Point) -> None:
    """Everything small is timed between a tenth of a microsecond and a tenth of a second."""
    timings = [device.measure(point, 0.01) for _ in range(3)]
    assert 1e-7 < min(timing.time_s for timing in timings) < 0.1
    assert all(timing.spread >= 0 for timing in timings)


def test_times_grow_with_the_work(device: TorchDevice) -> None:
    """A linear layer with thousands of times the work takes longer, however busy the machine is.

    A neighbour can hold up any one timing by milliseconds: the two sizes take turns, and the
    fastest turn of each is compared.
    """
    small, large = (Point("gemm", "bf16", m=m, n=n, k=n) for m, n in ((1, 128), (64, 1024)))
    turns = [tuple(device.measure(point, 0.01).time_s for point in (small, large)) for _ in range(5)]
    fastest_small, fastest_large = (min(times) for times in zip(*turns, strict=True))
    assert fastest_large > fastest_small


def test_ranks_reduce_together(device: TorchDevice) -> None:
    """Two processes all-reduce over gloo; what they cannot do is a reason, and they go on after it."""
    point = Point("all_reduce", "bf16", bytes=2**16, n_gpus=2, variant="eager")
    assert device.backend(point) == "gloo"
    assert 1e-6 < device.measure(point, 0.01).time_s < 5
    with pytest.raises(OutOfMemory):
        device.measure(Point("all_reduce", "bf16", bytes=2**50, n_gpus=2, variant="eager"), 0.01)
    assert device.measure(point, 0.01).backend == "gloo"
    with pytest.raises(CannotRun, match="on CUDA only"):
        device.backend(Point("all_reduce", "bf16", bytes=2**16, n_gpus=2, variant="graph"))


def test_faults_of_torch_are_no_faults_of_ours(device: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch throws for want of memory is `OutOfMemory`; anything else of its own is `CannotRun`."""

    def throw(error: Exception) -> Any:
        def prepare_nothing(*_: object) -> None:
            raise error

        return prepare_nothing

    module = "sim.calibration.measure.torch_device.prepare"
    monkeypatch.setattr(module, throw(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")))
    with pytest.raises(OutOfMemory, match="Tried to allocate 20 GiB"):
        device.measure(Point("gemm", "bf16", m=1, n=128, k=128), 0.0)
    monkeypatch.setattr(module, throw(RuntimeError("no kernel image\nmany more lines")))
    with pytest.raises(CannotRun, match=r"^no kernel image$"):
        device.measure(Point("gemm", "bf16", m=1, n=128, k=128), 0.0)


def test_no_cuda_is_a_sentence() -> None:
    """A machine without a GPU is told so, and what it can do."""
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(InputFault, match="--device cuda: torch finds no CUDA device on this machine"):
        open_device("cuda")


def test_the_command_needs_nothing_but_torch_numpy_and_yaml(tmp_path: Path) -> None:
    """The folder `sim` alone, every other library forbidden: it measures, and leaves table and conditions."""
    shutil.copytree(Path(__file__).parents[1] / "sim", tmp_path / "sim")
    out = tmp_path / "t.csv"
    arguments = ["--device", "cpu", "--out", str(out), "--models", "llama-3.2-1b", "--minutes", "0.05"]
    program = f"""
import runpy, sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FORBIDDEN!r}:
            raise AssertionError(f"imports {{name}}")
sys.meta_path.insert(0, Forbidden())
sys.argv = ["measure", *{arguments!r}]
runpy.run_module("sim.calibration.measure", run_name="__main__")
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"{out} has" in done.stdout
    with open(out, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(float(row["time_us"]) > 0 for row in rows)
    session = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))["sessions"][0]
    assert session["device"]["torch"] == torch.__version__
    assert session["measured"] + 2 * bool(session["sustained"]) == len(rows)


def test_clocks_and_power_are_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nvidia-smi says of the card that CUDA numbers 0; a cell it does not know is left out."""
    said = tmp_path / "said"
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f'#!/bin/sh\necho "$@" > {said}\necho "570.86.15, 1980, 2619, 1980, 412.5, 700.00, [N/A]"\n',
        encoding="utf-8",
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    seen = nvidia_smi()
    assert (seen["sm_mhz"], seen["power_w"], seen["driver"]) == (1980.0, 412.5, "570.86.15")
    assert "temperature_c" not in seen
    assert said.read_text(encoding="utf-8").split()[-1] == "--id=3"


def test_without_a_driver_conditions_stay_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tool and no library: nothing is said, and nothing breaks."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia_smi() == {}


def test_the_middle_of_the_repeats_counts() -> None:
    """One outlier moves neither the median nor the quartiles; there are at least three repeats."""
    assert middle_and_spread([1.0, 1.0, 1.0, 1.0, 100.0]) == (1.0, 0.0)
    assert len(repeated(lambda: 1.0, limit_s=0.0)) == 3
