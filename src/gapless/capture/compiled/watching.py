"""Record what the compiler reports while it compiles: graph breaks, failed guards and limits, with places."""

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
"""Messages about operators missing in a torch without CUDA, which a GPU would not give."""
_STANDS_IN = re.compile(r"the function `(\w+)`.*\bgapless[./]emulation[./]standins\b", re.DOTALL)
"""Messages about a stand-in, whose real package has an operator that the compiler knows or skips."""
_MAX_TEXT_LENGTH = 300
"""Characters kept of a message of the compiler: some include whole graphs."""
_CALLER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "again.py")


@dataclass
class CompilerEvents:
    """The compiler's events for one callable; `unable` is what this torch without CUDA cannot trace."""

    breaks: dict[Any, GraphBreak] = field(default_factory=dict)
    recompiles: dict[Any, Recompile] = field(default_factory=dict)
    limit: Limit = ""
    limited: SourceLine | None = None
    unable: str = ""


class CompilerWatch:
    """Listens to the compiler and adds its events to `heard`.

    `place` is the stack of the call being made, and `number` its number.
    """

    def __init__(self) -> None:
        self.heard = CompilerEvents()
        self.place: Stack = ()
        self.number = 0

    def start(self) -> None:
        """Listen for the rest of this process."""
        symbolic = importlib.import_module(f"{path('dynamo')}.symbolic_convert")
        convert = importlib.import_module(f"{path('dynamo')}.convert_frame")
        translator = symbolic.InstructionTranslatorBase
        log_graph_break = translator.log_graph_break

        def log_and_record(translator: Any, code_options: Any, reason: str, exc: Any) -> Any:
            if not exc.logged:
                self._record_break(exc, reason)
            return log_graph_break(translator, code_options, reason, exc)

        translator.log_graph_break = log_and_record
        convert.graph_break_log.addHandler(_SkipHandler(self._record_skip))
        convert.graph_break_log.setLevel(logging.DEBUG)
        convert.graph_break_log.propagate = False
        self._wrap(convert, "get_and_maybe_log_recompilation_reasons", self._record_recompile)
        self._wrap(convert, "exceeds_recompile_limit", self._record_limit)

    @staticmethod
    def _wrap(module: Any, name: str, record: Callable[..., None]) -> None:
        real = getattr(module, name)

        def call_and_record(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            record(result, *args, **kwargs)
            return result

        setattr(module, name, call_and_record)

    def _record_skip(self, error: BaseException) -> None:
        """Record a break that ends the compilation of the whole frame."""
        if "recompile limit" not in str(getattr(error, "gb_type", "")):
            self._record_break(error, str(error))

    def _record_break(self, error: Any, reason: str, raises: bool = False) -> None:
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
        line = next((source_line for source_line in stack if source_line.is_user), None)
        key = kind, line, parts.get("Explanation", ("",))[0]
        earlier = self.heard.breaks.get(key)
        self.heard.breaks[key] = GraphBreak(
            kind=kind,
            reason=parts.get("Explanation", ("",))[0],
            hints=tuple(parts.get("Hint", ())),
            stack=earlier.stack if earlier is not None else stack,
            inside=earlier.inside if earlier is not None else len(own),
            times=(earlier.times if earlier is not None else 0) + 1,
            raises=raises or (earlier is not None and earlier.raises),
        )

    def record_error(self, error: BaseException) -> None:
        """Record a break where none is allowed (`fullgraph=True`), so that compiling raises `error`."""
        if self.heard.unable:
            return
        if getattr(error, "logged", False):  # it was heard of, as a break
            last = next(reversed(self.heard.breaks))
            self.heard.breaks[last] = msgspec.structs.replace(self.heard.breaks[last], raises=True)
            return
        self._record_break(error, str(error), raises=True)

    def _record_recompile(
        self, reasons: list[str], entries: Any, frame: Any, backend: Any, skip_logging: bool = False
    ) -> None:
        if skip_logging:
            return
        code = frame.f_code
        guard = guard_of(reasons[0]) if reasons else "a guard that the compiler does not name"
        line = line_at(code.co_filename, code.co_firstlineno, user_function_name(code.co_name))
        key = line.file, line.line, _NUMBERS.sub("#", guard)
        earlier = self.heard.recompiles.get(key)
        caller = next((source_line for source_line in self.place if source_line.is_user), None)
        self.heard.recompiles[key] = Recompile(
            guard=earlier.guard if earlier is not None else guard,
            function=line.function,
            line=line,
            calls=tuple(dict.fromkeys((*(earlier.calls if earlier is not None else ()), self.number))),
            caller=earlier.caller if earlier is not None else caller,
            times=(earlier.times if earlier is not None else 0) + 1,
        )

    def _record_limit(self, result: tuple[bool, str], *_: Any) -> None:
        exceeded, limit = result
        if exceeded:
            self.heard.limit = limit  # type: ignore[assignment]
            last = next(reversed(self.heard.recompiles.values()), None)
            self.heard.limited = last.line if last is not None else None


class _SkipHandler(logging.Handler):
    """Passes on the error in a log record about a skipped frame."""

    def __init__(self, record: Callable[[BaseException], None]) -> None:
        super().__init__(logging.DEBUG)
        self._record = record

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(record.msg).startswith("Graph break: torch.compile cannot properly"):
            self._record(error)


def _above() -> list[traceback.FrameSummary]:
    """Return the frames from the call of a compiled callable to the frame being compiled, outermost first.

    Code called behind a break is compiled by itself.
    """
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _CALLER:
        frames.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames[::-1]


def parts_of(reason: str) -> dict[str, list[str]]:
    """Return the parts of the compiler's explanation of a break by name, each as lines of text.

    >>> parts_of("Tensor.item()\\n  Explanation: no\\n    way\\n  Hint: Do this")
    {'Explanation': ['no way'], 'Hint': ['Do this']}
    """
    pieces = _PARTS.split(reason.split("\n\n For more details", 1)[0])
    parts: dict[str, list[str]] = {}
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        parts.setdefault(name, []).append(" ".join(text.split("\n\n", 1)[0].split())[:_MAX_TEXT_LENGTH])
    return parts


def guard_of(reason: str) -> str:
    """Return a failed guard without its entry number and quoted source.

    >>> guard_of("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 6")
    "tensor 'x' size mismatch at index 0. expected 4, actual 6"
    """
    return " ".join(_SOURCE.sub("", _ENTRY.sub("", reason)).split())[:_MAX_TEXT_LENGTH]


def user_function_name(function: str) -> str:
    """Return the user's function behind a function that the compiler resumes after a break."""
    match = _RESUMED.fullmatch(function)
    return match[1] if match is not None else function


def line_at(file: str, number: int, function: str) -> SourceLine:
    """Return the source line at a place, with its library."""
    code = linecache.getline(file, number).strip()
    return SourceLine(file=file, line=number, function=function, code=code, library=library_of(file))


def stack_of(frames: Iterable[traceback.FrameSummary]) -> Stack:
    """Return the compiler's stack of the traced code, innermost first, without its frames and Gapless's."""
    lines: list[SourceLine] = []
    for frame in frames:
        file, number = frame.filename, frame.lineno
        if number is None or is_own(file) or any(part in file.replace("\\", "/") for part in _MACHINERY):
            continue
        lines.append(line_at(file, number, qualified_name(file, user_function_name(frame.name), number)))
    return tuple(reversed(lines))
