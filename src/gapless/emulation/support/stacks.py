"""Stacks: captured as numbers, resolved to source lines when read."""

from __future__ import annotations

import inspect
import itertools
import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Any

from gapless import _version
from gapless.emulation.support.qualified import qualified_name
from gapless.model import SourceLine, Span, Stack
from gapless.torch_internals import gather_traceback, path, symbolize_tracebacks

RawStack = tuple[int, ...]
"""``(id(code), f_lasti, id(code), f_lasti, …)``, innermost first; ``(-n, line)`` for the n-th of `_names`."""

_codes: dict[int, CodeType] = {}
_name_numbers: dict[tuple[str, str], int] = {}
_names: list[tuple[str, str]] = []
gather: Any = partial(gather_traceback, True, False, False)
"""Capture the current stack as an object of torch's: twenty times as fast as `capture`."""
_own_places: tuple[str, ...] = ()
"""Folders, files and packages of the user's own code that are installed."""
_OWN_REFERENCES = 3
"""References to a frame's dict of variables if only the frame keeps it: its own and two of the counting."""
_hiding = threading.RLock()
_NOTHING = object()
_HERE = os.path.dirname(os.path.abspath(_version.__file__)) + os.sep
"""Path of this package."""
_OWN_PATHS = tuple(
    os.path.join(_HERE, own) for own in ("emulation", "capture", "commands", "__main__.py", "__init__.py")
)
"""Gapless code that runs between the script and torch."""
_COMMANDS = os.path.join(_HERE, "commands") + os.sep
_MACHINERY = (
    "/torch/overrides.py",
    "/torch/utils/_python_dispatch.py",
    "/torch/_ops.py",
    "/torch/utils/_device.py",
)
"""Files of torch between the script and an operator that are left out of stacks."""


def capture(depth: int = 1) -> RawStack:
    """Capture the stack of the caller's `depth`-th caller, in about 0.1 µs a frame: nothing is formatted."""
    frame: FrameType | None = sys._getframe(depth + 1)
    codes = _codes
    numbers = []
    while frame is not None:
        code = frame.f_code
        key = id(code)
        if key not in codes:
            codes[key] = code  # keeps the code object alive, so that its id stays its own
        numbers.append(key)
        numbers.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(numbers)


def keep_code(code: CodeType) -> None:
    """Keep a code object alive, so that its id stays its own and can be in a `RawStack`."""
    _codes.setdefault(id(code), code)


def variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables of `frame` by name.

    Before Python 3.13 a function's frame caches the dict of `f_locals` and so keeps its values alive: the
    cached dict is emptied again, unless the script holds it.
    """
    held = frame.f_locals
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return held  # of a module or a class: these are the variables themselves
    copy = dict(held)
    if sys.version_info < (3, 13) and sys.getrefcount(held) <= _OWN_REFERENCES:
        held.clear()
    return copy


def users_line() -> SourceLine | None:
    """Return the innermost running line of the user's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_own(code.co_filename) and not library_of(code.co_filename):
            keep_code(code)
            line = _resolve_frame(id(code), frame.f_lasti)
            if line is not None and line.is_user:
                return line
        frame = frame.f_back
    return None


def to_raw_stack(traceback: Any) -> RawStack:
    """Convert a traceback from `gather` to numbers."""
    numbers: list[int] = []
    with _without_generated_code():
        frames = symbolize_tracebacks([traceback])[0]
    for frame in frames:
        place = frame["filename"], frame["name"]
        number = _name_numbers.setdefault(place, len(_name_numbers) + 1)
        if number > len(_names):
            _names.append(place)
        numbers += -number, frame["line"]
    return tuple(numbers)


@contextmanager
def _without_generated_code() -> Iterator[None]:
    """Keep torch from loading its code generator, which takes seconds, to check for generated frames."""
    name = path("inductor")
    with _hiding:
        if name in sys.modules:
            yield
            return
        package, _, attribute = name.rpartition(".")
        holder = vars(sys.modules[package])
        holder[attribute] = _NOTHING
        try:
            yield
        finally:
            if holder.get(attribute) is _NOTHING:
                del holder[attribute]


@lru_cache(maxsize=4096)
def resolve(raw: RawStack) -> Stack:
    """Return `raw` as source lines, innermost first, without Gapless's frames and those above the script."""
    return tuple(_until_script([line for line, _, _ in _resolved_frames(raw)]))


def spans(raw: RawStack) -> tuple[Span | None, ...]:
    """Return where in the source each line of ``resolve(raw)`` was running; None if Python does not say."""
    every = (_span(key, lasti) for _, key, lasti in _resolved_frames(raw))
    return tuple(itertools.islice(every, len(resolve(raw))))


def _resolved_frames(raw: RawStack) -> Iterator[tuple[SourceLine, int, int]]:
    """Yield the source line, the code's key and the last instruction of the frames to show."""
    started = False
    for position in range(0, len(raw), 2):
        if started and _file(raw[position]).startswith(_COMMANDS):
            return  # the frames above are the console script's, not the user's
        line = _resolve_frame(raw[position], raw[position + 1])
        if line is not None:
            started = True
            yield line, raw[position], raw[position + 1]


@lru_cache(maxsize=65536)
def _span(key: int, lasti: int) -> Span | None:
    """Return the place of an instruction in its file; None before Python 3.11 and for frames without code."""
    positions = getattr(_codes[key], "co_positions", None) if key >= 0 else None
    if positions is None or lasti < 0:
        return None
    place = next(itertools.islice(positions(), lasti // 2, None), (None,) * 4)
    return None if None in place else Span(*place)


def _until_script(lines: list[SourceLine]) -> list[SourceLine]:
    """Drop the frames above the script, such as `runpy` or the console entry point; a test runner's stay."""
    for position in range(len(lines) - 1, -1, -1):
        if lines[position].function == "<module>" and lines[position].is_user:
            return lines[: position + 1]
    return lines


def frames_of_script(frame: FrameType | None) -> list[FrameType]:
    """Return `frame` and its callers without Gapless's own, up to the innermost script: those above run it.

    A script is a module of the user's that is not imported.
    """
    frames: list[FrameType] = []
    while frame is not None:
        code, caller = frame.f_code, frame.f_back
        if not is_own(code.co_filename):
            frames.append(frame)
            if code.co_name == "<module>" and not library_of(code.co_filename) and not _is_import(caller):
                break
        frame = caller
    return frames


def _is_import(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib")


def is_own(file: str) -> bool:
    """Whether `file` is Gapless code that runs between the script and torch during an emulation."""
    return file.startswith(_OWN_PATHS)


def is_command(file: str) -> bool:
    """Whether `file` is a Gapless command, which runs the script and is never called by it."""
    return file.startswith(_COMMANDS)


def _file(key: int) -> str:
    """Return the source file of an entry of a `RawStack`."""
    return _codes[key].co_filename if key >= 0 else _names[-key - 1][0]


@lru_cache(maxsize=65536)
def _resolve_frame(key: int, lasti: int) -> SourceLine | None:
    """Return an entry of a `RawStack` as a source line; None for Gapless's own frames."""
    code = _codes[key] if key >= 0 else None
    file = _file(key)
    if file.startswith((*_OWN_PATHS, "<frozen")) or file.replace("\\", "/").endswith(_MACHINERY):
        return None
    if code is None:
        number, name = lasti, qualified_name(file, _names[-key - 1][1], lasti)
    else:
        number = _line_number(code, lasti)
        name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    return SourceLine(
        file=file,
        line=number,
        function=name,
        code=linecache.getline(file, number).strip(),
        library=library_of(file),
    )


def _line_number(code: CodeType, lasti: int) -> int:
    for start, end, line in code.co_lines():
        if start <= lasti < end and line is not None:
            return line
    return code.co_firstlineno


@lru_cache(maxsize=8)
def _library_roots(import_path: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    paths = sysconfig.get_paths()
    site = {paths["purelib"], paths["platlib"]}
    site |= {p for p in import_path if p.rstrip("/\\").endswith(("site-packages", "dist-packages"))}
    # In a virtual environment the standard library is that of the base installation.
    standard = {paths["stdlib"], paths["platstdlib"], os.path.dirname(os.__file__)}
    return tuple(p.rstrip("/\\") + os.sep for p in site), tuple(p.rstrip("/\\") + os.sep for p in standard)


def set_own(places: tuple[str, ...]) -> None:
    """Make the code of these folders, files and packages the user's own from now on, and no other's."""
    global _own_places
    if places != _own_places:
        _own_places = places
        for cached in (library_of, is_users, _resolve_frame, resolve):
            cached.cache_clear()


def _is_among(file: str, package: str, places: tuple[str, ...]) -> bool:
    """Whether `file` of that package is one of `places`, or in one of them."""
    paths = [os.path.abspath(place) for place in places if os.path.exists(place)]
    return package in places or any(file == path or file.startswith(path + os.sep) for path in paths)


@lru_cache(maxsize=65536)
def is_users(file: str) -> bool:
    """Whether `file` is the user's own code: no library's, and not Gapless's."""
    return not is_own(file) and not library_of(file) and not file.startswith("<frozen")


@lru_cache(maxsize=65536)
def library_of(file: str) -> str:
    """Return the installed package `file` belongs to, ``"python"`` for the standard library, else ``""``."""
    site, standard = _library_roots(tuple(map(str, sys.path)))
    for root in site:
        if file.startswith(root):
            package = file[len(root) :].replace("\\", "/").split("/", 1)[0].removesuffix(".py")
            return "" if _is_among(file, package, _own_places) else package
    if file.startswith(_HERE):
        return "gapless"
    if file.startswith(standard) or (file.startswith("<") and not _is_typed(file)):
        return "python"
    return ""


def _is_typed(file: str) -> bool:
    """Whether a pseudo-file was typed by the user: ``<string>`` is ``python -c`` code, or generated code."""
    return file.startswith(("<ipython", "<stdin")) or (file == "<string>" and sys.argv[:1] == ["-c"])
