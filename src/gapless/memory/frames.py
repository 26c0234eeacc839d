"""Turn frames of a snapshot into places: Python lines, the operator, and what the memory is for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gapless.memory.modules import chain_of
from gapless.model.memory import MODULE, Kind, Place
from gapless.model.source import SourceLine

_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_STANDARD = re.compile(r"[/\\]lib[/\\]python3\.\d+[/\\]|^<frozen ")
_INDUCTOR = re.compile(r"torchinductor_|[/\\]torch_compile_debug[/\\]")
_OPERATOR = re.compile(r"^at::_ops::(\w+?)::(?:call|redispatch)\b")
_NODE = re.compile(r"torch::autograd::generated::(\w+Backward\d*)::apply")
_COMMUNICATION = re.compile(r"\bc10d::|\bnccl", re.IGNORECASE)
_WORKSPACE = re.compile(r"getNew\w*Workspace|blas\w*workspace", re.IGNORECASE)
_TORCH = re.compile(r"[/\\]torch[/\\]")


class PlaceTable:
    """Interns stacks: equal frames get the same place."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.lines: list[SourceLine] = []
        self._place: dict[Place, int] = {}
        self._line: dict[SourceLine, int] = {}
        self._place_of_frames: dict[tuple[int, ...], int] = {}
        self._place_in_module: dict[tuple[int, str], int] = {}
        self._place_of_list: dict[int, int] = {}
        self._alive: list[object] = []
        self._frame: dict[tuple[str, int, str], int] = {}

    def of_entry(self, entry: dict[str, Any]) -> int:
        """Return the index of the place of a trace entry."""
        place = self.of_frames(entry.get("frames"))
        metadata = entry.get("user_metadata")
        if not (isinstance(metadata, str) and metadata.startswith(MODULE)):
            return place
        at = self._place_in_module.get((place, metadata))
        if at is None:
            outer = self.places[place]
            at = self._add(Place(outer.lines, outer.operator, outer.kind, metadata.removeprefix(MODULE)))
            self._place_in_module[place, metadata] = at
        return at

    def of_frames(self, frames: object) -> int:
        """Return the index of the place of `frames`, a list of dictionaries in the format of a snapshot."""
        if not isinstance(frames, list) or not frames:
            return self.intern(())
        whole = self._place_of_list.get(id(frames))
        if whole is None:
            whole = self._place_of_list[id(frames)] = self._of_list(frames)
            self._alive.append(frames)  # else another list could get its identity
        return whole

    def _of_list(self, frames: list[Any]) -> int:
        # torch shares the dictionary of a frame between stacks: the same frames need no second look.
        key = tuple(map(id, frames))
        index = self._place_of_frames.get(key)
        if index is None:
            index = self._place_of_frames[key] = self._read(frames)
        return index

    def intern(self, stack: Sequence[SourceLine], operator: str = "", kind: Kind = "unknown") -> int:
        """Return the index of a place; `stack` has the innermost line first."""
        lines = []
        for line in stack:
            at = self._line.get(line)
            if at is None:
                at = self._line[line] = len(self.lines)
                self.lines.append(line)
            lines.append(at)
        return self._add(Place(tuple(lines), operator, kind))

    def _add(self, place: Place) -> int:
        at = self._place.get(place)
        if at is None:
            at = self._place[place] = len(self.places)
            self.places.append(place)
        return at

    def _read(self, frames: list[Any]) -> int:
        lines: list[int] = []
        native: list[str] = []
        for frame in frames:
            if not isinstance(frame, dict):
                continue
            file, name, number = frame.get("filename"), frame.get("name"), frame.get("line")
            if not (isinstance(file, str) and isinstance(name, str) and isinstance(number, int)):
                continue
            if number > 0 and (file.endswith(".py") or (file.startswith("<") and file.endswith(">"))):
                lines.append(self._frame_line(file, number, name))
            else:
                native.append(name)
        stack = [self.lines[line] for line in lines]
        kind = kind_of(stack, native)
        module = chain_of(stack) if kind in ("activation", "backward", "unknown") else ""
        return self._add(Place(tuple(lines), operator_of(native), kind, module))

    def _frame_line(self, file: str, number: int, name: str) -> int:
        key = (file, number, name)
        at = self._frame.get(key)
        if at is None:
            line = SourceLine(file, number, name, library=library_of(file))
            at = self._line.get(line)
            if at is None:
                at = self._line[line] = len(self.lines)
                self.lines.append(line)
            self._frame[key] = at
        return at


def library_of(file: str) -> str:
    """Return the package of `file` judged by its path, as it may be from another machine; "" for the
    user's.
    """
    package = _PACKAGE.search(file)
    if package:
        return package.group(1).removesuffix(".py")
    if _INDUCTOR.search(file):
        return "torch"
    return "python" if _STANDARD.search(file) or file.startswith("<") else ""


def operator_of(native: Sequence[str]) -> str:
    """Return the outermost operator (the one the user called), or in backward the autograd node; "" if
    unknown.
    """
    outermost = ""
    for name in native:
        node = _NODE.search(name)
        if node:
            return node.group(1)
        operator = _OPERATOR.match(name)
        if operator:
            outermost = "aten::" + operator.group(1)
    return outermost


def kind_of(stack: Sequence[SourceLine], native: Sequence[str] = ()) -> Kind:
    """Return what the memory requested by these calls is for; ``unknown`` if they don't show it.

    Distinguishes optimizers, modules being built or moved, loaders, communication, autograd and forward
    passes. `gapless.memory.kinds` refines the result by how long the memory lives.
    """
    if any(_WORKSPACE.search(name) for name in native):
        return "workspace"
    if any(_COMMUNICATION.search(name) for name in native):
        return "communication"
    kind: Kind = "unknown"
    for line in stack:
        line_kind = _kind_of_line(line)
        if line_kind == "activation":
            kind = line_kind  # a line of an optimizer or a loader may follow further out
        elif line_kind == "communication" and kind == "activation":
            continue  # a module wrapped for distributed training
        elif line_kind is not None:
            return line_kind
    if any("torch::autograd::Engine::" in name for name in native):
        return "backward"
    return kind


def _kind_of_line(line: SourceLine) -> Kind | None:
    file = line.file.replace("\\", "/")
    if not _TORCH.search(line.file):
        return "activation" if line.function.rpartition(".")[2] == "forward" else None
    if "/torch/optim/" in file:
        return "optimizer"
    if "/torch/utils/data/" in file:
        return "batch"
    if "/torch/distributed/" in file or file.endswith("/torch/nn/parallel/distributed.py"):
        return "communication"
    if file.endswith(("/torch/autograd/graph.py", "/torch/autograd/__init__.py")):
        return "backward"
    if file.endswith("/torch/nn/modules/module.py"):
        if line.function in ("_apply", "to", "cuda", "convert", "_load_from_state_dict"):
            return "parameter"
        return "activation" if line.function == "_call_impl" else None
    if file.endswith("/torch/nn/parameter.py"):
        return "parameter"
    if "/torch/nn/modules/" in file and line.function in ("__init__", "reset_parameters"):
        return "parameter"
    return None
