"""Time by three clocks: on the wall, of the processor, and spent waiting for one; and other counters."""

from __future__ import annotations

import os
import time
from contextlib import suppress


class Clock:
    """Nanoseconds of this process. Tests give one of their own."""

    def __init__(self) -> None:
        self._statistics = -1
        with suppress(OSError):
            self._statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def wall(self) -> int:
        """Time that passes."""
        return time.perf_counter_ns()

    def cpu(self) -> int:
        """Processor time of all threads."""
        return time.process_time_ns()

    def thread(self) -> int:
        """Processor time of this thread."""
        return time.thread_time_ns()

    def delayed(self) -> int:
        """Time in which this thread could have run and had no core; 0 where the system does not tell."""
        if self._statistics < 0:
            return 0
        try:
            return int(os.pread(self._statistics, 128, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0

    def close(self) -> None:
        if self._statistics >= 0:
            os.close(self._statistics)
            self._statistics = -1


def processor_time(pid: int) -> int:
    """Nanoseconds of processor time of another process; -1 where the system does not tell."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # the clock of a process: clock_getcpuclockid(3)
    except (OSError, AttributeError, OverflowError):
        return -1


class Storage:
    """Bytes that this process had to read from storage, the page cache left out."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open("/proc/self/io", os.O_RDONLY)

    def read(self) -> int:
        """Until now; 0 where it is not told."""
        if self._file < 0:
            return 0
        try:
            return int(os.pread(self._file, 512, 0).partition(b"read_bytes:")[2].split(maxsplit=1)[0])
        except (OSError, IndexError, ValueError):
            return 0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def page_faults() -> int:
    """Pages that this process touched for the first time; 0 where it is not told."""
    try:
        import resource
    except ModuleNotFoundError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
