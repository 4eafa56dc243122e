"""One rank of an all-reduce, a process: `python -m sim.calibration.measure.rank RANK COUNT KIND FILE`.

It reads orders from stdin, a JSON object a line, and answers each on stdout: `samples` in s, or why not.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sim.calibration.measure.bench import means_no_memory

_CALLS = 20  # all-reduces in a graph
_FEWEST, _MOST = 3, 30
_PATIENCE_S = 60  # with another rank that does not take part


def main(rank: int, count: int, kind: str, meeting: str) -> None:
    """Meet the others at the file *meeting* and serve until stdin ends."""
    import torch
    import torch.distributed as ranks

    if kind == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if kind == "cuda" else "gloo"
    patience = timedelta(seconds=_PATIENCE_S)
    where = {"init_method": f"file://{meeting}", "rank": rank, "world_size": count}
    ranks.init_process_group(backend, timeout=patience, **where)
    answers = sys.stdout
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"samples": _samples(torch, ranks, kind, json.loads(line))}
        except (RuntimeError, ValueError, MemoryError) as error:
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            full = means_no_memory(error)
            answer = {"out_of_memory" if full else "cannot": reason[0][:200]}
        print(json.dumps(answer), file=answers, flush=True)
    ranks.destroy_process_group()


def _samples(torch: Any, ranks: Any, kind: str, order: dict[str, Any]) -> list[float]:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}[order["dtype"]]
    size = max(1, order["bytes"] // dtype.itemsize)
    values = torch.zeros(size, dtype=dtype, device=kind)  # sums of sums of anything else overflow
    once: Callable[[], object] = lambda: ranks.all_reduce(values)  # noqa: E731
    once()
    if kind == "cuda":
        return _on_cuda(torch, ranks, once, order)
    ranks.barrier()
    return _repeated(ranks, torch, kind, lambda: _wall_s(once), order["limit_s"])


def _on_cuda(torch: Any, ranks: Any, once: Callable[[], object], order: dict[str, Any]) -> list[float]:
    def several() -> None:
        for _ in range(_CALLS):
            once()

    launch: Callable[[], object] = several
    if order["variant"] == "graph":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            several()
        launch = graph.replay
        launch()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed() -> float:
        torch.cuda.synchronize()
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / _CALLS

    return _repeated(ranks, torch, "cuda", timed, order["limit_s"] / _CALLS)


def _repeated(ranks: Any, torch: Any, kind: str, timed: Callable[[], float], limit_s: float) -> list[float]:
    """Every rank must take part in as many: rank 0 says how many fit in *limit_s*, from its first ones."""
    first = [timed() for _ in range(_FEWEST)]
    more = torch.tensor(
        [int(min(_MOST - _FEWEST, limit_s / max(statistics.median(first), 1e-9)))], device=kind
    )
    ranks.broadcast(more, 0)
    return first + [timed() for _ in range(int(more.item()))]


def _wall_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
