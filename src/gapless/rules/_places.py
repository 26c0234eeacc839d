"""Where a sync sits: on the user's own line, or in a library below it."""

from __future__ import annotations

from gapless.model import Site, SourceLine
from gapless.rules._code import Code, read


def _path(frame: SourceLine) -> str:
    return frame.file.replace("\\", "/")


def _is(function: str, name: str) -> bool:
    return function == name or function.endswith("." + name)


def below(site: Site, library: str, function: str = "", file: str = "") -> bool:
    """Whether a frame below the user's line is in `library`, in `function`, in a path with `file` in it.

    Frames above the user's line do not count: a metric of the user's own, called by a library, is his.
    """
    return any(
        frame.library == library and (not function or _is(frame.function, function)) and file in _path(frame)
        for frame in site.library_frames
    )


def deciding_frame(site: Site) -> SourceLine | None:
    """The innermost library frame that chose to wait; None where the user's own line did."""
    return site.deciding_frame


def own_code(site: Site) -> Code | None:
    """The user's line, parsed, where it waits itself; None where a library does or it cannot be read."""
    line = site.line
    if line is None or not line.is_user or deciding_frame(site) is not None:
        return None
    return read(line.code)


def short_path(frame: SourceLine) -> str:
    """``torchmetrics/aggregation.py:93``: the frame without the folders above its package."""
    path = _path(frame)
    # The profiler gives paths from where they are imported, without anything before the package.
    start = ("/" + path).rfind(f"/{frame.library}/")
    return f"{path[start:] if start >= 0 else path.rsplit('/', 1)[-1]}:{frame.line}"


def in_library(site: Site, advice: str) -> str:
    """`advice`, told for the library's line where a library waits and not the user's own."""
    frame = deciding_frame(site)
    if frame is None:
        return advice
    return (
        f"{frame.library} syncs here, at {short_path(frame)} ({frame.function}): look for an option that "
        f"avoids this, or use another call; in its code: {advice}"
    )


def operator(site: Site) -> str:
    """What waits, without namespace and overload: ``index`` for ``aten::index.Tensor``."""
    name = site.operator
    return name[6:].split(".")[0] if name.startswith("aten::") else name.rpartition(".")[2]


def names(site: Site) -> frozenset[str]:
    """The bare names of what waits: the operator, and the Python call through which it was reached."""
    return frozenset({operator(site), site.call.rpartition(".")[2]} - {""})


def user_code(site: Site) -> Code | None:
    """The user's line, parsed, whoever waits below it; None where there is none or it cannot be read."""
    line = site.line
    return read(line.code) if line is not None and line.is_user else None


def in_dataset(site: Site) -> bool:
    """Whether a DataLoader asked the user's line for an item, or to put items together."""
    line = site.line
    above = site.stack[site.stack.index(line) :] if line in site.stack else ()
    return any(frame.library == "torch" and "/utils/data/_utils/" in _path(frame) for frame in above)
