"""How much a run computes before it continues without values: decided by estimated cost, not by a clock.

A run that may drop values begins with all of them. The cost of its operators on a typical core is estimated
from their sizes, so that a script is decided the same way each time. After one operator that costs too much,
or many between two steps, it is a dry run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.dry.kinds import OperatorKind
from gapless.emulation.support import stacks
from gapless.model.assumption import Switch
from gapless.model.source import user_line

Tensor = torch.Tensor
MAX_FREE_ELEMENTS = 1 << 11
"""Elements of arguments for which every operator is cheap."""
MAX_OPERATOR_SECONDS = 0.25
"""Seconds that one operator on the device may take."""
MAX_STEP_SECONDS = 1.0
"""Seconds that operators may take from the beginning to the first step, and from there to the second one."""
WATCHED_STEPS = 2
"""Steps for which costs are added up; values computed until then are kept."""
# Times on one typical core: the limits need no more than the order of magnitude.
_SECONDS_PER_OPERATION = 1 / 30e9  # in a matrix product
_SECONDS_PER_ELEMENT = 1e-9  # read or written
_SECONDS_PER_DRAW = 8e-9  # a random number
_SECONDS_PER_SORTED_ELEMENT = 60e-9  # of millions
_SORTING_OPERATORS = frozenset(
    {"sort", "argsort", "_unique2", "unique_dim", "kthvalue", "median", "nanmedian", "mode", "topk"}
)


MAX_CHEAP_ELEMENTS, MAX_CHEAP_MATRIX_ELEMENTS = (
    int(MAX_OPERATOR_SECONDS / _SECONDS_PER_SORTED_ELEMENT),
    1 << 18,
)
"""Elements up to which no operator, and no matrix product, takes longer than one operator may."""


class Budget:
    """Limits what is computed; `on_switch` is called with a `Switch` when it is used up.

    An `endless` budget is never used up.
    """

    def __init__(self, core: EmulationCore, switched: Callable[[Switch], None] | None = None) -> None:
        self.core = core
        self.on_switch: Callable[[Switch], None] = switched or (lambda switch: None)
        self.endless = False
        self._spent = 0.0
        self._tick = -1

    def charge(self, kind: OperatorKind, index: int, args: Any, kwargs: dict[str, Any]) -> Switch | None:
        """Add an operator's cost; return a `Switch` if it, or all since the last step, cost too much."""
        if self.endless:
            return None
        tensors = list(trees.tensors((args, kwargs)))
        on_device = index >= 0 or any(self.core.placement.state_of(tensor) >= 0 for tensor in tensors)
        if not (on_device or kind.afresh):
            return None  # what the script computes from its data is computed in any run
        cost = estimate_seconds(kind, args, kwargs, tensors)
        tick = self.core.recorder.tick
        if tick != self._tick:
            self._tick, self._spent = tick, 0.0
        self._spent += cost
        alone = on_device and cost > MAX_OPERATOR_SECONDS
        if not alone and (self._spent <= MAX_STEP_SECONDS or tick >= WATCHED_STEPS):
            return None
        return Switch(
            line=user_line(stacks.resolve(stacks.capture())),
            operator=kind.name,
            seconds=cost if alone else self._spent,
            alone=alone,
        )


def estimate_seconds(kind: OperatorKind, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> float:
    """Return a rough estimate of an operator's time on a typical core, in seconds."""
    elements = sum(tensor.numel() for tensor in tensors)
    if kind.makes and not tensors:
        elements = _requested_elements(args, kwargs)
    each = (
        _SECONDS_PER_DRAW
        if kind.draws
        else _SECONDS_PER_SORTED_ELEMENT
        if kind.base in _SORTING_OPERATORS
        else _SECONDS_PER_ELEMENT
    )
    total = elements * each
    return (
        total + count_operations(kind.base, args, tensors) * _SECONDS_PER_OPERATION if kind.heavy else total
    )


def _requested_elements(args: Any, kwargs: dict[str, Any]) -> int:
    """Return the number of elements that a factory's arguments request; 0 if unknown."""
    sizes = [value for value in (*args, kwargs.get("size")) if isinstance(value, (list, tuple, torch.Size))]
    return math.prod(sizes[0]) if sizes and all(isinstance(n, int) for n in sizes[0]) else 0


def count_operations(base: str, args: Any, tensors: list[Tensor]) -> float:
    """Return the floating point operations of a matrix operator; a multiply-add counts as two.

    >>> count_operations("mm", (), [torch.empty(2, 3), torch.empty(3, 5)])
    60.0
    """
    if base in ("convolution", "convolution_backward"):
        return _count_convolution(base, args)
    if "attention" in base and len(tensors) >= 3:
        backward = "backward" in base
        query, key = tensors[1:3] if backward else tensors[:2]
        return (10.0 if backward else 4.0) * query.numel() * key.shape[-2]
    matrices = [tensor for tensor in tensors if tensor.dim() >= 2]
    if base.startswith(("mm", "bmm", "addmm", "baddbmm", "addbmm", "_addmm", "_scaled_mm", "_grouped_mm")):
        return 2.0 * matrices[-2].numel() * matrices[-1].shape[-1] if len(matrices) > 1 else 0.0
    if any(word in base for word in ("rnn", "lstm", "gru")) and tensors:
        return (
            2.0
            * sum(tensor.numel() for tensor in matrices[1:])
            * tensors[0].numel()
            / max(1, tensors[0].shape[-1])
        )
    return 2.0 * sum(tensor.numel() * tensor.shape[-1] for tensor in matrices)


def _count_convolution(base: str, args: Any) -> float:
    backward = base == "convolution_backward"
    image, weight = args[1:3] if backward else args[:2]
    stride, transposed = (args[4], args[7]) if backward else (args[3], args[6])
    positions = image.numel() / max(1, image.shape[1])
    if not transposed:
        positions /= math.prod(stride) if len(stride) == image.dim() - 2 else stride[0] ** (image.dim() - 2)
    return 2.0 * positions * weight.numel() * (2 if backward else 1)
