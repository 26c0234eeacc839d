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
Tell = Callable[[float], object]
"""Called now and then with the part that is done, 0 to 1; true if it is to come to its end now."""
Look = Callable[[int], object]
"""Called every few milliseconds with the number of the process that measures."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_GRACE = 5.0
"""Seconds beyond its budget after which a measurement is ended."""
_LAST = 1.0
"""Seconds in which a measurement that is interrupted may tell what it has."""
_SELDOM, _LOOKS = 0.01, 0.004
"""Seconds between two words of progress, and between two looks: each takes time of what is measured."""


class LoaderError(GaplessError):
    """The dataset, the sampler or the collating function fails, and would fail in training."""


class TooSlow(LoaderError):
    """A measurement does not end in the time it has."""


class Ended(LoaderError):
    """The process that measures ends without a word: a crash, or no memory left."""


class Stopped(BaseException):
    """Somebody asked for the end, by `request` (Ctrl-C), when `result` was found; None: nothing was."""

    def __init__(self, request: BaseException, result: Any = None) -> None:
        super().__init__(str(request))
        self.request, self.result = request, result


def available() -> bool:
    """Whether the process can be copied."""
    return hasattr(os, "fork")


def measured(
    work: Callable[[Tell], T],
    kind: type[T],
    seconds: float,
    tell: Tell,
    look: Look | None = None,
    *,
    keep: bool = False,
) -> T:
    """``work(tell)`` in a copy of this process, which ends with it; where there are none, here.

    `look` is called while it lasts. With `keep` a request to end (Ctrl-C) leaves a second for what there is.

    Raises:
        LoaderError: the user's code fails in it, or it does not end within `seconds` and some more.
        Stopped: with `keep`, the user asked for the end; with what was found until then.
    """
    if not available():
        with unchanged():
            return work(tell)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    (reader, writer), (asked, ask) = os.pipe(), os.pipe()
    with positions_kept():
        with warnings.catch_warnings():  # of threads: the child starts none of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            os.close(reader)
            os.close(ask)
            _child(work, writer, asked)
        os.close(writer)
        os.close(asked)
        with suppress(OSError):
            os.setpgid(pid, pid)  # as the child does itself: whoever comes first
        request: BaseException | None = None
        heard = _Heard(reader, tell, None if look is None else lambda: look(pid))
        try:
            with guarded(pid):
                try:
                    told = heard.until(seconds + _GRACE)
                except BaseException as error:  # Ctrl-C, or whatever else asks for the end
                    if not keep or isinstance(error, Exception):
                        raise
                    request = error
                    told = _at_last(heard, ask)
        finally:
            os.close(reader)
            os.close(ask)
            _end(pid)
    if request is not None:
        result = msgspec.convert(told["result"], kind) if told and "result" in told else None
        raise Stopped(request, result) from None
    return _result(told, kind, seconds)


def _at_last(heard: _Heard, ask: int) -> dict[str, Any] | None:
    """What an interrupted measurement has found; None where it does not say so soon."""
    heard.tell = lambda part: None
    with suppress(OSError, msgspec.DecodeError):
        os.write(ask, b".")
        return heard.until(_LAST)
    return None


def _result(told: dict[str, Any] | None, kind: type[T], seconds: float) -> T:
    if told is None:
        raise TooSlow(
            f"no batch within {seconds + _GRACE:.0f} s: an item takes too long or never ends; allow more "
            "time with --budget"
        )
    if "error" in told:
        raise LoaderError(told["error"])
    if "result" not in told:
        raise Ended("making a batch kills the process: a crash in native code, or out of memory")
    return msgspec.convert(told["result"], kind)


class _Heard:
    """What the child says."""

    def __init__(self, reader: int, tell: Tell, look: Callable[[], object] | None) -> None:
        self.reader, self.tell, self.look = reader, tell, look
        self.data = b""

    def until(self, seconds: float) -> dict[str, Any] | None:
        """Its last word; {} where it ends without one, None where it does not end."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            wait = left if self.look is None else min(left, _LOOKS)
            if not select.select([self.reader], [], [], wait)[0]:
                if self.look is not None:
                    self.look()
                continue
            piece = os.read(self.reader, 1 << 16)
            if not piece:
                return {}
            self.data += piece
            *rows, self.data = self.data.split(b"\n")
            for row in rows:
                told = msgspec.json.decode(row)
                if "part" not in told:
                    return dict(told)
                self.tell(told["part"])


def _end(pid: int) -> None:
    """Whatever is left of the child, with the workers it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _child(work: Callable[[Tell], Any], writer: int, asked: int) -> NoReturn:
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
            result = msgspec.to_builtins(work(_Progress(send, asked)))
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


class _Progress:
    """In the child: says what part is done, and whether the end was asked for."""

    def __init__(self, send: Callable[[dict[str, Any]], None], asked: int) -> None:
        self._send, self._asked = send, asked
        self._said = 0.0

    def __call__(self, part: float) -> bool:
        now = time.monotonic()
        if now - self._said < _SELDOM and part < 1:
            return False
        self._said = now
        self._send({"part": part})
        return bool(select.select([self._asked], [], [], 0)[0])


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
        text = "it uses CUDA, which no forked worker can do: keep items on the CPU and copy the batch"
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
