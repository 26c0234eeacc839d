"""Turn fixes into new bytes of files, and those into a unified diff, or write them into the project."""

from __future__ import annotations

import difflib
import io
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from gapless.errors import UsageError
from gapless.files.output import write_whole
from gapless.model.fix import Edit, Fix, apply_edits

_MAX_SECONDS = 30.0
"""Seconds that git gets to look at a project, which may be on a slow disk."""


def edited_files(fixes: Iterable[Fix], root: Path) -> dict[str, tuple[bytes, bytes]]:
    """Return the bytes of each edited file, by its name below `root`, before and after `fixes`.

    Raises:
        OSError: a file cannot be read.
        ValueError: two edits overlap.
    """
    edits: defaultdict[str, set[Edit]] = defaultdict(set)
    for fix in fixes:
        for edit in fix.edits:
            edits[edit.file].add(edit)
    files = {}
    for name in sorted(edits):
        before = (root / name).read_bytes()
        files[name] = before, apply_edits(before, edits[name])
    return files


def unified_diff(name: str, before: bytes, after: bytes) -> str:
    """Return the diff of one file, as ``git apply`` and ``patch`` take it.

    >>> print(unified_diff("a.py", b"x = 1\\n", b"x = 2\\n"), end="")
    --- a/a.py
    +++ b/a.py
    @@ -1 +1 @@
    -x = 1
    +x = 2
    """
    old, new = (_lines(data) for data in (before, after))
    diff = list(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff
    )


def _lines(data: bytes) -> list[str]:
    encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0].removesuffix("-sig")
    return io.StringIO(data.decode(encoding), newline="\n").readlines()  # at line feeds only, as `patch` does


def refuse_unclean(root: Path, names: list[str]) -> None:
    """Refuse to edit files of which git could not restore what they were.

    Raises:
        UsageError: `root` is in no git repository, or one of the files has changes, or is not in it.
    """
    command = ["git", "-C", str(root), "status", "--porcelain", "--ignored", "--", *names]
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=_MAX_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git does not answer ({error}): --dirty writes without it") from None
    if status.returncode:
        raise UsageError(
            f"{root} is in no git repository, which could undo this: --dirty writes all the same"
        )
    if changed := [line[3:] for line in status.stdout.splitlines()]:
        raise UsageError(f"{', '.join(changed)} has changes that are not committed: commit them, or --dirty")


def write_files(root: Path, files: Mapping[str, tuple[bytes, bytes]]) -> None:
    """Write the new bytes of `files` below `root`: the second of each pair; the first are those before.

    Raises:
        UsageError: a file has changed since it was read; none is written then.
    """
    for name, (before, _) in files.items():
        if (root / name).read_bytes() != before:
            raise UsageError(f"{name} has changed since it was read: nothing was written")
    for name, (_, after) in files.items():
        write_whole(after, root / name)
