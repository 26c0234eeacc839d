"""Read many traces at once, on several cores or a Ray cluster; only each trace's profile is sent back."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, Literal

import msgspec

from gapless.cores import usable_cores
from gapless.errors import UnreadableInput, UsageError
from gapless.model import Profile

ReadTrace = Callable[[str], Profile]
Progress = Callable[[int, int], None]
Result = Profile | UnreadableInput
Answer = tuple[str, bytes]
"""The problem with the file ("" if none), and the encoded profile."""


def analyze_many(
    paths: Sequence[str],
    read_trace: ReadTrace,
    jobs: int | None = None,
    on: Literal["processes", "ray"] = "processes",
    progress: Progress | None = None,
) -> list[Result]:
    """Return ``read_trace(path)`` for each of `paths`, in order; an unreadable file gives its error.

    `read_trace` must be a module's function: other processes import it. `jobs` is how many run at once
    (default: the cores available to this process). ``progress(done, of)`` is called after each file.

    Raises:
        UsageError: Ray is not installed or cannot be reached.
    """
    tally = _Tally(len(paths), progress)
    if on == "ray":
        return _on_ray(paths, read_trace, tally)
    workers = min(jobs or usable_cores(), len(paths))
    if workers < 2:
        return [tally.add(_read_here(read_trace, path)) for path in paths]
    return _in_processes(paths, read_trace, workers, tally)


class _Tally:
    """Counts finished files and reports progress."""

    def __init__(self, of: int, progress: Progress | None) -> None:
        self._done = 0
        self._of = of
        self._progress = progress

    def add(self, result: Result) -> Result:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._of)
        return result


def _read_here(read_trace: ReadTrace, path: str) -> Result:
    try:
        return read_trace(path)
    except UnreadableInput as error:
        return error


def _encode_profile(read_trace: ReadTrace, path: str) -> Answer:
    """Read a trace and encode what is sent back: a few kilobytes, never the trace."""
    try:
        profile = read_trace(path)
    except UnreadableInput as error:
        return str(error) or f"cannot read {path}", b""
    except MemoryError:
        return f"{path} does not fit in this machine's memory: read fewer at once (--jobs)", b""
    # File names may hold bytes that are no text, which the encoding refuses; the parent has the path anyway.
    return "", msgspec.msgpack.encode(msgspec.structs.replace(profile, path=""))


def _decode_result(answer: Answer, path: str) -> Result:
    problem, data = answer
    if problem:
        return UnreadableInput(problem)
    return msgspec.structs.replace(msgspec.msgpack.decode(data, type=Profile), path=path)


# On this machine --------------------------------------------------------------------------------


def _in_processes(paths: Sequence[str], read_trace: ReadTrace, workers: int, tally: _Tally) -> list[Result]:
    """Read all traces in worker processes.

    When a worker dies, nothing says which file it was reading. The files that were being read are tried again
    one at a time, with all the memory; a file that kills its worker then is given up.
    """
    results: dict[int, Result] = {}
    left, suspects = list(range(len(paths))), list[int]()
    while left:
        lost = _run_pool(paths, read_trace, left, workers, results, tally)
        suspects += lost
        left = [at for at in left if at not in results and at not in lost]
    for at in suspects:
        _run_pool(paths, read_trace, [at], 1, results, tally)
        if at not in results:
            results[at] = tally.add(UnreadableInput(_DIED.format(paths[at])))
    return [results[at] for at in range(len(paths))]


_DIED = "the process that read {} was killed, probably because memory ran out: try a machine with more memory"


def _run_pool(
    paths: Sequence[str],
    read_trace: ReadTrace,
    rows: list[int],
    workers: int,
    results: dict[int, Result],
    tally: _Tally,
) -> list[int]:
    """Add the results of `rows` to `results`; return the rows that were being read when a worker died.

    No more rows are submitted than workers can take: what waits in a broken pool is lost with it.
    """
    todo = iter(rows)
    running: dict[Future[Answer], int] = {}
    before = {child.pid for child in multiprocessing.active_children()}
    context = multiprocessing.get_context("spawn")  # a copy of this process would hold its threads' locks
    with ProcessPoolExecutor(min(workers, len(rows)), context, _init_worker) as pool:
        try:
            while True:
                for at in islice(todo, workers - len(running)):
                    running[pool.submit(_encode_profile, read_trace, paths[at])] = at
                if not running:
                    return []
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    answer = future.result()
                    at = running.pop(future)
                    results[at] = tally.add(_decode_result(answer, paths[at]))
        except BrokenProcessPool:
            return [
                at
                for future, at in running.items()
                if not _store_if_done(future, paths[at], at, results, tally)
            ]
        except BaseException:
            # Ctrl-C, or a defect: nobody wants the remaining results.
            for child in multiprocessing.active_children():
                if child.pid not in before:
                    child.kill()
            raise


def _store_if_done(
    future: Future[Answer], path: str, at: int, results: dict[int, Result], tally: _Tally
) -> bool:
    """Store an answer that came before the pool broke; whether there was one."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    results[at] = tally.add(_decode_result(future.result(), path))
    return True


def _init_worker() -> None:
    """Make a worker end with the terminal's Ctrl-C, without a traceback, and with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


# On a cluster -----------------------------------------------------------------------------------


def _on_ray(paths: Sequence[str], read_trace: ReadTrace, tally: _Tally) -> list[Result]:
    """Read each file in a task, on the cluster that Ray finds, or on this machine.

    The cluster's machines must be able to read the files: on a shared disk, or behind a URL.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise UsageError("--on ray needs Ray, which is not installed here: pip install ray") from None
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UsageError(f"Ray failed to start: {_last_line(error)}") from None
    try:
        return _run_tasks(ray, paths, read_trace, tally)
    finally:
        if started:
            ray.shutdown()


def _run_tasks(ray: Any, paths: Sequence[str], read_trace: ReadTrace, tally: _Tally) -> list[Result]:
    task = ray.remote(max_retries=1)(
        _encode_profile
    )  # of a machine that went away, not of a file that is too large
    waiting = {task.remote(read_trace, path): at for at, path in enumerate(paths)}
    results: dict[int, Result] = {}
    try:
        while waiting:
            for reference in ray.wait(list(waiting), num_returns=1)[0]:
                at = waiting.pop(reference)
                try:
                    result = _decode_result(ray.get(reference), paths[at])
                except ray.exceptions.RayError as error:
                    result = UnreadableInput(f"Ray could not read {paths[at]}: {_last_line(error)}")
                results[at] = tally.add(result)
    except BaseException:
        for reference in waiting:
            ray.cancel(reference, force=True)
        raise
    return [results[at] for at in range(len(paths))]


def _last_line(error: BaseException) -> str:
    """Return the last line of an error that contains a whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
