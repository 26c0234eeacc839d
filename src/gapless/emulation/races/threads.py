"""Threads of the CPU: that one of them has waited for the GPU says nothing to another.

In what order threads run is told by queues, locks and futures, but also by any name that one of them sets and
another looks at. Those cannot be followed, and an order worked out without them would find races that are
none. So no order is worked out. Instead, where a thread waits for the GPU, or draws random numbers, it holds
still for a moment before that counts: what another thread does meanwhile does not come behind it, whatever
they tell each other.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import Any

import torch

from gapless.emulation.races.found import CPU, Races, Side, here, raw

MOMENT, STILL = 0.1, 10
"""Seconds for which a thread holds still at most; looks for which the others may be where they were."""
_LOOK, _ALL, _EACH = 0.002, 1.0, 2
"""Seconds between two looks, seconds in all, and how often a thread holds still at one place."""
_ASIDE = ("torch.utils.data.", "multiprocessing.", "tqdm.", "execnet.", "gapless.")
"""Modules whose threads do nothing on the GPU."""


class Threads:
    """Lets the other threads go first, until they stand still, too: one thread at a time."""

    def __init__(self, found: Races) -> None:
        self._found = found
        self._held: Counter[Any] = Counter()
        self._spent = 0.0
        self._holding = threading.Lock()

    def hold(self) -> None:
        """Hold still, where another thread may have something to do with the GPU."""
        if threading.active_count() < 2 or self._spent >= _ALL or not _others():
            return
        place = raw(here())
        if self._held[place] >= _EACH or not self._holding.acquire(blocking=False):
            return
        began = time.monotonic()
        try:
            self._held[place] += 1
            self._wait(began + MOMENT)
        finally:
            self._spent += time.monotonic() - began
            self._holding.release()

    def _wait(self, end: float) -> None:
        met, still, before = self._found.met, 0, None
        while self._found.met == met and still < STILL and time.monotonic() < end:
            time.sleep(_LOOK)
            now = _standing()
            still = still + 1 if now == before else 0
            before = now


def _standing() -> dict[int, tuple[int, int]]:
    """Where the other threads are."""
    own = threading.get_ident()
    return {one: (id(frame), frame.f_lasti) for one, frame in sys._current_frames().items() if one != own}


def _others() -> bool:
    own = threading.current_thread()
    return any(one is not own and not _aside(one) for one in threading.enumerate())


def _aside(thread: threading.Thread) -> bool:
    """Whether a thread does nothing on the GPU, or was not begun by Python: autograd's wait by themselves."""
    kind = type(thread)
    module = getattr(getattr(thread, "_target", None) or kind, "__module__", None) or ""
    return kind.__name__ == "_DummyThread" or module.startswith(_ASIDE)


class Draws:
    """Who draws from which generator: two threads at once get other numbers in each run."""

    def __init__(self, threads: Threads, found: Races) -> None:
        self._threads = threads
        self._found = found
        self._users: dict[int, set[int]] = {}
        self._drawing: dict[int, tuple[int, Side]] = {}

    def drawn(self, generator: Any, index: int, what: str) -> None:
        """This thread draws from `generator`, or, where that is None, from the default one of a device."""
        key = index if generator is None or generator is torch.default_generator else generator._cdata
        own, users = threading.get_ident(), self._users.setdefault(key, set())
        users.add(own)
        if len(users) < 2:
            return
        default: Any = torch.cuda.default_generators[index]
        if key == index and not default.seeded:
            return
        drawing = Side(CPU, 0, what, True, here())
        other = self._drawing.get(key)
        if other is not None and other[0] != own:
            self._found.add("generator", other[1], drawing, 0)
            return
        self._drawing[key] = own, drawing
        try:
            self._threads.hold()
        finally:
            self._drawing.pop(key, None)
