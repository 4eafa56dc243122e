"""All-reduce over the GPUs present: one process a rank, asked over pipes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from sim.calibration.measure.device import CannotRun, OutOfMemory
from sim.calibration.measure.points import Point


class Ranks:
    """*count* processes that all-reduce together: NCCL with a GPU each, or gloo on the CPU.

    They end with this process, since they read what to do from it.
    """

    def __init__(self, count: int, kind: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kneesim-")
        meeting = Path(self._folder.name, "meeting")
        package = str(Path(__file__).resolve().parents[3])
        paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self._said = open(Path(self._folder.name, "said"), "w+", encoding="utf-8")  # noqa: SIM115
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "sim.calibration.measure.rank", str(rank), str(count), kind, meeting],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, env=environment,
            )
            for rank in range(count)
        ]  # fmt: skip

    def samples(self, point: Point, limit_s: float) -> list[float]:
        """Times of one all-reduce of *point*'s bytes, in s. Raises `CannotRun` or `OutOfMemory`."""
        order = {"bytes": point.bytes, "dtype": point.dtype, "variant": point.variant, "limit_s": limit_s}
        try:
            for process in self._processes:
                _pipe(process.stdin).write(json.dumps(order) + "\n")
                _pipe(process.stdin).flush()
            answers = [json.loads(_pipe(process.stdout).readline() or "{}") for process in self._processes]
        except OSError:
            answers = [{}]
        for answer in answers:
            if "samples" not in answer:
                raise self._reason(answer)
        return [float(sample) for sample in answers[0]["samples"]]

    def _reason(self, answer: dict[str, str]) -> Exception:
        if "out_of_memory" in answer:
            return OutOfMemory(answer["out_of_memory"])
        if "cannot" in answer:
            return CannotRun(answer["cannot"])
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        return CannotRun(f"a rank ended: {lines[-1][:200] if lines else 'it said nothing'}")

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    _pipe(stream).close()
        self._said.close()
        self._folder.cleanup()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
