"""What the compiler says while it compiles: graph breaks, failed guards, limits, each with its place."""

from __future__ import annotations

import importlib
import linecache
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import msgspec

from gapless.emulation.support.qualified import qualified_name
from gapless.emulation.support.stacks import is_own, library_of
from gapless.model import SourceLine, Stack
from gapless.model.compiled import GraphBreak, Limit, Recompile
from gapless.torch_internals import path

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+")
_ENTRY = re.compile(r"^\s*\d+/\d+(?:_\d+)?:\s*")
_SOURCE = re.compile(r"\s+#\s.*$", re.DOTALL)
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_PARTS = re.compile(r"^\s*(Explanation|Hint|Developer debug context):\s*", re.MULTILINE)
_MACHINERY = ("/torch/_dynamo/", "/torch/fx/", "/torch/_functorch/", "/torch/_inductor/")
_WITHOUT_GPU = re.compile(
    r"could not find kernel for aten\.\S+|Could not run 'aten::\w+' with arguments from the 'CUDA' backend|"
    r"not compiled with CUDA"
)
"""What the compiler says where operators are wanting in a torch without CUDA, and on a GPU does not."""
_STANDS_IN = re.compile(r"the function `(\w+)`.*\bgapless[./]emulate[./]standins\b", re.DOTALL)
"""What it says of a stand-in, whose package has an operator there that it knows or passes by."""
_LONG = 300
_CALLER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "again.py")


@dataclass
class Heard:
    """What was said of one callable; `unable`: what this torch, without CUDA, could not trace."""

    breaks: dict[Any, GraphBreak] = field(default_factory=dict)
    recompiles: dict[Any, Recompile] = field(default_factory=dict)
    limit: Limit = ""
    limited: SourceLine | None = None
    unable: str = ""


class Watch:
    """Listens to the compiler; `heard` is where it puts what it hears, `place` the stack of the call that is
    being made and `number` its number."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.place: Stack = ()
        self.number = 0

    def start(self) -> None:
        """Listen for the rest of this process."""
        symbolic = importlib.import_module(f"{path('dynamo')}.symbolic_convert")
        convert = importlib.import_module(f"{path('dynamo')}.convert_frame")
        translator = symbolic.InstructionTranslatorBase
        log_graph_break = translator.log_graph_break

        def logged(translator: Any, code_options: Any, reason: str, exc: Any) -> Any:
            if not exc.logged:
                self._broken(exc, reason)
            return log_graph_break(translator, code_options, reason, exc)

        translator.log_graph_break = logged
        convert.graph_break_log.addHandler(_Skipped(self._skipped))
        convert.graph_break_log.setLevel(logging.DEBUG)
        convert.graph_break_log.propagate = False
        self._wrap(convert, "get_and_maybe_log_recompilation_reasons", self._recompiled)
        self._wrap(convert, "exceeds_recompile_limit", self._limited)

    @staticmethod
    def _wrap(module: Any, name: str, told: Callable[..., None]) -> None:
        real = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            found = real(*args, **kwargs)
            told(found, *args, **kwargs)
            return found

        setattr(module, name, wrapped)

    def _skipped(self, error: BaseException) -> None:
        """A break that ends the frame's compilation altogether."""
        if "recompile limit" not in str(getattr(error, "gb_type", "")):
            self._broken(error, str(error))

    def _broken(self, error: Any, reason: str, raises: bool = False) -> None:
        if wanting := _WITHOUT_GPU.search(reason):
            self.heard.unable = wanting[0]
            return
        if standing_in := _STANDS_IN.search(reason):
            self.heard.unable = (
                f"the compiler does not trace into the stand-in for {standing_in[1]}, which is an "
                "operator on a GPU"
            )
            return
        own = stack_of([*_above(), *(getattr(error, "real_stack", None) or ())])
        stack = own + self.place
        kind = getattr(error, "gb_type", "") or type(error).__name__
        parts = parts_of(reason)
        line = next((one for one in stack if one.is_user), None)
        key = kind, line, parts.get("Explanation", ("",))[0]
        known = self.heard.breaks.get(key)
        self.heard.breaks[key] = GraphBreak(
            kind=kind,
            reason=parts.get("Explanation", ("",))[0],
            hints=tuple(parts.get("Hint", ())),
            stack=known.stack if known is not None else stack,
            inside=known.inside if known is not None else len(own),
            times=(known.times if known is not None else 0) + 1,
            raises=raises or (known is not None and known.raises),
        )

    def refused(self, error: BaseException) -> None:
        """A break where none is allowed (`fullgraph=True`): compiling raises `error`."""
        if self.heard.unable:
            return
        if getattr(error, "logged", False):  # it was heard of, as a break
            last = next(reversed(self.heard.breaks))
            self.heard.breaks[last] = msgspec.structs.replace(self.heard.breaks[last], raises=True)
            return
        self._broken(error, str(error), raises=True)

    def _recompiled(
        self, reasons: list[str], entries: Any, frame: Any, backend: Any, skip_logging: bool = False
    ) -> None:
        if skip_logging:
            return
        code = frame.f_code
        guard = guard_of(reasons[0]) if reasons else "a guard that the compiler does not name"
        line = line_at(code.co_filename, code.co_firstlineno, name_of(code.co_name))
        key = line.file, line.line, _NUMBERS.sub("#", guard)
        known = self.heard.recompiles.get(key)
        caller = next((one for one in self.place if one.is_user), None)
        self.heard.recompiles[key] = Recompile(
            guard=known.guard if known is not None else guard,
            function=line.function,
            line=line,
            calls=tuple(dict.fromkeys((*(known.calls if known is not None else ()), self.number))),
            caller=known.caller if known is not None else caller,
            times=(known.times if known is not None else 0) + 1,
        )

    def _limited(self, found: tuple[bool, str], *_: Any) -> None:
        exceeded, limit = found
        if exceeded:
            self.heard.limit = limit  # type: ignore[assignment]
            last = next(reversed(self.heard.recompiles.values()), None)
            self.heard.limited = last.line if last is not None else None


class _Skipped(logging.Handler):
    """Takes the error that a record of a skipped frame carries."""

    def __init__(self, told: Callable[[BaseException], None]) -> None:
        super().__init__(logging.DEBUG)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(record.msg).startswith("Graph break: torch.compile cannot properly"):
            self._told(error)


def _above() -> list[traceback.FrameSummary]:
    """The frames between the call of a compiled callable and the one that is being compiled, outermost first:
    what is called behind a break is compiled by itself."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _CALLER:
        found.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found[::-1]


def parts_of(reason: str) -> dict[str, list[str]]:
    """The parts of the compiler's explanation of a break, by name, each in one line.

    >>> parts_of("Tensor.item()\\n  Explanation: no\\n    way\\n  Hint: Do this")
    {'Explanation': ['no way'], 'Hint': ['Do this']}
    """
    pieces = _PARTS.split(reason.split("\n\n For more details", 1)[0])
    found: dict[str, list[str]] = {}
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        found.setdefault(name, []).append(" ".join(text.split("\n\n", 1)[0].split())[:_LONG])
    return found


def guard_of(reason: str) -> str:
    """A failed guard without the number of its entry and the source that it quotes.

    >>> guard_of("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 6")
    "tensor 'x' size mismatch at index 0. expected 4, actual 6"
    """
    return " ".join(_SOURCE.sub("", _ENTRY.sub("", reason)).split())[:_LONG]


def name_of(function: str) -> str:
    """The user's function: that of which the compiler made one to go on with after a break."""
    found = _RESUMED.fullmatch(function)
    return found[1] if found is not None else function


def line_at(file: str, number: int, function: str) -> SourceLine:
    """A place in somebody's source."""
    code = linecache.getline(file, number).strip()
    return SourceLine(file=file, line=number, function=function, code=code, library=library_of(file))


def stack_of(frames: Iterable[traceback.FrameSummary]) -> Stack:
    """The compiler's stack of the code that it traces, innermost first, without its own frames and ours."""
    found: list[SourceLine] = []
    for frame in frames:
        file, number = frame.filename, frame.lineno
        if number is None or is_own(file) or any(part in file.replace("\\", "/") for part in _MACHINERY):
            continue
        found.append(line_at(file, number, qualified_name(file, name_of(frame.name), number)))
    return tuple(reversed(found))
