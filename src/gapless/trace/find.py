"""Which files are meant: files, folders, patterns, URLs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence

from gapless.errors import UnreadableInput
from gapless.trace.chunks import is_trace
from gapless.trace.sources import filesystem, is_url, open_source

_ENDINGS = (".json", ".json.gz", ".json.zst")
_PATTERN = re.compile(r"[*?\[]")
_PARTS = re.compile(r"(\d+)")


def find(paths: Sequence[str], skipped: list[str] | None = None) -> list[str]:
    """The traces that `paths` mean, each once, in the order given; those of one folder or pattern by name.

    A path is a file, a folder (searched to its bottom for JSON files), a pattern (``**`` too), a URL of
    fsspec or ``-``. JSON files of a folder that are no traces are left out and named in `skipped`.

    Raises:
        UnreadableInput: one of `paths` means nothing.
    """
    found: dict[str, None] = {}
    for path in paths:
        for one in _meant(path, [] if skipped is None else skipped):
            found.setdefault(one)
    return list(found)


def _meant(path: str, skipped: list[str]) -> list[str]:
    if path == "-":
        return [path]
    if is_url(path):
        return _remote(path, skipped)
    if os.path.isdir(path):
        return _traces(path, _walk(path), skipped)
    if not os.path.lexists(path) and _PATTERN.search(path):
        return _matched(path, glob.glob(path, recursive=True), skipped)
    if not os.path.lexists(path):
        raise UnreadableInput(f"cannot read {path}: there is no such file or folder")
    return [path]


def _matched(pattern: str, names: list[str], skipped: list[str]) -> list[str]:
    if not names:
        raise UnreadableInput(f"no file matches {pattern}")
    found = []
    for name in sorted(names, key=_natural):
        if not os.path.isdir(name):
            found.append(name)
        elif "**" not in pattern:  # which names what is in the folders already
            found += _checked(_walk(name), skipped)
    if not found:
        raise UnreadableInput(f"no file matches {pattern}, only folders without traces")
    return found


def _walk(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders.sort(key=_natural)
        for name in sorted(files, key=_natural):
            if name.lower().endswith(_ENDINGS):
                yield os.path.join(place, name)


def _traces(place: str, names: Iterator[str], skipped: list[str]) -> list[str]:
    others: list[str] = []
    found = _checked(names, others)
    skipped += others
    if not found:
        seen = f"{len(others)} JSON files, none of which is a trace" if others else "no *.json or *.json.gz"
        if len(others) == 1:
            seen = f"only {os.path.basename(others[0])}, which is not a trace"
        raise UnreadableInput(f"{place} is a folder without traces: it contains {seen}")
    return found


def _checked(names: Iterator[str], skipped: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        (found if _looks_right(name) else skipped).append(name)
    return found


def _looks_right(name: str) -> bool:
    """Whether the file begins as a trace does, or cannot be opened: that is said when it is read."""
    try:
        with open_source(name) as source:
            return is_trace(source)
    except UnreadableInput:
        return True


def _remote(url: str, skipped: list[str]) -> list[str]:
    system, path = filesystem(url)
    try:
        if _PATTERN.search(path):
            names = sorted(system.glob(path), key=_natural)
            if not names:
                raise UnreadableInput(f"no file matches {url}")
            return [str(system.unstrip_protocol(name)) for name in names]
        if system.isdir(path):
            inside = (n for n in sorted(system.find(path), key=_natural) if n.lower().endswith(_ENDINGS))
            return _traces(url, (str(system.unstrip_protocol(name)) for name in inside), skipped)
    except UnreadableInput:
        raise
    except Exception as error:  # what stands behind a URL has exceptions of its own
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise UnreadableInput(f"{url} cannot be read: {text[0]}") from None
    return [url]


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts ``rank_2`` before ``rank_10``."""
    parts = _PARTS.split(name)  # text and digits in turn
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]
