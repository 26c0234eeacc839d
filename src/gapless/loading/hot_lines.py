"""At which of the user's lines batches take their time, by samples of the stack.

Python calls a signal's handler at calls and backward jumps only (since 3.11), which would charge a long
subscript or operator to a later line. `faulthandler` writes the stack where the signal comes. It writes no
time: as signals that come while a read from a disk cannot be interrupted are merged into one, a handler of
Python's notes now and then the time and how much was written, and samples share the time between two notes.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from types import FrameType
from typing import NamedTuple

from torch.utils.data import DataLoader

from gapless.loading import forked
from gapless.loading.batches import Maker, indices_of
from gapless.loading.clock import Clock
from gapless.loading.forked import Tell, available
from gapless.loading.lines import is_user, source_line
from gapless.model.loading import HotLine

_EVERY = 0.003
"""Seconds between two samples. Writing one takes a tenth of that, at every line alike."""
_LINES = 5
"""Lines that are reported at most."""

_FRAME = re.compile(rb'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_STACK = re.compile(rb"^\S.*\(most recent call first\):$", re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")

Place = tuple[str, int, str]
"""File, line and function; ("", 0, "") where no line of the user's was running."""


class Note(NamedTuple):
    """How many bytes of samples were written at a time, in nanoseconds without those waiting for a core."""

    size: int
    time: int


def note_time(pid: int) -> None:
    """Let the process `pid`, which looks for hot lines, note the time; elsewhere the signal is ignored."""
    with suppress(ProcessLookupError, PermissionError, AttributeError):
        os.kill(pid, signal.SIGURG)


def hot_lines(loader: DataLoader, seconds: float, tell: Tell, *, skip: int = 0) -> list[HotLine]:
    """The user's lines in which making batches takes its time.

    Only in the main thread of a process that ends with it. Notes of the time come when `note_time` is called.
    """
    if not hasattr(faulthandler, "register") or not available():
        return []
    spent: Counter[Place | None] = Counter()
    with _samples(spent):
        _make_batches(loader, seconds, tell, skip)
    del spent[None]
    total = sum(spent.values())
    return [
        HotLine(line=source_line(*place), share=count / total)
        for place, count in spent.most_common(_LINES)
        if place is not None and place[0]
    ]


def _make_batches(loader: DataLoader, seconds: float, tell: Tell, skip: int) -> None:
    """Make batches for that many `seconds`, as a worker does."""
    clock = Clock()
    begin = clock.wall()
    maker = Maker(loader)
    for indices in islice(indices_of(loader), skip, None):
        items = []
        try:
            for step in maker.steps(indices):
                items.append(step())
                passed = (clock.wall() - begin) / 1e9
                if passed >= seconds:
                    break
            maker.collate(items)
        except (StopIteration, RuntimeError):
            break
        passed = (clock.wall() - begin) / 1e9
        if tell(min(1.0, passed / seconds)) or passed >= seconds:
            break


@contextmanager
def _samples(spent: Counter[Place | None]) -> Iterator[None]:
    """Sample the stack meanwhile, and add to `spent` the nanoseconds of each place afterwards."""
    clock, notes = Clock(), list[Note]()
    with _unnamed_file() as file:

        def note(number: int = 0, frame: FrameType | None = None) -> None:
            notes.append(Note(os.lseek(file, 0, os.SEEK_CUR), clock.wall() - clock.delayed()))

        before = signal.signal(signal.SIGURG, note)
        signal.siginterrupt(signal.SIGURG, False)
        ignored = signal.signal(signal.SIGALRM, signal.SIG_IGN)  # a late one must not end the process
        faulthandler.register(signal.SIGALRM, file, all_threads=False)
        note()
        signal.setitimer(signal.ITIMER_REAL, _EVERY, _EVERY)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            note()
            faulthandler.unregister(signal.SIGALRM)
            signal.signal(signal.SIGALRM, ignored)
            signal.signal(signal.SIGURG, before)
        spent.update(times(os.pread(file, notes[-1].size, 0), notes))


@contextmanager
def _unnamed_file() -> Iterator[int]:
    """The descriptor of a file that is gone afterwards; in memory where the system has such."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("stacks")
        try:
            yield file
        finally:
            os.close(file)
    else:
        with tempfile.TemporaryFile(buffering=0) as opened:
            yield opened.fileno()


def times(written: bytes, notes: Sequence[Note]) -> dict[Place | None, float]:
    """Nanoseconds spent at each place, by what `faulthandler` has `written` and the `notes` of the time.

    >>> stack = b'Stack (most recent call first):\\n  File "/x/a.py", line %d in load\\n'
    >>> times(stack % 1 + stack % 2, [Note(0, 0), Note(62, 10), Note(124, 40)])
    {('/x/a.py', 1, 'load'): 10.0, ('/x/a.py', 2, 'load'): 30.0}
    """
    spent: Counter[Place | None] = Counter()
    starts = [found.start() for found in _STACK.finditer(written)]
    ends = [*starts[1:], len(written)][: len(starts)]
    places = [_place(written[begin:end]) for begin, end in zip(starts, ends, strict=True)]
    first, since = 0, notes[0].time if notes else 0
    for note in notes[1:]:
        last = first
        while last < len(starts) and starts[last] < note.size:
            last += 1
        for place in places[first:last]:
            spent[place] += (note.time - since) / (last - first)  # type: ignore[assignment]
        if last > first:
            first, since = last, note.time
    return dict(spent)


def _place(stack: bytes) -> Place | None:
    """The innermost line of the user's in `stack`, of those that make the batch.

    None where progress is told: that is no part of a batch.
    """
    for found in _FRAME.finditer(stack):
        file, line, function = _file(found[1]), int(found[2]), found[3].decode("ascii", "replace")
        if file == __file__ and function == _make_batches.__name__:
            break
        if file == forked.__file__:
            return None
        if is_user(file):
            return file, line, function
    return "", 0, ""


@cache
def _file(name: bytes) -> str:
    """The name of a file as `faulthandler` writes it, with what is not ASCII escaped."""
    text = name.decode("ascii", "replace")
    if os.path.exists(text):
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)
