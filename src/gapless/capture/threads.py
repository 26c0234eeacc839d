"""Threads and processes that a script leaves behind."""

from __future__ import annotations

import concurrent.futures.thread
import multiprocessing
import threading
import time
from collections.abc import Callable, Collection


def lingering_threads(before: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Return the threads that Python waits for before it exits, except those in `before`.

    Workers of thread pools are left out: Python ends them only when it exits itself, so waiting earlier would
    last forever.
    """
    pooled = getattr(concurrent.futures.thread, "_threads_queues", {})
    skipped = {threading.current_thread(), threading.main_thread(), *before}
    return [t for t in threading.enumerate() if not t.daemon and t not in skipped and t not in pooled]


def abandon(patience: float, clock: Callable[[], float] = time.monotonic) -> int:
    """Give threads and child processes of a stopped script `patience` seconds to end.

    Returns how many threads are left. Child processes are terminated: they wait for a parent that never
    comes. Daemons are left to Python, which ends them when it exits.
    """
    deadline = clock() + patience
    for child in (child for child in multiprocessing.active_children() if not child.daemon):
        child.join(max(0.0, deadline - clock()))
        if child.is_alive():
            child.terminate()
    for thread in lingering_threads():
        thread.join(max(0.0, deadline - clock()))
    return len(lingering_threads())
