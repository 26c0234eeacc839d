"""Many traces at once: each on its own core, or on a Ray cluster; only what they are summed up in travels."""

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

from gapless.cores import usable
from gapless.errors import UnreadableInput, UsageError
from gapless.model import Profile

One = Callable[[str], Profile]
Progress = Callable[[int, int], None]
Result = Profile | UnreadableInput
Answer = tuple[str, bytes]
"""What is wrong with the file ("" where nothing is), and the profile, encoded."""


def analyze_many(
    paths: Sequence[str],
    one: One,
    jobs: int | None = None,
    on: Literal["processes", "ray"] = "processes",
    progress: Progress | None = None,
) -> list[Result]:
    """``one(path)`` for each of `paths`, in their order; a file that cannot be read costs only its own place.

    `one` must be a function of a module: other processes import it. `jobs` is how many run at once (default:
    the cores this process really has). ``progress(done, of)`` is called whenever a file is done.

    Raises:
        UsageError: Ray was asked for and is not installed or cannot be reached.
    """
    tally = _Tally(len(paths), progress)
    if on == "ray":
        return _on_ray(paths, one, tally)
    workers = min(jobs or usable(), len(paths))
    if workers < 2:
        return [tally.told(_here(one, path)) for path in paths]
    return _in_processes(paths, one, workers, tally)


class _Tally:
    """Counts the files that are done."""

    def __init__(self, of: int, progress: Progress | None) -> None:
        self._done = 0
        self._of = of
        self._progress = progress

    def told(self, result: Result) -> Result:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._of)
        return result


def _here(one: One, path: str) -> Result:
    try:
        return one(path)
    except UnreadableInput as error:
        return error


def _answer(one: One, path: str) -> Answer:
    """What another process or machine sends back: a few kilobytes, never the trace."""
    try:
        profile = one(path)
    except UnreadableInput as error:
        return str(error) or f"cannot read {path}", b""
    except MemoryError:
        return f"{path} does not fit in this machine's memory: read fewer at once (--jobs)", b""
    # Names of files may hold bytes that are no text, which the encoding refuses: the other side knows it.
    return "", msgspec.msgpack.encode(msgspec.structs.replace(profile, path=""))


def _result(answer: Answer, path: str) -> Result:
    problem, data = answer
    if problem:
        return UnreadableInput(problem)
    return msgspec.structs.replace(msgspec.msgpack.decode(data, type=Profile), path=path)


# On this machine --------------------------------------------------------------------------------


def _in_processes(paths: Sequence[str], one: One, workers: int, tally: _Tally) -> list[Result]:
    """All of them in processes of their own.

    When one dies, nobody says which file it was at. Those that were in the works are tried again one by one,
    with all the memory for themselves; what takes its process down then is given up.
    """
    found: dict[int, Result] = {}
    left, suspects = list(range(len(paths))), list[int]()
    while left:
        lost = _pool(paths, one, left, workers, found, tally)
        suspects += lost
        left = [at for at in left if at not in found and at not in lost]
    for at in suspects:
        _pool(paths, one, [at], 1, found, tally)
        if at not in found:
            found[at] = tally.told(UnreadableInput(_DIED.format(paths[at])))
    return [found[at] for at in range(len(paths))]


_DIED = "the process that read {} was killed, probably because memory ran out: try a machine with more memory"


def _pool(
    paths: Sequence[str], one: One, rows: list[int], workers: int, found: dict[int, Result], tally: _Tally
) -> list[int]:
    """Put the results of `rows` into `found`; returns those that were in the works when a process died.

    No more are handed out than are worked on: what waits in a pool is lost with it.
    """
    todo = iter(rows)
    running: dict[Future[Answer], int] = {}
    before = {child.pid for child in multiprocessing.active_children()}
    context = multiprocessing.get_context("spawn")  # a copy of this process would hold its threads' locks
    with ProcessPoolExecutor(min(workers, len(rows)), context, _begin) as pool:
        try:
            while True:
                for at in islice(todo, workers - len(running)):
                    running[pool.submit(_answer, one, paths[at])] = at
                if not running:
                    return []
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    answer = future.result()
                    at = running.pop(future)
                    found[at] = tally.told(_result(answer, paths[at]))
        except BrokenProcessPool:
            return [at for future, at in running.items() if not _kept(future, paths[at], at, found, tally)]
        except BaseException:
            # Ctrl-C, or a defect: nobody wants what the others would still come up with.
            for child in multiprocessing.active_children():
                if child.pid not in before:
                    child.kill()
            raise


def _kept(future: Future[Answer], path: str, at: int, found: dict[int, Result], tally: _Tally) -> bool:
    """Whether an answer came before the pool broke."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    found[at] = tally.told(_result(future.result(), path))
    return True


def _begin() -> None:
    """In each process: end with the terminal's Ctrl-C, without a traceback, and with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


# On a cluster -----------------------------------------------------------------------------------


def _on_ray(paths: Sequence[str], one: One, tally: _Tally) -> list[Result]:
    """One task for each file, on the cluster that Ray finds, or on this machine where it finds none.

    The files must be where its machines can read them: on a shared disk, or behind a URL.
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
        return _tasks(ray, paths, one, tally)
    finally:
        if started:
            ray.shutdown()


def _tasks(ray: Any, paths: Sequence[str], one: One, tally: _Tally) -> list[Result]:
    task = ray.remote(max_retries=1)(_answer)  # of a machine that went away, not of a file that is too large
    waiting = {task.remote(one, path): at for at, path in enumerate(paths)}
    found: dict[int, Result] = {}
    try:
        while waiting:
            for reference in ray.wait(list(waiting), num_returns=1)[0]:
                at = waiting.pop(reference)
                try:
                    result = _result(ray.get(reference), paths[at])
                except ray.exceptions.RayError as error:
                    result = UnreadableInput(f"Ray could not read {paths[at]}: {_last_line(error)}")
                found[at] = tally.told(result)
    except BaseException:
        for reference in waiting:
            ray.cancel(reference, force=True)
        raise
    return [found[at] for at in range(len(paths))]


def _last_line(error: BaseException) -> str:
    """What an error that brings a whole traceback along ends with."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
