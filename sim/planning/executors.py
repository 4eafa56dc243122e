"""Work in other processes: results as they come, and no process that outlives the one that asked."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from types import ModuleType
from typing import Any, TypeVar

Job = TypeVar("Job")
Answers = Generator[tuple[int, str], None, None]


class WorkerLostError(RuntimeError):
    """A worker process ended without an answer: killed, most likely by a system short of memory."""


def usable_cores() -> int:
    """How many cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def answers(work: Callable[[Job], str], jobs: Sequence[Job], workers: int) -> Answers:
    """The index of each of *jobs* and `work(job)`, in the order in which they get done.

    One worker is this process itself; more are processes of their own, for which *work* must be a
    function of a module and *jobs* must pickle. Closing the iterator ends them at once.
    Raises `WorkerLostError`.
    """
    if workers == 1:
        return ((index, work(job)) for index, job in enumerate(jobs))
    return _pooled(work, jobs, workers)


def _pooled(work: Callable[[Job], str], jobs: Sequence[Job], workers: int) -> Answers:
    context = get_context("spawn")
    lifeline, ours = context.Pipe(duplex=False)
    # Jobs go to workers with their start: a queue of large ones blocks its writer for ever when its readers
    # end before they took them (github.com/python/cpython/issues/94777, in Python 3.11.2 still).
    executor = ProcessPoolExecutor(workers, context, _live_with, (lifeline, work, list(jobs)))
    try:
        with _starting():
            index = {executor.submit(_answer, i): i for i in range(len(jobs))}
        for future in as_completed(index):
            yield index[future], future.result()
    except BrokenProcessPool as error:
        raise WorkerLostError("a worker process ended abruptly") from error
    finally:
        ours.close()
        executor.shutdown(cancel_futures=True)
        lifeline.close()


@contextmanager
def _starting() -> Iterator[None]:
    """For the start of processes that are to know nothing of the caller's script and its terminal.

    They would run a script without `if __name__ == "__main__":` once more, up to this very call. And a
    Ctrl-C goes to all processes of a terminal, but only the one that asked has to answer it.
    """
    main = sys.modules["__main__"]
    blocking = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if blocking else set()
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if blocking:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_told: dict[str, Any] = {}  # in a worker: the work, and the jobs


def _live_with(lifeline: Connection, work: Callable[[Any], str], jobs: Sequence[Any]) -> None:
    """Called in a new worker: it ends when the other end of *lifeline* does, even by `kill -9`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _told.update(work=work, jobs=jobs)
    Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _answer(index: int) -> str:
    answer: str = _told["work"](_told["jobs"][index])
    return answer


def _end_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()  # nothing is ever sent
    os._exit(1)
