"""What a call to an operator is like, before it is decided whether it is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless import trees
from gapless.emulation.dry.guesses.made import is_whole
from gapless.emulation.dry.kinds import Kind
from gapless.emulation.kernels import halves
from gapless.torch_internals import DispatchModeKey, dispatch_mode_of

Tensor = torch.Tensor
Compute = Callable[[int, Any, dict[str, Any]], Any]


def computing(plan: Any) -> Compute:
    """What computes the operator of `plan` as a run with values does."""
    call, run, wide = plan.call, plan.run, plan.wide

    def compute(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if wide is not None and halves.has_slow_tensor(args):
            return wide(args, kwargs)
        return call(*args, **kwargs) if run is None else run(index, args, kwargs)

    return compute


def passes(tensors: list[Tensor], kwargs: dict[str, Any]) -> bool:
    """Whether a call is nobody's business: of fake tensors, or of tensors that have no data anyway."""
    if dispatch_mode_of(DispatchModeKey.FAKE) is not None:
        return True
    device = kwargs.get("device")
    return (device is not None and device.type == "meta") or any(one.is_meta for one in tensors)


def packed(kind: type | None, outs: list[Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """The results `outs` in the container `kind`, with the arguments whose positions stand for them."""
    given: list[Tensor] | None = None
    for n, one in enumerate(outs):
        if type(one) is tuple:
            outs[n] = one[0]
        elif type(one) is int:
            given = list(trees.tensors((args, kwargs))) if given is None else given
            outs[n] = given[one]
    if kind is None:
        return outs[0]
    return outs if kind is list else tuple(outs)


def set_whole(kind: Kind, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor whose storage gets other values as a whole, whatever was in it."""
    target = args[0] if kind.sets and args else None
    return target if isinstance(target, Tensor) and is_whole(target) else None


def about_arguments(error: Exception) -> bool:
    """Whether it is the arguments that are wrong, and not that they have no values."""
    words = str(error).lower()
    return not any(word in words for word in ("meta", "data-dependent", "data dependent", "fake"))
