"""Progress while traces are read: a bar with the time left on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from gapless.commands._bar import bar
from gapless.errors import UnreadableInput
from gapless.model import Profile


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
    from gapless.files.sources import size

    results: list[Profile | UnreadableInput]
    with bar("reading 1 trace" if len(paths) == 1 else f"reading {len(paths)} traces", quiet=quiet) as told:

        def tell(done: int, of: int) -> None:
            if 0 < of <= done:  # what comes after the last byte takes its time as well, nobody knows how long
                told(0, 0, "explaining")
            else:
                told(done, of, "")

        if len(paths) == 1:
            whole = size(paths[0])
            try:
                results = [one(paths[0], progress=lambda done: tell(done, whole))]
            except UnreadableInput as error:
                results = [error]
        else:
            from gapless.commands._many import analyze_many  # which is about processes

            results = analyze_many(paths, one, jobs, where, tell)
    return (
        [result for result in results if isinstance(result, Profile)],
        [result for result in results if isinstance(result, UnreadableInput)],
    )
