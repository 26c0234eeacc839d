"""Measuring in a copy of the process: nothing that is measured there changes anything here.

The copy has the dataset, the sampler and all random states, and takes them along when it ends. Files that
the dataset holds open are shared with it, so their positions are put back.
"""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import random
import re
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import msgspec
import torch

from gapless.errors import GaplessError
from gapless.loading.guard import guarded
from gapless.loading.lines import is_user, shown, user_place

T = TypeVar("T")
Tell = Callable[[float], None]
"""Called now and then with the part that is done, 0 to 1."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_GRACE = 5.0
"""Seconds beyond its budget after which a measurement is ended."""


class LoaderError(GaplessError):
    """The dataset, the sampler or the collating function fails, and would fail in training."""


def available() -> bool:
    """Whether the process can be copied."""
    return hasattr(os, "fork")


def measured(work: Callable[[Tell], T], kind: type[T], seconds: float, tell: Tell) -> T:
    """``work(tell)`` in a copy of this process, which ends with it; where there are none, here.

    Raises:
        LoaderError: the user's code fails in it, or it does not end within `seconds` and some more.
    """
    if not available():
        with unchanged():
            return work(tell)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    reader, writer = os.pipe()
    with positions_kept():
        with warnings.catch_warnings():  # of threads: the child starts none of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            os.close(reader)
            _child(work, writer)
        os.close(writer)
        with suppress(OSError):
            os.setpgid(pid, pid)  # as the child does itself: whoever comes first
        try:
            with guarded(pid):
                told = _listen(reader, seconds + _GRACE, tell)
        finally:
            os.close(reader)
            _end(pid)
    if told is None:
        raise LoaderError(
            f"no batch within {seconds + _GRACE:.0f} s: an item takes too long or never ends; "
            "give it more time with --budget"
        )
    if "error" in told:
        raise LoaderError(told["error"])
    if "result" not in told:
        raise LoaderError("making a batch ends the process: a crash in native code, or no memory left")
    return msgspec.convert(told["result"], kind)


def _listen(reader: int, seconds: float, tell: Tell) -> dict[str, Any] | None:
    """What the child says at its end; {} where it ends without a word, None where it does not end."""
    deadline, data = time.monotonic() + seconds, b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return None
        piece = os.read(reader, 1 << 16)
        if not piece:
            return {}
        data += piece
        *rows, data = data.split(b"\n")
        for row in rows:
            told = msgspec.json.decode(row)
            if "part" not in told:
                return dict(told)
            tell(told["part"])


def _end(pid: int) -> None:
    """Whatever is left of the child, with the workers it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _child(work: Callable[[Tell], Any], writer: int) -> NoReturn:
    try:
        gc.freeze()  # a loader's iterator that is collected here would send the parent's workers home
        # A group of its own, to be ended as one. Not a session: to those Linux gives equal parts of the cores
        # (autogroup), and what is measured there would not be what the user's own processes get.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # no process of the background may read the terminal
            os.dup2(2, 1)  # what the dataset prints is no part of the report
        sys.stdout = sys.stderr
        torch.set_num_threads(1)  # as in a worker; and threads do not survive a fork

        def send(message: dict[str, Any]) -> None:
            data = msgspec.json.encode(message) + b"\n"
            while data:
                data = data[os.write(writer, data) :]

        try:
            result = msgspec.to_builtins(work(lambda part: send({"part": part})))
            # Semaphores that were made here have names until they are given back; those of the parent are
            # known by its number and stay. What would wait for somebody (below 0) is left out.
            multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
            send({"result": result})
        except GaplessError as error:
            send({"error": str(error)})
        except BaseException as error:
            send({"error": failure(error)})
    except BaseException:
        with suppress(BaseException):
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(0)


def failure(error: BaseException) -> str:
    """The error in one line, with the user's line that raises it."""
    text = f"{type(error).__name__}: {error}".strip().rstrip(":").split("\n")[0]
    place = user_place(error.__traceback__)
    if "Original Traceback" in str(error):  # torch's, of a worker; the last line is its error
        rows = str(error).strip().split("\n")
        text = rows[-1].strip()
        found = [one for one in map(_FRAME.search, rows) if one is not None and is_user(one[1])]
        place = f"{shown(found[-1][1])}:{found[-1][2]}" if found else ""
    if "re-initialize CUDA in forked" in str(error):
        text = "it uses CUDA, which no forked worker can: keep items on the CPU and copy the batch"
    return f"making a batch fails{f' at {place}' if place else ''}: {text}"


@contextmanager
def positions_kept() -> Iterator[None]:
    """Afterwards the files that are open now are read from where they were: a fork shares their position."""
    positions: dict[int, int] = {}
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                positions[int(name)] = os.lseek(int(name), 0, os.SEEK_CUR)
    try:
        yield
    finally:
        for descriptor, position in positions.items():
            with suppress(OSError):
                if os.lseek(descriptor, 0, os.SEEK_CUR) != position and not os.isatty(descriptor):
                    _back(descriptor, position)


def _back(descriptor: int, position: int) -> None:
    """Only where reading moved it: what is written to a log stays behind what was written."""
    import fcntl

    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        os.lseek(descriptor, position, os.SEEK_SET)


@contextmanager
def unchanged() -> Iterator[None]:
    """Python's, NumPy's and torch's random states are afterwards what they were."""
    import numpy

    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])
