"""Find the trace files that paths, folders, patterns and URLs refer to."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence

from gapless.errors import UnreadableInput
from gapless.files.input import why_not_readable
from gapless.files.kinds import recognize
from gapless.files.sources import filesystem, is_url, open_source
from gapless.trace.chunks import is_trace

_TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst")
_PATTERN = re.compile(r"[*?\[]")
_PARTS = re.compile(r"(\d+)")


def find_traces(paths: Sequence[str], skipped: list[str] | None = None) -> list[str]:
    """Return the traces that `paths` refer to, each once, in that order; those of one folder by name.

    A path is a file, a folder (searched to its bottom for JSON files), a pattern (``**`` too), a URL of
    fsspec or ``-``. JSON files of a folder that are no traces are left out and named in `skipped`, and so are
    pipes, devices and links out of the folder; profiles that Gapless saved are left out without a word.

    Raises:
        UnreadableInput: one of `paths` refers to nothing.
    """
    traces: dict[str, None] = {}
    for path in paths:
        for trace in _expand(path, [] if skipped is None else skipped):
            traces.setdefault(trace)
    return list(traces)


def _expand(path: str, skipped: list[str]) -> list[str]:
    if path == "-":
        return [path]
    if is_url(path):
        return _expand_url(path, skipped)
    if os.path.isdir(path):
        refused: list[str] = []
        return _traces_of_folder(path, _walk(path, refused), skipped, refused)
    if not os.path.lexists(path) and _PATTERN.search(path):
        recursive = "**" in path.split("/")
        return _match_pattern(path, _match_recursively(path) if recursive else glob.glob(path), skipped)
    if not os.path.lexists(path):
        raise UnreadableInput(f"cannot read {path}: there is no such file or folder")
    return [path]


def _match_pattern(pattern: str, names: list[str], skipped: list[str]) -> list[str]:
    if not names:
        raise UnreadableInput(f"no file matches {pattern}")
    traces = []
    for name in sorted(names, key=_natural_key):
        if os.path.isdir(name):
            traces += _keep_traces(_walk(name, skipped), skipped)
        elif _is_file(name, skipped):
            traces.append(name)
    if not traces:
        raise UnreadableInput(f"no file matches {pattern}, only folders without traces")
    return traces


def _match_recursively(pattern: str) -> list[str]:
    """Return the files that a pattern with ``**`` matches; links to folders are not followed: they may
    loop."""
    parts = pattern.split("/")
    if parts[-1] == "**":
        parts.append("*")
    fixed = next(at for at, part in enumerate(parts) if _PATTERN.search(part))
    base = "/".join(parts[:fixed]) or ("/" if pattern.startswith("/") else "")
    wanted = re.compile("".join(map(_part_regex, parts[fixed:])).removesuffix("/"))
    matches = []
    for folder, folders, files in os.walk(base or "."):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, base or ".").replace(os.sep, "/")
            if wanted.fullmatch(inside):
                matches.append(path if base else inside)
    return matches


def _part_regex(part: str) -> str:
    """Return one part of a pattern as a regular expression, with the slash after it."""
    if part == "**":
        return "(?:[^/]+/)*"
    inner = fnmatch.translate(part).replace("(?s:", "(?:").removesuffix(r"\Z").removesuffix(r"\z")
    return ("" if part.startswith(".") else r"(?!\.)") + inner.replace(".*", "[^/]*") + "/"


def _walk(folder: str, skipped: list[str]) -> Iterator[str]:
    """Yield the JSON files of `folder` and its subfolders; links out of it and special files go to
    `skipped`."""
    own = os.path.join(os.path.realpath(folder), "")
    for folder_path, folders, files in os.walk(folder):
        folders.sort(key=_natural_key)
        for name in sorted(files, key=_natural_key):
            path = os.path.join(folder_path, name)
            if not name.lower().endswith(_TRACE_SUFFIXES) or not _is_file(path, skipped):
                continue
            if os.path.islink(path) and os.path.exists(path) and not os.path.realpath(path).startswith(own):
                skipped.append(f"{path} (a link out of the folder)")
            else:
                yield path


def _is_file(path: str, skipped: list[str]) -> bool:
    """Whether `path` is a regular file or unreadable (which is reported when it is read)."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    reason = "a pipe" if stat.S_ISFIFO(mode) else why_not_readable(mode).removeprefix("it is ")
    if reason:
        skipped.append(f"{path} ({reason})")
    return not reason


def _traces_of_folder(
    place: str, names: Iterator[str], skipped: list[str], refused: Sequence[str] = ()
) -> list[str]:
    not_traces: list[str] = []
    traces = _keep_traces(names, not_traces)
    not_traces += refused
    skipped += not_traces
    if not traces:
        if os.path.isdir(place) and _is_tensorboard_log(place):
            raise UnreadableInput(
                f"{place} is a TensorBoard log without profiles of PyTorch (*.pt.trace.json): record with "
                "torch.profiler.profile(on_trace_ready=tensorboard_trace_handler(DIR)), "
                "or run gapless profile"
            )
        content = (
            f"{len(not_traces)} JSON files, none of which is a trace"
            if not_traces
            else "no *.json or *.json.gz"
        )
        if len(not_traces) == 1:
            content = f"only {os.path.basename(not_traces[0])}, which is not a trace"
        raise UnreadableInput(f"{place} is a folder without traces: it contains {content}")
    return traces


def _is_tensorboard_log(folder: str) -> bool:
    """Whether anything in `folder` was written for TensorBoard: event files, or profiles of its plugin."""
    plugin = os.path.join("plugins", "profile")
    return any(
        path.endswith(plugin) or any(".tfevents." in name for name in files)
        for path, _, files in os.walk(folder)
    )


def _keep_traces(names: Iterator[str], skipped: list[str]) -> list[str]:
    """Return those of `names` that begin as traces do or cannot be opened (reported when they are read)."""
    traces: list[str] = []
    for name in names:
        try:
            recognized = recognize(name)
            if recognized.foreign is not None:
                skipped.append(f"{name} ({recognized.foreign.title})")
            elif recognized.name == "profile":
                continue
            else:
                with open_source(name) as source:
                    (traces if is_trace(source) else skipped).append(name)
        except UnreadableInput:
            traces.append(name)
    return traces


def _expand_url(url: str, skipped: list[str]) -> list[str]:
    system, path = filesystem(url)
    try:
        if _PATTERN.search(path):
            names = sorted(system.glob(path), key=_natural_key)
            if not names:
                raise UnreadableInput(f"no file matches {url}")
            return [str(system.unstrip_protocol(name)) for name in names]
        if system.isdir(path):
            inside = (
                n for n in sorted(system.find(path), key=_natural_key) if n.lower().endswith(_TRACE_SUFFIXES)
            )
            return _traces_of_folder(url, (str(system.unstrip_protocol(name)) for name in inside), skipped)
    except UnreadableInput:
        raise
    except Exception as error:  # file systems behind URLs have exceptions of their own
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise UnreadableInput(f"{url} cannot be read: {text[0]}") from None
    return [url]


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key that puts ``rank_2`` before ``rank_10``."""
    parts = _PARTS.split(name)  # text and digits in turn
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]
