"""What is changed of a script from outside, to see whether it would fit: ``gapless check --with CHANGE``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.checkpoint import checkpoint

from gapless.emulation.support.patches import Patches
from gapless.errors import UsageError

CHECKPOINT, SET_TO_NONE = "checkpoint", "set_to_none"


def parse(texts: Sequence[str]) -> tuple[frozenset[str], bool]:
    """The classes whose forward pass is to be checkpointed, and whether gradients are set to None.

    >>> parse(["checkpoint=Block"])
    (frozenset({'Block'}), False)

    Raises:
        UsageError: it is no such change.
    """
    classes: set[str] = set()
    none = False
    for text in texts:
        what, _, name = text.partition("=")
        if what == CHECKPOINT and name.isidentifier():
            classes.add(name)
        elif text == SET_TO_NONE:
            none = True
        else:
            raise UsageError(f"--with {text!r} is not a known change: use checkpoint=CLASS or set_to_none")
    return frozenset(classes), none


def install(texts: Sequence[str]) -> Callable[[], None]:
    """Make the changes `texts` to whatever the script builds from now on; what is returned undoes them."""
    classes, none = parse(texts)
    patches = Patches()
    handles = []
    if classes:
        handles.append(register_module_module_registration_hook(partial(_registered, classes)))
    if none:
        for owner in (torch.optim.Optimizer, nn.Module):
            patches.set(owner, "zero_grad", _to_none(owner.zero_grad))

    def undo() -> None:
        patches.undo()
        for handle in handles:
            handle.remove()

    return undo


def _registered(classes: frozenset[str], parent: nn.Module, name: str, module: Any) -> None:
    """A module becomes part of another: from now on its forward pass is checkpointed, if it is of these."""
    if isinstance(module, nn.Module) and type(module).__name__ in classes and "forward" not in vars(module):
        module.forward = partial(_checkpointed, module, module.forward)


def _checkpointed(module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not (module.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _to_none(real: Any) -> Any:
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        real(self, set_to_none=True)

    return zero_grad
