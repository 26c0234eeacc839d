"""Kill a group of processes when this process ends, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
