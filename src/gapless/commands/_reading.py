"""Progress while traces are read: a bar with the time left on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

from gapless.commands._bar import bar
from gapless.errors import UnreadableInput
from gapless.model import Profile


class Reading:
    """What is told while it goes on: ``tell(done, of)``, `of` 0 where it is unknown."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self._tell = tell

    def files(self, done: int, of: int) -> None:
        """`done` of `of` files are read."""
        self._tell(done, of)

    def within(self, size: int) -> Callable[[int], None]:
        """For one file of `size` bytes (0: unknown): what to call with the bytes read so far."""
        return lambda done: self._tell(done, size)


@contextmanager
def reading(files: int, *, quiet: bool) -> Iterator[Reading]:
    """A bar on standard error for as long as this lasts; it leaves nothing behind."""
    with bar("reading 1 trace" if files == 1 else f"reading {files} traces", quiet=quiet) as told:
        # What comes after the last byte takes its time as well, and how long is not known.
        yield Reading(lambda done, of: told(0, 0, "explaining") if 0 < of <= done else told(done, of, ""))


def read_profiles(
    paths: Sequence[str],
    one: Callable[..., Profile],
    *,
    quiet: bool,
    jobs: int | None = None,
    where: Literal["processes", "ray"] = "processes",
) -> tuple[list[Profile], list[UnreadableInput]]:
    """``one(path)`` for each of `paths`, with progress; and the errors of those that cannot be read.

    Of a single file `one` is also given ``progress=``, to tell the bytes it has read.
    """
    from gapless.commands._many import analyze_many
    from gapless.trace.sources import size

    with reading(len(paths), quiet=quiet) as told:
        if len(paths) == 1:
            results = analyze_many(paths, partial(one, progress=told.within(size(paths[0]))))
        else:
            results = analyze_many(paths, one, jobs, where, told.files)
    return (
        [result for result in results if isinstance(result, Profile)],
        [result for result in results if isinstance(result, UnreadableInput)],
    )
