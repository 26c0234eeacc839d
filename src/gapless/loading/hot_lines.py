"""Find the user's lines in which batches take their time, by sampling the stack.

Python calls a signal's handler only at calls and backward jumps (since 3.11), which would charge a long
subscript or operator to a later line. `faulthandler` writes the stack when the signal arrives. It writes no
time: as signals that arrive during an uninterruptible disk read are merged into one, a Python handler now and
then notes the time and how much was written, and samples share the time between two notes.
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
from gapless.loading.batches import BatchMaker, indices_of
from gapless.loading.clock import Clock
from gapless.loading.forked import Tell, can_fork
from gapless.loading.lines import is_user, source_line
from gapless.model.loading import HotLine

_SAMPLE_SECONDS = 0.003
"""Interval of samples. Writing one takes a tenth of it, equally at every line."""
_MAX_LINES = 5
"""Lines that are reported at most."""

_FRAME = re.compile(rb'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_STACK = re.compile(rb"^\S.*\(most recent call first\):$", re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")

CodePlace = tuple[str, int, str]
"""File, line and function; ("", 0, "") if no line of the user's was running."""


class TimeNote(NamedTuple):
    """Bytes of samples written at a time, in nanoseconds without waits for a core."""

    size: int
    time: int


def note_time(pid: int) -> None:
    """Let the process `pid`, which samples lines, note the time; other processes ignore the signal."""
    with suppress(ProcessLookupError, PermissionError, AttributeError):
        os.kill(pid, signal.SIGURG)


def find_hot_lines(loader: DataLoader, seconds: float, tell: Tell, *, skip: int = 0) -> list[HotLine]:
    """Return the user's lines in which making batches takes its time.

    Only in the main thread of a process that ends afterwards. `note_time` must be called now and then.
    """
    if not hasattr(faulthandler, "register") or not can_fork():
        return []
    spent: Counter[CodePlace | None] = Counter()
    with _samples(spent):
        _make_batches(loader, seconds, tell, skip)
    del spent[None]
    total = sum(spent.values())
    return [
        HotLine(line=source_line(*place), share=count / total)
        for place, count in spent.most_common(_MAX_LINES)
        if place is not None and place[0]
    ]


def _make_batches(loader: DataLoader, seconds: float, tell: Tell, skip: int) -> None:
    """Make batches for `seconds`, as a worker does."""
    clock = Clock()
    begin = clock.wall()
    maker = BatchMaker(loader)
    for indices in islice(indices_of(loader), skip, None):
        items = []
        try:
            for step in maker.loads(indices):
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
def _samples(spent: Counter[CodePlace | None]) -> Iterator[None]:
    """Sample the stack; add the nanoseconds of each place to `spent` at the end."""
    clock, notes = Clock(), list[TimeNote]()
    with _unnamed_file() as file:

        def note(number: int = 0, frame: FrameType | None = None) -> None:
            notes.append(TimeNote(os.lseek(file, 0, os.SEEK_CUR), clock.wall() - clock.delayed()))

        before = signal.signal(signal.SIGURG, note)
        signal.siginterrupt(signal.SIGURG, False)
        ignored = signal.signal(signal.SIGALRM, signal.SIG_IGN)  # a late one must not end the process
        faulthandler.register(signal.SIGALRM, file, all_threads=False)
        note()
        signal.setitimer(signal.ITIMER_REAL, _SAMPLE_SECONDS, _SAMPLE_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            note()
            faulthandler.unregister(signal.SIGALRM)
            signal.signal(signal.SIGALRM, ignored)
            signal.signal(signal.SIGURG, before)
        spent.update(time_by_place(os.pread(file, notes[-1].size, 0), notes))


@contextmanager
def _unnamed_file() -> Iterator[int]:
    """Yield the descriptor of a temporary file, in memory if the system can."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("stacks")
        try:
            yield file
        finally:
            os.close(file)
    else:
        with tempfile.TemporaryFile(buffering=0) as opened:
            yield opened.fileno()


def time_by_place(written: bytes, notes: Sequence[TimeNote]) -> dict[CodePlace | None, float]:
    """Return the nanoseconds spent at each place.

    `written` is the output of `faulthandler`, `notes` the times.

    >>> stack = b'Stack (most recent call first):\\n  File "/x/a.py", line %d in load\\n'
        >>> time_by_place(stack % 1 + stack % 2, [TimeNote(0, 0), TimeNote(62, 10), TimeNote(124, 40)])
        {('/x/a.py', 1, 'load'): 10.0, ('/x/a.py', 2, 'load'): 30.0}
    """
    spent: Counter[CodePlace | None] = Counter()
    starts = [match.start() for match in _STACK.finditer(written)]
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


def _place(stack: bytes) -> CodePlace | None:
    """Return the innermost user line in `stack` among those that make the batch.

    None while progress is sent, which does not belong to a batch.
    """
    for match in _FRAME.finditer(stack):
        file, line, function = _file(match[1]), int(match[2]), match[3].decode("ascii", "replace")
        if file == __file__ and function == _make_batches.__name__:
            break
        if file == forked.__file__:
            return None
        if is_user(file):
            return file, line, function
    return "", 0, ""


@cache
def _file(name: bytes) -> str:
    """Decode a file name as `faulthandler` writes it, with non-ASCII characters escaped."""
    text = name.decode("ascii", "replace")
    if os.path.exists(text):
        return text
    return _ESCAPED.sub(lambda match: chr(int(match[1] or match[2] or match[3], 16)), text)
