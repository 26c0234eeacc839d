"""Measure in a copy of the process, so that nothing changes in this one.

The copy has the dataset, the sampler and all random states, which vanish with it. Files that the dataset
holds open are shared, so their positions are restored.
"""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import random
import re
import select
import signal
import stat
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
from gapless.loading.lines import is_user, short_path, user_place

T = TypeVar("T")
Tell = Callable[[float], object]
"""Called now and then with the share done, 0 to 1; true if the work should end now."""
ProcessSampler = Callable[[int], object]
"""Called every few milliseconds with the measuring process's number."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_GRACE_SECONDS = 5.0
"""A measurement is ended this long after its budget."""
_LAST_WORD_SECONDS = 1.0
"""Time for an interrupted measurement to send its result."""
_PROGRESS_SECONDS, _SAMPLE_SECONDS = 0.01, 0.004
"""Intervals between progress messages and between samples: each takes time from the measurement."""


class LoaderError(GaplessError):
    """The dataset, sampler or collate function fails, and would fail in training."""


class TooSlow(LoaderError):
    """A measurement does not end in time."""


class Ended(LoaderError):
    """The measuring process ended without a message: a crash, or out of memory."""


class Stopped(BaseException):
    """The user requested the end by `request` (Ctrl-C); `result` is what was measured (None: nothing)."""

    def __init__(self, request: BaseException, result: Any = None) -> None:
        super().__init__(str(request))
        self.request, self.result = request, result


def can_fork() -> bool:
    """Whether the process can be copied."""
    return hasattr(os, "fork")


def run_in_copy(
    work: Callable[[Tell], T],
    kind: type[T],
    seconds: float,
    tell: Tell,
    look: ProcessSampler | None = None,
    *,
    keep: bool = False,
    trial: bool = False,
) -> T:
    """Return ``work(tell)``, run in a copy of this process that then ends; here if copying is impossible.

    `look` is called while it lasts. With `keep` a request to end (Ctrl-C) leaves a second for a partial
    result. A `trial` may do anything: what would be noticed outside of the copy is refused, and the copy is
    ended after `seconds`.

    Raises:
        LoaderError: the user's code fails, or does not end within `seconds` and some more.
        Stopped: with `keep`, on a request to end; with what was measured so far.
    """
    if not can_fork():
        with preserve_random_state():
            return work(tell)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    (reader, writer), (stop_reader, stop_writer) = os.pipe(), os.pipe()
    with positions_kept():
        pid = _fork()
        if not pid:
            os.close(reader)
            os.close(stop_writer)
            _run_child(_as_trial(work, writer) if trial else work, writer, stop_reader)
        os.close(writer)
        os.close(stop_reader)
        with suppress(OSError):
            os.setpgid(pid, pid)  # the child does it too: whichever comes first
        request: BaseException | None = None
        messages = _Messages(reader, tell, None if look is None else lambda: look(pid))
        try:
            with guard_group(pid):
                try:
                    last_message = messages.until(seconds + (0.0 if trial else _GRACE_SECONDS))
                except BaseException as error:  # Ctrl-C, or whatever else asks for the end
                    if not keep or isinstance(error, Exception):
                        raise
                    request = error
                    last_message = _await_last_word(messages, stop_writer)
        finally:
            os.close(reader)
            os.close(stop_writer)
            _kill_child(pid)
    if request is not None:
        result = (
            msgspec.convert(last_message["result"], kind)
            if last_message and "result" in last_message
            else None
        )
        raise Stopped(request, result) from None
    return _convert_result(last_message, kind, seconds)


def _fork() -> int:
    """Copy this process without the warning about its threads: the child starts none of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _await_last_word(messages: _Messages, ask: int) -> dict[str, Any] | None:
    """Return an interrupted measurement's last message; None if it does not come soon."""
    messages.tell = lambda part: None
    with suppress(OSError, msgspec.DecodeError):
        os.write(ask, b".")
        return messages.until(_LAST_WORD_SECONDS)
    return None


def _convert_result(message: dict[str, Any] | None, kind: type[T], seconds: float) -> T:
    if message is None:
        raise TooSlow(
            f"no batch within {seconds + _GRACE_SECONDS:.0f} s: an item takes too long or never ends; allow "
            "more time with --budget"
        )
    if "error" in message:
        raise LoaderError(message["error"])
    if "result" not in message:
        raise Ended("making a batch kills the process: a crash in native code, or out of memory")
    return msgspec.convert(message["result"], kind)


class _Messages:
    """The messages of the child."""

    def __init__(self, reader: int, tell: Tell, look: Callable[[], object] | None) -> None:
        self.reader, self.tell, self.look = reader, tell, look
        self.data = b""

    def until(self, seconds: float) -> dict[str, Any] | None:
        """Return its last message; {} if it ends without one, None if it does not end."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            wait = left if self.look is None else min(left, _SAMPLE_SECONDS)
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
                message = msgspec.json.decode(row)
                if "part" not in message:
                    return dict(message)
                self.tell(message["part"])


def _kill_child(pid: int) -> None:
    """Kill the child with the workers it has started, and wait for it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _run_child(work: Callable[[Tell], Any], writer: int, stop_reader: int) -> NoReturn:
    try:
        gc.freeze()  # collecting a loader's iterator here would stop the parent's workers
        # A group of its own, to be killed as one. Not a session: Linux gives sessions equal shares of the
        # cores
        # (autogroup), and the measurement would not see what the user's own processes get.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a background process must not read the terminal
            os.dup2(2, 1)  # what the dataset prints does not belong in the report
        sys.stdout = sys.stderr
        torch.set_num_threads(1)  # as in a worker; and threads do not survive a fork

        def send(message: dict[str, Any]) -> None:
            data = msgspec.json.encode(message) + b"\n"
            while data:
                data = data[os.write(writer, data) :]

        try:
            result = msgspec.to_builtins(work(_Progress(send, stop_reader)))
            # Semaphores created here have names until they are released; those of the parent are
            # identified by its number and stay. Finalizers that would wait (priority below 0) are left out.
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
    """In the child: sends the share done, and reads whether the end was requested."""

    def __init__(self, send: Callable[[dict[str, Any]], None], stop_reader: int) -> None:
        self._send, self._stop_reader = send, stop_reader
        self._said = 0.0

    def __call__(self, part: float) -> bool:
        now = time.monotonic()
        if now - self._said < _PROGRESS_SECONDS and part < 1:
            return False
        self._said = now
        self._send({"part": part})
        return bool(select.select([self._stop_reader], [], [], 0)[0])


def failure(error: BaseException) -> str:
    """Describe the error in one line, with the user's line that raises it."""
    text = f"{type(error).__name__}: {error}".strip().rstrip(":").split("\n")[0]
    place = user_place(error.__traceback__)
    if "Original Traceback" in str(error):  # torch's, of a worker; the last line is its error
        rows = str(error).strip().split("\n")
        text = rows[-1].strip()
        frames = [match for match in map(_FRAME.search, rows) if match is not None and is_user(match[1])]
        place = f"{short_path(frames[-1][1])}:{frames[-1][2]}" if frames else ""
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
def preserve_random_state() -> Iterator[None]:
    """Python's, NumPy's and torch's random states are afterwards what they were."""
    import numpy

    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])


_SHELL = "/bin/sh"
_WATCH_SCRIPT = "read nothing; kill -9 0"
"""Waits for the end of a pipe whose other end only this process holds; then kills its own group."""


@contextmanager
def guard_group(group: int) -> Iterator[None]:
    """Make sure that the processes of `group` do not outlive this one while the block lasts.

    A group is more than what a process has started: spawned workers are not told when it is killed, and may
    wait for each other forever. The watch is a process of its own, started without a copy of this process's
    memory, so that nothing that happens here can stop it.
    """
    reader, writer = os.pipe()
    try:
        watch = _start_watch(reader, group)
    finally:
        os.close(reader)
    try:
        yield
    finally:
        if watch:
            with suppress(ProcessLookupError):
                os.kill(watch, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(watch, 0)
        os.close(writer)


def _start_watch(reader: int, group: int) -> int:
    """Return the watching process; 0 if it cannot be started."""
    nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    actions = [(os.POSIX_SPAWN_DUP2, reader, 0), *nowhere]
    with suppress(OSError):
        return os.posix_spawn(
            _SHELL, [_SHELL, "-c", _WATCH_SCRIPT], {}, file_actions=actions, setpgroup=group
        )
    return 0


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of a file that is not only read."""
_REFUSED = frozenset(
    {
        *("os.chmod", "os.chown", "os.kill", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"),
        *("os.symlink", "os.truncate", "os.utime", "os.setxattr", "os.exec", "os.spawn", "os.posix_spawn"),
        *("os.system", "subprocess.Popen", "socket.connect", "socket.getaddrinfo", "socket.sendmsg"),
        *("socket.bind", "socket.sendto", "sqlite3.connect"),
        *("shutil.copyfile", "shutil.move", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp"),
    }
)
"""Events that Python reports before it does something that others notice."""


def _as_trial(work: Callable[[Tell], T], writer: int) -> Callable[[Tell], T]:
    """Return `work` with all that others would notice refused first, except for what goes to `writer`."""

    def refuse_and_work(tell: Tell) -> T:
        _disconnect(writer)
        _refuse_side_effects()
        return work(tell)

    return refuse_and_work


def _disconnect(kept: int) -> None:
    """Let what is written to open files, pipes and connections go nowhere, except for the file `kept`."""
    import fcntl

    nowhere = os.open(os.devnull, os.O_RDWR)
    with suppress(OSError):
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                kind = os.fstat(descriptor).st_mode
                is_shared = stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
                is_read = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
                if descriptor != kept and (descriptor in (1, 2) or (is_shared and not is_read)):
                    os.dup2(nowhere, descriptor)


def _refuse_side_effects() -> None:
    """Make writing, connecting and starting programs fail from now on, in this process.

    It cannot be undone: only for a process that ends afterwards. The error is `PermissionError`, which
    Python's import of a module ignores when it cannot write its cache.
    """

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _REFUSED or (event == "open" and _is_written(*arguments)):
            raise PermissionError(f"{event} is refused while something is only tried")

    sys.addaudithook(look)


def _is_written(path: Any, mode: Any, flags: Any) -> bool:
    """Whether opening `path` is for more than reading it."""
    return bool(flags & _WRITING) and not str(path).startswith("/dev/")
