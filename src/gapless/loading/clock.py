"""Read wall, processor and run-queue time, storage reads and page faults."""

from __future__ import annotations

import os
import time
from contextlib import suppress


class Clock:
    """Nanoseconds of this process. Tests replace it."""

    def __init__(self) -> None:
        self._statistics = -1
        with suppress(OSError):
            self._statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def wall(self) -> int:
        """Return elapsed time."""
        return time.perf_counter_ns()

    def cpu(self) -> int:
        """Return the processor time of all threads."""
        return time.process_time_ns()

    def thread(self) -> int:
        """Return the processor time of this thread."""
        return time.thread_time_ns()

    def delayed(self) -> int:
        """Return the time in which this thread was runnable without a core; 0 if the system does not say."""
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
    """Return the processor time of another process in nanoseconds; -1 if the system does not say."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # the clock of a process: clock_getcpuclockid(3)
    except (OSError, AttributeError, OverflowError):
        return -1


class StorageReads:
    """Bytes that this process read from storage, without the page cache."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open("/proc/self/io", os.O_RDONLY)

    def read(self) -> int:
        """Return the bytes read up to now; 0 if unknown."""
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
    """Return the pages touched for the first time by this process; 0 if unknown."""
    try:
        import resource
    except ModuleNotFoundError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
