"""`Frozen`: numbers that a capture took along, and that are others when the graph is replayed."""

from __future__ import annotations

import ast
import linecache
import textwrap
import weakref
from types import CodeType, FrameType
from typing import Any

from gapless.emulation.graphs.bindings import variables
from gapless.emulation.graphs.tape import Constant, Tape, constants
from gapless.emulation.support import stacks

_MOST_MODULES = 400


class Frozen:
    """Numbers of one graph: of optimizers, of modules, in the host's memory, and in the capturing
    function."""

    def __init__(self, watch: Any, host: Any, tape: Tape) -> None:
        self._watch = watch
        self._optimizers = [(weakref.ref(one), _settings(one)) for one in host.optimizers]
        self._modules = [(weakref.ref(one), _attributes(one)) for one in list(host.modules)[:_MOST_MODULES]]
        self._constants = _constants(tape)
        self._code: CodeType | None = host.frames[0].f_code if host.frames else None
        self._names = _counters(host, tape, watch.place)
        self._seen: dict[str, set[float]] = {}
        self._once = not any(
            one.place == watch.place for one in watch.found.watches
        )  # a line that captures several graphs makes one for each number

    def changed(self, frames: list[FrameType]) -> None:
        """Find numbers that are others now."""
        for known, settings in self._optimizers:
            optimizer = known()
            if optimizer is not None:
                self._settings(optimizer, settings)
        for reference, before in self._modules:
            module = reference()
            if module is not None:
                self._module(module, before)
        for constant in self._constants:
            original = constant.original()
            if original is not None and not _same(original, constant.value):
                was, now = constant.value.item(), original.detach().item()
                told = f"a tensor in CPU memory was {was:g} when a kernel captured it, and is {now:g} now"
                self._tell("a tensor in CPU memory", told)
        self._counters(frames)

    def _tell(self, what: str, told: str) -> None:
        self._watch.found.add("frozen", what, (told,), self._watch.place)

    def _settings(self, optimizer: Any, before: list[dict[str, float]]) -> None:
        for number, (group, now) in enumerate(zip(before, _settings(optimizer), strict=False)):
            for name, value in group.items():
                if now.get(name, value) != value:
                    what = f"{type(optimizer).__name__}.param_groups[{number}][{name!r}]"
                    self._tell(what, f"`{what}` was {value:g} in the capture and is {now[name]:g} now")

    def _module(self, module: Any, before: dict[str, float]) -> None:
        now = _attributes(module)
        for name, value in before.items():
            if now.get(name, value) != value:
                what = f"{type(module).__name__}.{name}"
                shown = (bool(value), bool(now[name])) if name == "training" else (value, now[name])
                self._tell(what, f"`{what}` was {shown[0]} in the capture and is {shown[1]} now")

    def _counters(self, frames: list[FrameType]) -> None:
        """A variable of the capturing function that is another number at each replay."""
        if not (self._names and self._once):
            return
        frame = next((one for one in frames if one.f_code is self._code), None)
        if frame is None:
            return
        own = variables(frame)
        for name, value in self._names.items():
            now: Any = own.get(name)
            if type(now) not in (int, float) or now == value:
                continue
            seen = self._seen.setdefault(name, set())
            seen.add(now)
            if len(seen) > 1:
                told = f"`{name}` was {value:g} in the capture, where kernels recorded it, and is {now:g} now"
                self._tell(name, told)


def _settings(optimizer: Any) -> list[dict[str, float]]:
    """The plain numbers of each group; a tensor is read when the graph is replayed."""
    return [
        {name: float(value) for name, value in group.items() if type(value) in (int, float)}
        for group in optimizer.param_groups
    ]


def _attributes(module: Any) -> dict[str, float]:
    found = {
        name: float(value)
        for name, value in vars(module).items()
        if type(value) in (int, float) and not name.startswith("_")
    }
    found["training"] = float(module.training)
    return found


def _constants(tape: Tape) -> list[Constant]:
    found: dict[int, Constant] = {}
    for one in constants(tape.steps):
        original = one.original()
        if original is not None:
            found.setdefault(id(original), one)
    return list(found.values())


def _same(tensor: Any, value: Any) -> bool:
    from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

    with DisableTorchDispatch(), DisableTorchFunction():
        return bool(tensor.detach().equal(value))


def _counters(host: Any, tape: Tape, place: stacks.RawStack) -> dict[str, float]:
    """Names of numbers that the captured block hands on as they are, and that kernels were given."""
    line = next((one for one in stacks.resolve(place) if one.is_user), None)
    if line is None or not host.numbers:
        return {}
    used = _names_in_block(line.file, line.line)
    given = set(tape.numbers)
    return {name: value for name, value in host.numbers.items() if name in used and value in given}


def _names_in_block(file: str, line: int) -> set[str]:
    """The names that the ``with`` block at `line` reads, other than to index something with."""
    try:
        tree = ast.parse(textwrap.dedent("".join(linecache.getlines(file))))
    except SyntaxError:
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line < node.body[0].lineno:
            found = {
                one.id
                for part in node.body
                for one in ast.walk(part)
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
            }
            found -= {
                one.slice.id
                for part in node.body
                for one in ast.walk(part)
                if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Name)
            }
    return found
