"""CPU threads: a wait of one thread for the GPU does not order the others.

Queues, locks and futures order threads, but so does any variable that one sets and another reads. Those
cannot be followed, and an order derived without them would report false races. So no order is derived.
Instead, a thread that waits for the GPU or draws random numbers pauses for a moment before the wait counts:
what another thread does meanwhile is certainly not ordered after it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import Any

import torch

from gapless.emulation.races.race_log import CPU, RaceAccess, RaceLog, here, raw

MAX_HOLD_SECONDS, LOOKS_UNCHANGED = 0.1, 10
"""Longest pause of a thread in seconds; looks at which the others have not moved that end it earlier."""
_LOOK_INTERVAL, _MAX_TOTAL_HOLD, _MAX_HOLDS_PER_PLACE = 0.002, 1.0, 2
"""Seconds between two looks, seconds of all pauses together, and pauses at one place: bound the overhead."""
_UNRELATED_MODULES = ("torch.utils.data.", "multiprocessing.", "tqdm.", "execnet.", "gapless.")
"""Prefixes of modules whose threads do nothing on the GPU."""


class ThreadHolder:
    """Pauses one thread at a time until the other threads stop making progress."""

    def __init__(self, log: RaceLog) -> None:
        self._log = log
        self._held: Counter[Any] = Counter()
        self._spent = 0.0
        self._holding = threading.Lock()

    def hold(self) -> None:
        """Pause if another thread may use the GPU, within the limits."""
        if threading.active_count() < 2 or self._spent >= _MAX_TOTAL_HOLD or not _has_other_threads():
            return
        place = raw(here())
        if self._held[place] >= _MAX_HOLDS_PER_PLACE or not self._holding.acquire(blocking=False):
            return
        began = time.monotonic()
        try:
            self._held[place] += 1
            self._wait(began + MAX_HOLD_SECONDS)
        finally:
            self._spent += time.monotonic() - began
            self._holding.release()

    def _wait(self, end: float) -> None:
        met, still, before = self._log.times_met, 0, None
        while self._log.times_met == met and still < LOOKS_UNCHANGED and time.monotonic() < end:
            time.sleep(_LOOK_INTERVAL)
            now = _thread_positions()
            still = still + 1 if now == before else 0
            before = now


def _thread_positions() -> dict[int, tuple[int, int]]:
    """Return frame and instruction of each other thread, by thread id."""
    own = threading.get_ident()
    return {
        thread: (id(frame), frame.f_lasti) for thread, frame in sys._current_frames().items() if thread != own
    }


def _has_other_threads() -> bool:
    own = threading.current_thread()
    return any(thread is not own and not _is_unrelated(thread) for thread in threading.enumerate())


def _is_unrelated(thread: threading.Thread) -> bool:
    """Whether a thread does nothing on the GPU, or was not started by Python, as autograd's."""
    kind = type(thread)
    module = getattr(getattr(thread, "_target", None) or kind, "__module__", None) or ""
    return kind.__name__ == "_DummyThread" or module.startswith(_UNRELATED_MODULES)


class GeneratorDraws:
    """Finds generators that two threads draw from at once, with different numbers in each run."""

    def __init__(self, threads: ThreadHolder, log: RaceLog) -> None:
        self._threads = threads
        self._log = log
        self._users: dict[int, set[int]] = {}
        self._drawing: dict[int, tuple[int, RaceAccess]] = {}

    def draw(self, generator: Any, index: int, action: str) -> None:
        """Check a draw of this thread from `generator`; None: the default one of device `index`."""
        key = index if generator is None or generator is torch.default_generator else generator._cdata
        own, users = threading.get_ident(), self._users.setdefault(key, set())
        users.add(own)
        if len(users) < 2:
            return
        default: Any = torch.cuda.default_generators[index]
        if key == index and not default.seeded:
            return
        drawing = RaceAccess(CPU, 0, action, True, here())
        other = self._drawing.get(key)
        if other is not None and other[0] != own:
            self._log.add("generator", other[1], drawing, 0)
            return
        self._drawing[key] = own, drawing
        try:
            self._threads.hold()
        finally:
            self._drawing.pop(key, None)
