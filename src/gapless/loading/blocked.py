"""Sample what a process waits for, from outside: the system call it is in."""

from __future__ import annotations

import os
import platform
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path

IO, SLEEP, LOCK, PROCESS, UNKNOWN = "io", "sleep", "lock", "process", ""
RUNS = "runs"

_FILE_CALLS = {  # by the file of the first argument: read, pread64, readv, preadv, recvfrom, recvmsg, ...
    "x86_64": (0, 17, 19, 295, 327, 45, 47, 299),
    "aarch64": (63, 67, 65, 69, 286, 207, 212, 243),
}
_CALLS_BY_KIND = {
    # open, openat, stat, newfstatat, statx, getdents64, io_getevents, io_uring_enter, fsync, ...
    "x86_64": {
        IO: (2, 257, 4, 262, 332, 217, 208, 426, 74, 40, 42),
        SLEEP: (35, 230),
        LOCK: (202, 449, 72, 73),  # futex, futex_waitv, fcntl, flock
        PROCESS: (61, 247, 56, 57, 58, 435),  # wait4, waitid, clone, fork, vfork, clone3
    },
    "aarch64": {
        IO: (56, 79, 291, 61, 4, 426, 82, 71, 203),
        SLEEP: (101, 115),
        LOCK: (98, 449, 25, 32),
        PROCESS: (260, 95, 220, 435),
    },
}
_POLL_CALLS = {"x86_64": (7, 271), "aarch64": (73,)}
_SELECT_CALLS = {"x86_64": (23, 270), "aarch64": (72,)}


class WaitSampler:
    """Counts, sample by sample, what the threads of a process wait for.

    Only what Linux knows for certain has a name: ``io`` (a file, a disk, a connection), ``sleep``, ``lock``,
    ``process`` (a pipe, or the end of another process); the rest is "". A process that computes, or would if
    it had a core, is ``runs``, which is no wait.
        >>> WaitSampler().counts
        Counter()
    """

    def __init__(self, processes: str = "/proc", machine: str = "") -> None:
        self.counts: Counter[str] = Counter()
        self._processes = Path(processes)
        self._machine = machine or platform.machine()

    def __call__(self, pid: int) -> None:
        """Sample process `pid`; count nothing if the system does not say."""
        kind = self._thread_state(pid, pid)
        if kind == LOCK:  # it may wait for one of its own threads, which waits for something else
            other_kinds = {self._thread_state(pid, thread) for thread in self._threads(pid)} - {LOCK, None}
            kind = next(
                (candidate for candidate in (RUNS, IO, PROCESS, SLEEP) if candidate in other_kinds), kind
            )
        if kind is not None:
            self.counts[kind] += 1

    def waits(self) -> dict[str, int]:
        """Return the number of samples in which it waited, by kind."""
        return {kind: number for kind, number in self.counts.items() if kind != RUNS}

    def _threads(self, pid: int) -> list[int]:
        with suppress(OSError):
            return [int(name) for name in os.listdir(self._processes / str(pid) / "task") if int(name) != pid]
        return []

    def _thread_state(self, pid: int, thread: int) -> str | None:
        folder = self._processes / str(pid) / "task" / str(thread)
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return None
        if state not in "SD":
            return RUNS
        with suppress(OSError, ValueError, IndexError):
            words = (folder / "syscall").read_text().split()
            if words[0] == "running":
                return RUNS
            if int(words[0]) >= 0:
                kind = self._kind_of_call(pid, int(words[0]), [int(word, 16) for word in words[1:7]])
                if kind != UNKNOWN:
                    return kind
        return IO if state == "D" else UNKNOWN  # uninterruptible: a disk, or a page being read

    def _kind_of_call(self, pid: int, call: int, arguments: list[int]) -> str:
        if call in _FILE_CALLS.get(self._machine, ()):
            return self._kind_of_file(pid, arguments[0])
        if call in _SELECT_CALLS.get(self._machine, ()):
            return SLEEP if arguments[0] == 0 else UNKNOWN
        if call in _POLL_CALLS.get(self._machine, ()):
            return (
                self._kind_of_file(pid, self._first_polled_file(pid, arguments[0])) if arguments[1] else SLEEP
            )
        kinds = _CALLS_BY_KIND.get(self._machine, {})
        return next((kind for kind, calls in kinds.items() if call in calls), UNKNOWN)

    def _first_polled_file(self, pid: int, address: int) -> int:
        """Return the first file descriptor of a poll."""
        with (self._processes / str(pid) / "mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            number: int = struct.unpack("i", memory.read(4))[0]
        return number

    def _kind_of_file(self, pid: int, number: int) -> str:
        target = os.readlink(self._processes / str(pid) / "fd" / str(number))
        if target.startswith("pipe:"):
            return PROCESS
        if target.startswith(("anon_inode:", "/dev/pts", "/dev/tty")):
            return UNKNOWN
        return IO
