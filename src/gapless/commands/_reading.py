"""Progress while traces are read: a bar with the time left, on terminals only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from gapless.commands._bar import bar
from gapless.errors import UnreadableInput
from gapless.model import Profile


def read_profiles(
    paths: Sequence[str],
    read_trace: Callable[..., Profile],
    *,
    quiet: bool,
    jobs: int | None = None,
    where: Literal["processes", "ray"] = "processes",
) -> tuple[list[Profile], list[UnreadableInput]]:
    """Read each of `paths` with progress; return the profiles, and the errors of unreadable files.

    For a single file `read_trace` also gets ``progress=``, to report the bytes read so far.
    """
    from gapless.files.sources import stored_size

    results: list[Profile | UnreadableInput]
    with bar(
        "reading 1 trace" if len(paths) == 1 else f"reading {len(paths)} traces", quiet=quiet
    ) as update_bar:

        def tell(done: int, of: int) -> None:
            if 0 < of <= done:  # the work after the last byte takes unknown time
                update_bar(0, 0, "explaining")
            else:
                update_bar(done, of, "")

        if len(paths) == 1:
            whole = stored_size(paths[0])
            try:
                results = [read_trace(paths[0], progress=lambda done: tell(done, whole))]
            except UnreadableInput as error:
                results = [error]
        else:
            from gapless.commands._many import analyze_many  # which is about processes

            results = analyze_many(paths, read_trace, jobs, where, tell)
    return (
        [result for result in results if isinstance(result, Profile)],
        [result for result in results if isinstance(result, UnreadableInput)],
    )
