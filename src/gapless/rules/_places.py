"""Decide where a sync happens: on the user's own line, or in a library below it."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.model import Site, SourceLine
from gapless.model.wording import count
from gapless.rules._code import Code, parse_line

_IN_ITS_CODE = "call that less often; in its code: "
_MAX_LINES = 3
"""Lines of a library that one remedy names."""


def posix_path(frame: SourceLine) -> str:
    return frame.file.replace("\\", "/")


def _is_function(function: str, name: str) -> bool:
    return function == name or function.endswith("." + name)


def is_below(site: Site, library: str, function: str = "", file: str = "") -> bool:
    """Whether a frame below the user's line is in `library`, in `function`, in a path that contains `file`.

    Frames above the user's line do not count: a library may call a metric of the user's own.
    """
    return any(
        frame.library == library
        and (not function or _is_function(frame.function, function))
        and file in posix_path(frame)
        for frame in site.library_frames
    )


def deciding_frame(site: Site) -> SourceLine | None:
    """Return the innermost library frame that chose to wait; None if the user's own line did."""
    return site.deciding_frame


def parse_waiting_line(site: Site) -> Code | None:
    """Return the user's parsed line if it waits itself; None if a library does or it cannot be parsed."""
    line = site.line
    if line is None or not line.is_user or deciding_frame(site) is not None:
        return None
    return parse_line(line.code)


def short_path(frame: SourceLine) -> str:
    """Return ``torchmetrics/aggregation.py:93``: the frame's file without the folders above its package."""
    path = posix_path(frame)
    # The profiler's paths begin at the folder of imports, without anything before the package.
    start = ("/" + path).rfind(f"/{frame.library}/")
    return f"{path[start:] if start >= 0 else path.rsplit('/', 1)[-1]}:{frame.line}"


def advise_for_library(site: Site, advice: str) -> str:
    """Return `advice`, worded for the library's line if a library waits and not the user's own line."""
    frame = deciding_frame(site)
    return advice if frame is None else _advise_calling([frame], advice)


def is_for_library(remedy: str) -> bool:
    """Whether `advise_for_library` worded the remedy for a library's line."""
    return _IN_ITS_CODE in remedy


def advise_for_lines(remedies: Sequence[tuple[Site, str]]) -> str:
    """Return the remedy of several lines of a library below one line of the user's, each with its own."""
    frames = dict.fromkeys(frame for site, _ in remedies if (frame := deciding_frame(site)) is not None)
    advice = dict.fromkeys(remedy.partition(_IN_ITS_CODE)[2] for _, remedy in remedies)
    return _advise_calling([*frames], "; ".join(advice))


def _advise_calling(frames: Sequence[SourceLine], advice: str) -> str:
    """Return `advice` on the lines of a library, for whoever calls it."""
    libraries = list(dict.fromkeys(frame.library for frame in frames))
    lines = [f"{short_path(frame)} ({frame.function})" for frame in frames]
    listed = ", ".join(lines[:_MAX_LINES])
    if len(lines) > _MAX_LINES:
        listed += f" and {count(len(lines) - _MAX_LINES, 'more line')}"
    verb = "syncs" if len(libraries) == 1 else "sync"
    return f"{' and '.join(libraries)} {verb} here, at {listed}: {_IN_ITS_CODE}{advice}"


def bare_operator(site: Site) -> str:
    """Return the operator without namespace and overload: ``index`` for ``aten::index.Tensor``."""
    name = site.operator
    return name[6:].split(".")[0] if name.startswith("aten::") else name.rpartition(".")[2]


def bare_names(site: Site) -> frozenset[str]:
    """Return the bare names of the operator and of the Python call through which it was reached."""
    return frozenset({bare_operator(site), site.call.rpartition(".")[2]} - {""})


def parse_user_line(site: Site) -> Code | None:
    """Return the user's parsed line, whoever waits below it; None without one or if it cannot be parsed."""
    line = site.line
    return parse_line(line.code) if line is not None and line.is_user else None


def is_in_dataset(site: Site) -> bool:
    """Whether a DataLoader called the user's line to load an item or to collate items."""
    line = site.line
    above = site.stack[site.stack.index(line) :] if line in site.stack else ()
    return any(frame.library == "torch" and "/utils/data/_utils/" in posix_path(frame) for frame in above)
