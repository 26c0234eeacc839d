"""Which files are meant: files, folders, patterns, URLs."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence

from gapless.errors import UnreadableInput
from gapless.files.input import special
from gapless.files.kinds import kind
from gapless.files.sources import filesystem, is_url, open_source
from gapless.trace.chunks import is_trace

_ENDINGS = (".json", ".json.gz", ".json.zst")
_PATTERN = re.compile(r"[*?\[]")
_PARTS = re.compile(r"(\d+)")


def find(paths: Sequence[str], skipped: list[str] | None = None) -> list[str]:
    """The traces that `paths` mean, each once, in the order given; those of one folder or pattern by name.

    A path is a file, a folder (searched to its bottom for JSON files), a pattern (``**`` too), a URL of
    fsspec or ``-``. JSON files of a folder that are no traces are left out and named in `skipped`, and so are
    pipes, devices and links out of the folder; profiles that Gapless saved are left out without a word.

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
        refused: list[str] = []
        return _traces(path, _walk(path, refused), skipped, refused)
    if not os.path.lexists(path) and _PATTERN.search(path):
        recursive = "**" in path.split("/")
        return _matched(path, _below(path) if recursive else glob.glob(path), skipped)
    if not os.path.lexists(path):
        raise UnreadableInput(f"cannot read {path}: there is no such file or folder")
    return [path]


def _matched(pattern: str, names: list[str], skipped: list[str]) -> list[str]:
    if not names:
        raise UnreadableInput(f"no file matches {pattern}")
    found = []
    for name in sorted(names, key=_natural):
        if os.path.isdir(name):
            found += _checked(_walk(name, skipped), skipped)
        elif _is_file(name, skipped):
            found.append(name)
    if not found:
        raise UnreadableInput(f"no file matches {pattern}, only folders without traces")
    return found


def _below(pattern: str) -> list[str]:
    """The files that a pattern with ``**`` matches; links to folders are not followed: they may be loops."""
    parts = pattern.split("/")
    if parts[-1] == "**":
        parts.append("*")
    fixed = next(at for at, part in enumerate(parts) if _PATTERN.search(part))
    base = "/".join(parts[:fixed]) or ("/" if pattern.startswith("/") else "")
    wanted = re.compile("".join(map(_expression, parts[fixed:])).removesuffix("/"))
    found = []
    for place, folders, files in os.walk(base or "."):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = os.path.join(place, name)
            inside = os.path.relpath(path, base or ".").replace(os.sep, "/")
            if wanted.fullmatch(inside):
                found.append(path if base else inside)
    return found


def _expression(part: str) -> str:
    """A part of a pattern as a regular expression, with the slash behind it."""
    if part == "**":
        return "(?:[^/]+/)*"
    inner = fnmatch.translate(part).replace("(?s:", "(?:").removesuffix(r"\Z").removesuffix(r"\z")
    return ("" if part.startswith(".") else r"(?!\.)") + inner.replace(".*", "[^/]*") + "/"


def _walk(folder: str, skipped: list[str]) -> Iterator[str]:
    """The JSON files of `folder`, to its bottom; those that are no files of its own go to `skipped`."""
    own = os.path.join(os.path.realpath(folder), "")
    for place, folders, files in os.walk(folder):
        folders.sort(key=_natural)
        for name in sorted(files, key=_natural):
            path = os.path.join(place, name)
            if not name.lower().endswith(_ENDINGS) or not _is_file(path, skipped):
                continue
            if os.path.islink(path) and os.path.exists(path) and not os.path.realpath(path).startswith(own):
                skipped.append(f"{path} (a link out of the folder)")
            else:
                yield path


def _is_file(path: str, skipped: list[str]) -> bool:
    """Whether `path` is a regular file, or cannot be looked at, which is said when it is read."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    reason = "a pipe" if stat.S_ISFIFO(mode) else special(mode).removeprefix("it is ")
    if reason:
        skipped.append(f"{path} ({reason})")
    return not reason


def _traces(place: str, names: Iterator[str], skipped: list[str], refused: Sequence[str] = ()) -> list[str]:
    others: list[str] = []
    found = _checked(names, others)
    others += refused
    skipped += others
    if not found:
        seen = f"{len(others)} JSON files, none of which is a trace" if others else "no *.json or *.json.gz"
        if len(others) == 1:
            seen = f"only {os.path.basename(others[0])}, which is not a trace"
        raise UnreadableInput(f"{place} is a folder without traces: it contains {seen}")
    return found


def _checked(names: Iterator[str], skipped: list[str]) -> list[str]:
    """Those of `names` that begin as traces do, or cannot be opened: that is said when they are read."""
    found: list[str] = []
    for name in names:
        try:
            recognized = kind(name)
            if recognized.foreign is not None:
                skipped.append(f"{name} ({recognized.foreign.title})")
            elif recognized.name == "profile":
                continue
            else:
                with open_source(name) as source:
                    (found if is_trace(source) else skipped).append(name)
        except UnreadableInput:
            found.append(name)
    return found


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
