"""`SourceLine`: a line of source code; stacks of such lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec


class SourceLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of source.

    `library` is the name of the installed package the file belongs to (``"torch"``,
    ``"torchmetrics"``), ``"python"`` for the standard library, and empty for the user's own code.
    `code` is the source text of the line, stripped; empty where the source cannot be read.
    """

    file: str
    line: int
    function: str = ""
    code: str = ""
    library: str = ""

    @property
    def is_user(self) -> bool:
        """Whether the line is the user's own, not a library's."""
        return not self.library

    @property
    def where(self) -> str:
        """``file:line``, as editors and terminals link it."""
        return f"{self.file}:{self.line}"

    @property
    def name(self) -> str:
        """The file's name without folders, from any operating system."""
        return self.file.replace("\\", "/").rpartition("/")[2]

    @property
    def short(self) -> str:
        """Name and line: ``train.py:12``."""
        return f"{self.name}:{self.line}"


Stack = tuple[SourceLine, ...]
"""Calls, innermost first."""


def user_line(stack: Stack) -> SourceLine | None:
    """Return the innermost line of the user's code, otherwise the innermost line; None for an empty stack."""
    for line in stack:
        if line.is_user:
            return line
    return stack[0] if stack else None


def library_frames(stack: Stack) -> Stack:
    """Return the library frames below the user's line, innermost first; empty if the user's line itself
    waits."""
    frames: list[SourceLine] = []
    for line in stack:
        if line.is_user:
            return tuple(frames)
        frames.append(line)
    return tuple(frames)


def deciding_frame(stack: Stack) -> SourceLine | None:
    """Return the innermost library frame that decided to wait; None if the user's own line did."""
    for frame in library_frames(stack):
        if frame.library != "python" and not _passes_on(frame):
            return frame
    return None


def _passes_on(frame: SourceLine) -> bool:
    function, file = frame.function.rpartition(".")[2], frame.file.replace("\\", "/")
    return file.endswith(_PASS_ON) or (function in _OVERRIDES and _HANDED_ON.search(frame.code) is not None)


_PASS_ON = (
    "torch/_tensor.py",
    "torch/_tensor_str.py",
    "torch/functional.py",
    "torch/overrides.py",
    "torch/_ops.py",
    "torch/_VF.py",
    "torch/_jit_internal.py",
    "torch/accelerator/__init__.py",
    "torch/accelerator/memory.py",
    "torch/cuda/__init__.py",
    "torch/cuda/memory.py",
    "torch/cuda/streams.py",
    "torch/utils/_contextlib.py",
    "torch/utils/_device.py",
    "torch/autograd/__init__.py",
    "torch/autograd/graph.py",
    "torch/autograd/function.py",
    "torch/nn/modules/module.py",
)
"""Files of torch that only pass calls on: their caller is responsible for a sync below them."""
_OVERRIDES = ("__torch_function__", "__torch_dispatch__")
"""Methods through which a subclass of `Tensor` intercepts its user's calls."""
_HANDED_ON = re.compile(r"__torch_(?:function|dispatch)__\(|\(\*\w+(?:,|\))")


def places(lines: Iterable[SourceLine], name: Callable[[str], str]) -> str:
    """Format lines as ``a.py:3, 5, b.py:7``, each file once; `name` formats file names."""
    numbers: dict[str, set[int]] = {}
    for line in lines:
        numbers.setdefault(line.file, set()).add(line.line)
    return ", ".join(f"{name(file)}:{', '.join(map(str, sorted(of)))}" for file, of in numbers.items())
