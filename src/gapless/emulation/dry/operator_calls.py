"""Properties of an operator's call that decide whether it is computed, and packing of its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.dry.guesses.rules import is_whole
from gapless.emulation.dry.kinds import OperatorKind
from gapless.emulation.kernels import halves
from gapless.torch_internals import DispatchModeKey, dispatch_mode_of

Tensor = torch.Tensor
Compute = Callable[[int, Any, dict[str, Any]], Any]


def computation_of(plan: Any) -> Compute:
    """Return the function that computes the operator of `plan` as a run with values does."""
    call, run, wide = plan.call, plan.run, plan.wide

    def compute(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if wide is not None and halves.has_slow_tensor(args):
            return wide(args, kwargs)
        return call(*args, **kwargs) if run is None else run(index, args, kwargs)

    return compute


def has_no_data(tensors: list[Tensor], kwargs: dict[str, Any]) -> bool:
    """Whether a call has no data in any case: fake or meta tensors."""
    if dispatch_mode_of(DispatchModeKey.FAKE) is not None:
        return True
    device = kwargs.get("device")
    return (device is not None and device.type == "meta") or any(tensor.is_meta for tensor in tensors)


def pack_results(kind: type | None, outs: list[Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Return `outs` in the container `kind`; an int in it is replaced by the argument at that position."""
    tensors: list[Tensor] | None = None
    for n, item in enumerate(outs):
        if type(item) is tuple:
            outs[n] = item[0]
        elif type(item) is int:
            tensors = list(trees.tensors((args, kwargs))) if tensors is None else tensors
            outs[n] = tensors[item]
    if kind is None:
        return outs[0]
    return outs if kind is list else tuple(outs)


def overwritten_tensor(kind: OperatorKind, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """Return the tensor whose whole storage the operator overwrites, if any."""
    target = args[0] if kind.sets and args else None
    return target if isinstance(target, Tensor) and is_whole(target) else None


def is_argument_error(error: Exception) -> bool:
    """Whether the error is about wrong arguments, not about missing values."""
    words = str(error).lower()
    return not any(word in words for word in ("meta", "data-dependent", "data dependent", "fake"))
