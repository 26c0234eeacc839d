"""Record a run's optimizers, their parameter groups, and the implementation (`Way`) torch chooses."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gapless.emulation.support import stacks
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.files.input import source_text
from gapless.model.optimizer import RATE_IN_A_TENSOR, OptimizerUse, Way
from gapless.model.programme import Entry
from gapless.model.source import SourceLine
from gapless.uses.meaning import values_of
from gapless.uses.source_files import Project, SourceFile, called_name

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Optimizers with fused kernels that update many parameters."""
_NAMES = frozenset({"params", "param_names", "name"})
"""Keys of a group that are not settings."""
_COMPARED_STEPS = 32
"""Steps in which settings of groups are compared: outlasts a warm-up with all rates zero."""


class _OptimizerRecord:
    """What is known of an optimizer from its steps so far."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, line: SourceLine | None, maker: SourceLine | None
    ) -> None:
        self.name = type(optimizer).__name__
        self.line = line
        self.maker = maker
        self.steps = 0
        self.settings: dict[int, int] = {}
        """By position of a group with gradients: a hash of its settings and backward pass over all steps."""
        self.passes = 0
        """A hash of the backward passes whose gradients its steps used."""
        self.sizes: dict[int, int] = {}
        """By position of a group with gradients: the number of its parameters that have them."""
        self.updated: set[int] = set()
        """Ids of the parameters with gradients."""
        self.way: Way = "own"
        self.turned_off = self.refuses_fused = self.refuses_foreach = ""
        self.in_backward = False

    def step(self, optimizer: torch.optim.Optimizer, backward: tuple[int, int]) -> None:
        """Inspect the groups of `optimizer`, about to step with the gradients of the pass `backward`."""
        self.steps += 1
        self.in_backward |= local.backward != HOST
        if self.steps > _COMPARED_STEPS:
            return
        self.passes = hash((self.passes, backward))
        for position, group in enumerate(optimizer.param_groups):
            updated = [id(parameter) for parameter in group["params"] if parameter.grad is not None]
            if updated:
                self.updated.update(updated)
                self.sizes[position] = len(updated)
                before = self.settings.get(position, 0)
                self.settings[position] = hash((before, backward, _hash_settings(group)))
        self._determine_way(optimizer)

    @property
    def parameters(self) -> int:
        """The number of parameters with gradients in the last step that had some."""
        return sum(self.sizes.values())

    def _determine_way(self, optimizer: torch.optim.Optimizer) -> None:
        """Determine the implementation that torch chooses, and what forbids a faster one."""
        groups = [group for group in optimizer.param_groups if "foreach" in group]
        if type(optimizer).__module__.split(".")[0] != "torch" or not groups:
            return
        parameters = [
            parameter for group in groups for parameter in group["params"] if parameter.grad is not None
        ]
        self.refuses_foreach = _foreach_obstacle(groups, parameters)
        self.refuses_fused = self.refuses_foreach or _fused_obstacle(optimizer, groups, parameters)
        first = groups[0]
        default = first["foreach"] is None and first.get("fused") is None
        if first.get("fused"):
            self.way = "fused"
        elif default and _rate_forbids_lists(optimizer, groups):
            self.way = "single"
            self.turned_off = RATE_IN_A_TENSOR
        elif default or first["foreach"]:
            self.way = "single" if self.refuses_foreach else "foreach"
        else:
            self.way = "single"
            self.turned_off = "foreach=False" if first["foreach"] is False else "fused=False"


def _rate_forbids_lists(optimizer: torch.optim.Optimizer, groups: Iterable[dict[str, Any]]) -> bool:
    """Whether torch updates parameters one by one because a learning rate is a tensor.

    By default Adam and AdamW do so, unless ``capturable=True``.
    """
    return isinstance(optimizer, torch.optim.Adam) and any(
        isinstance(group["lr"], torch.Tensor) and not group["capturable"] for group in groups
    )


def _hash_settings(group: dict[str, Any]) -> int:
    """Return a hash of the settings of `group`; a tensor counts by identity."""
    return hash(tuple((key, _hashable(value)) for key, value in group.items() if key not in _NAMES))


def _hashable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value)
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value if isinstance(value, int | float | str | bool | None) else repr(value)


def _foreach_obstacle(groups: Iterable[dict[str, Any]], parameters: Iterable[torch.Tensor]) -> str:
    """Return why torch cannot update the parameters as lists; "" if it can."""
    if any(group.get("differentiable") for group in groups):
        return "differentiable=True"
    for parameter in parameters:
        if type(parameter) not in (torch.Tensor, torch.nn.Parameter):
            return f"parameters of type {type(parameter).__name__}"
        if parameter.grad is not None and parameter.grad.is_sparse:
            return "sparse gradients"
        if parameter.device.type != "cuda":
            return "parameters on the CPU"
    return ""


def _fused_obstacle(
    optimizer: torch.optim.Optimizer, groups: Iterable[dict[str, Any]], parameters: Iterable[torch.Tensor]
) -> str:
    """Return why torch has no fused kernel for the optimizer and its parameters; "" if it has."""
    if type(optimizer) not in _FUSED:
        return f"{type(optimizer).__name__} has no fused kernel"
    if type(optimizer) is torch.optim.Adagrad:
        return "the fused kernel of Adagrad is new on GPUs"
    if any(group["foreach"] for group in groups):
        return "foreach=True"
    if not all(parameter.is_floating_point() for parameter in parameters):
        return "parameters that are no floating point numbers"
    return ""


class Optimizers:
    """The optimizers of a run, in the order in which they step first."""

    def __init__(self) -> None:
        self._records: WeakKeyDictionary[torch.optim.Optimizer, _OptimizerRecord] = WeakKeyDictionary()
        self._together: dict[tuple[str, SourceLine | None], list[_OptimizerRecord]] = {}
        """Those that have stepped, by class and the line that creates them."""

    def add(
        self,
        optimizer: torch.optim.Optimizer,
        line: SourceLine | None = None,
        maker: SourceLine | None = None,
    ) -> _OptimizerRecord:
        """Start the record of an optimizer created at `line`, whose groups the function `maker` makes."""
        record = self._records[optimizer] = _OptimizerRecord(optimizer, line, maker)
        return record

    def note_step(self, optimizer: torch.optim.Optimizer, backward: tuple[int, int] = (0, 0)) -> Entry:
        """Record that `optimizer` is about to step; return the entry for its CPU work besides operators.

        `backward` numbers the thread and the last backward pass that has begun in it: optimizers that step
        after different passes, as those of a GAN, cannot be merged.
        """
        record = self._records.get(optimizer) or self.add(optimizer)
        if not record.steps:
            self._together.setdefault((record.name, record.line), []).append(record)
        record.step(optimizer, backward)
        return Entry(
            kind="update",
            name=record.name,
            detail=record.way,
            site=list(self._together).index((record.name, record.line)),
            number=len(record.settings),
            tensors=record.parameters,
            optimizer=True,
        )

    def uses(self) -> tuple[OptimizerUse, ...]:
        """Return the optimizers that stepped, merged per class and line.

        An entry of kind ``update`` refers to one by `Entry.site`.
        """
        return tuple(map(_merge_records, self._together.values()))


def _merge_records(alike: list[_OptimizerRecord]) -> OptimizerUse:
    """Return the use of optimizers of one class created at one line."""
    first, turns = alike[0], _count_turns(alike)
    groups = [
        (hash((record.settings[position], turn)), record.sizes[position])
        for record, turn in zip(alike, turns, strict=True)
        for position in sorted(record.settings)
    ]
    settings = list(dict.fromkeys(setting for setting, _ in groups))
    return OptimizerUse(
        name=first.name,
        line=first.line,
        maker=first.maker,
        way=first.way,
        instances=len(alike),
        groups=len(groups),
        settings=len(settings),
        turns=len({(record.passes, turn) for record, turn in zip(alike, turns, strict=True)}),
        parameters=sum(size for _, size in groups),
        members=tuple((settings.index(setting), size) for setting, size in groups),
        in_backward=any(record.in_backward for record in alike),
        turned_off=first.turned_off,
        refuses_fused=next((record.refuses_fused for record in alike if record.refuses_fused), ""),
        refuses_foreach=next((record.refuses_foreach for record in alike if record.refuses_foreach), ""),
    )


def _count_turns(alike: Iterable[_OptimizerRecord]) -> list[int]:
    """Return for each optimizer how many before it update some parameter of its own: one cannot do both."""
    updates: Counter[int] = Counter()
    turns: list[int] = []
    for record in alike:
        turns.append(max((updates[parameter] for parameter in record.updated), default=0))
        updates.update(record.updated)
    return turns


def find_maker(kind: str) -> SourceLine | None:
    """Return the user's function whose result the running call of `kind` gets; None if there is none.

    The source says which expression makes the groups, and the running frame which function that is.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not stacks.is_users(frame.f_code.co_filename):
        frame = frame.f_back
    file = Project(source_text).file(frame.f_code.co_filename) if frame is not None else None
    if frame is None or file is None:
        return None
    making = _making_call(file, kind, frame.f_lineno)
    function = inspect.unwrap(_resolve(making.func, frame)) if making is not None else None
    code = getattr(function, "__code__", None)
    if code is None or not stacks.is_users(code.co_filename):
        return None
    return SourceLine(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)


def _making_call(file: SourceFile, kind: str, line: int) -> ast.Call | None:
    """Return the call whose result is the first argument of the call of `kind` that runs at `line`."""
    for call in file.calls.get(kind, ()):
        if call.lineno <= line <= (call.end_lineno or line):
            arguments = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "params")]
            values = [
                value
                for each in arguments
                for value in (values_of(file, each) if isinstance(each, ast.Name) else [each])
            ]
            if len(values) == 1 and isinstance(values[0], ast.Call) and called_name(values[0]) != "list":
                return values[0]
    return None


def _resolve(node: ast.expr, frame: FrameType) -> Any:
    """Return what a dotted name stands for in a running frame, without running the user's properties."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        value = inspect.getattr_static(_resolve(node.value, frame), node.attr, None)
        return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    return None
