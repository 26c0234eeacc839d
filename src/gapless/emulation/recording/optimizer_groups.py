"""Which optimizers a run has, in how many groups, and how torch goes through them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.model.optimizer import RATE_IN_A_TENSOR, OptimizerUse, Way
from gapless.model.programme import Entry
from gapless.model.source import SourceLine

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Optimizers that have kernels for the whole update of many parameters."""
_NAMES = frozenset({"params", "param_names", "name"})
"""Keys of a group that are no settings."""
_COMPARED_STEPS = 32
"""Steps in which the settings of groups are compared: enough for a warm-up in which all rates are zero."""


class _Known:
    """An optimizer, as its steps found it so far."""

    def __init__(self, optimizer: torch.optim.Optimizer, line: SourceLine | None) -> None:
        self.name = type(optimizer).__name__
        self.line = line
        self.steps = 0
        self.settings: dict[int, int] = {}
        """By position of a group with gradients: a hash of its settings and of the pass, in each step."""
        self.passes = 0
        """A hash of the backward passes whose gradients its steps use."""
        self.sizes: dict[int, int] = {}
        """By position of such a group: its parameters with gradients."""
        self.way: Way = "own"
        self.turned_off = self.refuses_fused = self.refuses_foreach = ""
        self.in_backward = False

    def step(self, optimizer: torch.optim.Optimizer, backward: tuple[int, int]) -> None:
        """Look at the groups of `optimizer`, which steps now, with the gradients of the pass `backward`."""
        self.steps += 1
        self.in_backward |= local.backward != HOST
        if self.steps > _COMPARED_STEPS:
            return
        self.passes = hash((self.passes, backward))
        for position, group in enumerate(optimizer.param_groups):
            used = sum(one.grad is not None for one in group["params"])
            if used:
                self.sizes[position] = used
                before = self.settings.get(position, 0)
                self.settings[position] = hash((before, backward, _settings(group)))
        self._look_at_ways(optimizer)

    @property
    def parameters(self) -> int:
        """Parameters with gradients in the last step that had some."""
        return sum(self.sizes.values())

    def _look_at_ways(self, optimizer: torch.optim.Optimizer) -> None:
        groups = [group for group in optimizer.param_groups if "foreach" in group]
        if type(optimizer).__module__.split(".")[0] != "torch" or not groups:
            return
        given = [one for group in groups for one in group["params"] if one.grad is not None]
        self.refuses_foreach = _refuses_foreach(groups, given)
        self.refuses_fused = self.refuses_foreach or _refuses_fused(optimizer, groups, given)
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
    """Whether torch goes through the parameters of `optimizer` one by one because of a learning rate that is
    a tensor: by default Adam and AdamW do, unless ``capturable=True``."""
    return isinstance(optimizer, torch.optim.Adam) and any(
        isinstance(group["lr"], torch.Tensor) and not group["capturable"] for group in groups
    )


def _settings(group: dict[str, Any]) -> int:
    """A hash of the settings of `group`; a tensor is its own setting."""
    return hash(tuple((key, _hashable(value)) for key, value in group.items() if key not in _NAMES))


def _hashable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value)
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value if isinstance(value, int | float | str | bool | None) else repr(value)


def _refuses_foreach(groups: Iterable[dict[str, Any]], given: Iterable[torch.Tensor]) -> str:
    if any(group.get("differentiable") for group in groups):
        return "differentiable=True"
    for one in given:
        if type(one) not in (torch.Tensor, torch.nn.Parameter):
            return f"parameters of type {type(one).__name__}"
        if one.grad is not None and one.grad.is_sparse:
            return "sparse gradients"
        if one.device.type != "cuda":
            return "parameters on the CPU"
    return ""


def _refuses_fused(
    optimizer: torch.optim.Optimizer, groups: Iterable[dict[str, Any]], given: Iterable[torch.Tensor]
) -> str:
    if type(optimizer) not in _FUSED:
        return f"{type(optimizer).__name__} has no fused kernel"
    if type(optimizer) is torch.optim.Adagrad:
        return "the fused kernel of Adagrad is new on GPUs"
    if any(group["foreach"] for group in groups):
        return "foreach=True"
    if not all(one.is_floating_point() for one in given):
        return "parameters that are no floating point numbers"
    return ""


class Optimizers:
    """The optimizers of a run, in the order in which they step first."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[torch.optim.Optimizer, _Known] = WeakKeyDictionary()
        self._together: dict[tuple[str, SourceLine | None], list[_Known]] = {}
        """Those that step, by class and the line that makes them."""

    def made(self, optimizer: torch.optim.Optimizer, line: SourceLine | None) -> _Known:
        known = self._known[optimizer] = _Known(optimizer, line)
        return known

    def steps(self, optimizer: torch.optim.Optimizer, backward: tuple[int, int] = (0, 0)) -> Entry:
        """`optimizer` is about to step: what that asks of the CPU besides its operators.

        `backward` numbers the thread and the last backward pass that has begun in it: optimizers that step
        after different ones, as those of a GAN, cannot become one.
        """
        known = self._known.get(optimizer) or self.made(optimizer, None)
        if not known.steps:
            self._together.setdefault((known.name, known.line), []).append(known)
        known.step(optimizer, backward)
        return Entry(
            kind="update",
            name=known.name,
            detail=known.way,
            site=list(self._together).index((known.name, known.line)),
            number=len(known.settings),
            tensors=known.parameters,
            optimizer=True,
        )

    def uses(self) -> tuple[OptimizerUse, ...]:
        """Those that stepped, together where a line makes several of a class; an entry of kind ``update``
        says by `Entry.site` which of them steps."""
        return tuple(map(_use, self._together.values()))


def _use(alike: list[_Known]) -> OptimizerUse:
    first = alike[0]
    groups = [(known.settings[at], known.sizes[at]) for known in alike for at in sorted(known.settings)]
    settings = list(dict.fromkeys(setting for setting, _ in groups))
    return OptimizerUse(
        name=first.name,
        line=first.line,
        way=first.way,
        instances=len(alike),
        groups=len(groups),
        settings=len(settings),
        turns=len({known.passes for known in alike}),
        parameters=sum(size for _, size in groups),
        members=tuple((settings.index(setting), size) for setting, size in groups),
        in_backward=any(one.in_backward for one in alike),
        turned_off=first.turned_off,
        refuses_fused=next((one.refuses_fused for one in alike if one.refuses_fused), ""),
        refuses_foreach=next((one.refuses_foreach for one in alike if one.refuses_foreach), ""),
    )
