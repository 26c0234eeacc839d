"""`FrozenNumbers`: Python and CPU numbers that a capture recorded, and that have changed at a replay."""

from __future__ import annotations

import ast
import linecache
import textwrap
import weakref
from types import CodeType, FrameType
from typing import Any

from gapless.emulation.graphs.tape import Constant, Tape, constants
from gapless.emulation.support import stacks

_MAX_MODULES = 400
"""Modules whose attributes are compared, which happens at each of the first replays."""
"""Modules whose attributes are compared, which happens at each of the first replays."""


class FrozenNumbers:
    """Numbers that one graph recorded: of optimizers, modules, CPU tensors and the capturing function."""

    def __init__(self, watch: Any, host: Any, tape: Tape) -> None:
        self._watch = watch
        self._optimizers = [
            (weakref.ref(optimizer), _settings_of(optimizer)) for optimizer in host.optimizers
        ]
        self._modules = [
            (weakref.ref(module), _attributes(module)) for module in list(host.modules)[:_MAX_MODULES]
        ]
        self._constants = _constants(tape)
        self._code: CodeType | None = host.frames[0].f_code if host.frames else None
        self._names = _block_numbers(host, tape, watch.place)
        self._values: dict[str, set[float]] = {}
        self._is_only_graph = not any(
            watched.place == watch.place for watched in watch.faults.watches
        )  # a line that captures several graphs probably captures one for each number

    def check(self, frames: list[FrameType]) -> None:
        """Report numbers that differ from their recorded values."""
        for ref, settings in self._optimizers:
            optimizer = ref()
            if optimizer is not None:
                self._check_settings(optimizer, settings)
        for reference, before in self._modules:
            module = reference()
            if module is not None:
                self._check_module(module, before)
        for constant in self._constants:
            original = constant.original()
            if original is not None and not _is_equal(original, constant.value):
                was, now = constant.value.item(), original.detach().item()
                evidence = f"a tensor in CPU memory was {was:g} when a kernel captured it, and is {now:g} now"
                self._report("a tensor in CPU memory", evidence)
        self._check_counters(frames)

    def _report(self, subject: str, evidence: str) -> None:
        self._watch.faults.add("frozen", subject, (evidence,), self._watch.place)

    def _check_settings(self, optimizer: Any, before: list[dict[str, float]]) -> None:
        for number, (group, now) in enumerate(zip(before, _settings_of(optimizer), strict=False)):
            for name, value in group.items():
                if now.get(name, value) != value:
                    subject = f"{type(optimizer).__name__}.param_groups[{number}][{name!r}]"
                    self._report(
                        subject, f"`{subject}` was {value:g} in the capture and is {now[name]:g} now"
                    )

    def _check_module(self, module: Any, before: dict[str, float]) -> None:
        now = _attributes(module)
        for name, value in before.items():
            if now.get(name, value) != value:
                subject = f"{type(module).__name__}.{name}"
                shown = (bool(value), bool(now[name])) if name == "training" else (value, now[name])
                self._report(subject, f"`{subject}` was {shown[0]} in the capture and is {shown[1]} now")

    def _check_counters(self, frames: list[FrameType]) -> None:
        """Report variables of the capturing function that change from replay to replay."""
        if not (self._names and self._is_only_graph):
            return
        frame = next((running for running in frames if running.f_code is self._code), None)
        if frame is None:
            return
        own = stacks.variables(frame)
        for name, value in self._names.items():
            now: Any = own.get(name)
            if type(now) not in (int, float) or now == value:
                continue
            values = self._values.setdefault(name, set())
            values.add(now)
            if len(values) > 1:
                evidence = (
                    f"`{name}` was {value:g} in the capture, where kernels recorded it, and is {now:g} now"
                )
                self._report(name, evidence)


def _settings_of(optimizer: Any) -> list[dict[str, float]]:
    """Return the plain numbers of each parameter group; tensors are left out, as replays read them."""
    return [
        {name: float(value) for name, value in group.items() if type(value) in (int, float)}
        for group in optimizer.param_groups
    ]


def _attributes(module: Any) -> dict[str, float]:
    numbers = {
        name: float(value)
        for name, value in vars(module).items()
        if type(value) in (int, float) and not name.startswith("_")
    }
    numbers["training"] = float(module.training)
    return numbers


def _constants(tape: Tape) -> list[Constant]:
    by_tensor: dict[int, Constant] = {}
    for constant in constants(tape.steps):
        original = constant.original()
        if original is not None:
            by_tensor.setdefault(id(original), constant)
    return list(by_tensor.values())


def _is_equal(tensor: Any, value: Any) -> bool:
    from gapless.torch_internals import DisableTorchDispatch, DisableTorchFunction

    with DisableTorchDispatch(), DisableTorchFunction():
        return bool(tensor.detach().equal(value))


def _block_numbers(host: Any, tape: Tape, place: stacks.RawStack) -> dict[str, float]:
    """Return the numbers that the captured block reads by name and that kernels received unchanged."""
    line = next((frame for frame in stacks.resolve(place) if frame.is_user), None)
    if line is None or not host.numbers:
        return {}
    used = _names_in_block(line.file, line.line)
    recorded = set(tape.numbers)
    return {name: value for name, value in host.numbers.items() if name in used and value in recorded}


def _names_in_block(file: str, line: int) -> set[str]:
    """Return the names that the ``with`` block at `line` reads, except those only used as an index."""
    try:
        tree = ast.parse(textwrap.dedent("".join(linecache.getlines(file))))
    except SyntaxError:
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line < node.body[0].lineno:
            names = {
                child.id
                for part in node.body
                for child in ast.walk(part)
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)
            }
            names -= {
                child.slice.id
                for part in node.body
                for child in ast.walk(part)
                if isinstance(child, ast.Subscript) and isinstance(child.slice, ast.Name)
            }
    return names
