"""How much a run computes before it goes on without values: decided by what operators cost, not by a clock.

A run that may leave values out begins with all of them. What its operators would cost on a usual core is
reckoned from their sizes, so that the same script decides in the same way each time. One operator that costs
too much, or many between two steps, and from there on it is a dry run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.core import Core
from gapless.emulation.dry.kinds import Kind
from gapless.emulation.support import stacks
from gapless.model.assumption import Switch
from gapless.model.source import user_line

Tensor = torch.Tensor
SMALL = 1 << 11
"""Elements of arguments that no operator takes long for."""
ALONE = 0.25
"""Seconds that one operator on the device may take."""
TOGETHER = 1.0
"""Seconds that operators may take from the beginning to the first step, and from there to the second one."""
WATCHED = 2
"""Steps for which that is reckoned; what has values until then keeps them."""
# Rates of one usual core: an order of magnitude is enough, as limits are.
_OPERATION = 1 / 30e9
_ELEMENT = 1e-9
_DRAWN = 8e-9
_SORTED = 60e-9
_SORTS = frozenset(
    {"sort", "argsort", "_unique2", "unique_dim", "kthvalue", "median", "nanmedian", "mode", "topk"}
)


LITTLE, LITTLE_HEAVY = int(ALONE / _SORTED), 1 << 18
"""Elements of which none, and no product of matrices of which, takes as long as `ALONE`."""


class Budget:
    """What is left to be computed; `switched` is called with a `Switch` once it is used up.

    One that is `endless` never is.
    """

    def __init__(self, core: Core, switched: Callable[[Switch], None] | None = None) -> None:
        self.core = core
        self.switched: Callable[[Switch], None] = switched or (lambda switch: None)
        self.endless = False
        self._spent = 0.0
        self._tick = -1

    def exceeded(self, kind: Kind, index: int, args: Any, kwargs: dict[str, Any]) -> Switch | None:
        """Whether the operator is too much to be computed, by itself or with those before it."""
        if self.endless:
            return None
        given = list(trees.tensors((args, kwargs)))
        on_device = index >= 0 or any(self.core.placement.state_of(one) >= 0 for one in given)
        if not (on_device or kind.afresh):
            return None  # what the script computes from its data is computed in any run
        taken = seconds(kind, args, kwargs, given)
        tick = self.core.recorder.tick
        if tick != self._tick:
            self._tick, self._spent = tick, 0.0
        self._spent += taken
        alone = on_device and taken > ALONE
        if not alone and (self._spent <= TOGETHER or tick >= WATCHED):
            return None
        return Switch(
            line=user_line(stacks.resolve(stacks.capture())),
            operator=kind.name,
            seconds=taken if alone else self._spent,
            alone=alone,
        )


def seconds(kind: Kind, args: Any, kwargs: dict[str, Any], given: list[Tensor]) -> float:
    """What computing the operator takes on a usual core, roughly."""
    elements = sum(one.numel() for one in given)
    if kind.makes and not given:
        elements = _asked(args, kwargs)
    each = _DRAWN if kind.draws else _SORTED if kind.base in _SORTS else _ELEMENT
    found = elements * each
    return found + operations(kind.base, args, given) * _OPERATION if kind.heavy else found


def _asked(args: Any, kwargs: dict[str, Any]) -> int:
    """How many elements a factory is asked for."""
    sizes = [one for one in (*args, kwargs.get("size")) if isinstance(one, (list, tuple, torch.Size))]
    return math.prod(sizes[0]) if sizes and all(isinstance(n, int) for n in sizes[0]) else 0


def operations(base: str, args: Any, given: list[Tensor]) -> float:
    """Floating point operations of one that multiplies matrices, a multiplication and an addition being two.

    >>> operations("mm", (), [torch.empty(2, 3), torch.empty(3, 5)])
    60.0
    """
    if base in ("convolution", "convolution_backward"):
        return _convolution(base, args)
    if "attention" in base and len(given) >= 3:
        backward = "backward" in base
        query, key = given[1:3] if backward else given[:2]
        return (10.0 if backward else 4.0) * query.numel() * key.shape[-2]
    matrices = [one for one in given if one.dim() >= 2]
    if base.startswith(("mm", "bmm", "addmm", "baddbmm", "addbmm", "_addmm", "_scaled_mm", "_grouped_mm")):
        return 2.0 * matrices[-2].numel() * matrices[-1].shape[-1] if len(matrices) > 1 else 0.0
    if any(word in base for word in ("rnn", "lstm", "gru")) and given:
        return 2.0 * sum(one.numel() for one in matrices[1:]) * given[0].numel() / max(1, given[0].shape[-1])
    return 2.0 * sum(one.numel() * one.shape[-1] for one in matrices)


def _convolution(base: str, args: Any) -> float:
    backward = base == "convolution_backward"
    image, weight = args[1:3] if backward else args[:2]
    stride, transposed = (args[4], args[7]) if backward else (args[3], args[6])
    positions = image.numel() / max(1, image.shape[1])
    if not transposed:
        positions /= math.prod(stride) if len(stride) == image.dim() - 2 else stride[0] ** (image.dim() - 2)
    return 2.0 * positions * weight.numel() * (2 if backward else 1)
