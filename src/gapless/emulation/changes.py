"""Changes to a script for ``gapless check --with CHANGE``, to see whether it would fit in memory: checkpoint
the forward pass of chosen classes, set gradients to None."""

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
    """Return the classes whose forward pass is checkpointed, and whether gradients are set to None.

    >>> parse(["checkpoint=Block"])
    (frozenset({'Block'}), False)

    Raises:
        UsageError: a text is not a known change.
    """
    classes: set[str] = set()
    sets_to_none = False
    for text in texts:
        kind, _, name = text.partition("=")
        if kind == CHECKPOINT and name.isidentifier():
            classes.add(name)
        elif text == SET_TO_NONE:
            sets_to_none = True
        else:
            raise UsageError(f"--with {text!r} is not a known change: use checkpoint=CLASS or set_to_none")
    return frozenset(classes), sets_to_none


def install(texts: Sequence[str]) -> Callable[[], None]:
    """Apply the changes `texts` to modules and optimizers created from now on; return an undo function."""
    classes, sets_to_none = parse(texts)
    patches = Patches()
    handles = []
    if classes:
        handles.append(register_module_module_registration_hook(partial(_checkpoint_module, classes)))
    if sets_to_none:
        for owner in (torch.optim.Optimizer, nn.Module):
            patches.set(owner, "zero_grad", _always_to_none(owner.zero_grad))

    def undo() -> None:
        patches.undo()
        for handle in handles:
            handle.remove()

    return undo


def _checkpoint_module(classes: frozenset[str], parent: nn.Module, name: str, module: Any) -> None:
    """Checkpoint the forward pass of a module of one of `classes` when it becomes part of another module."""
    if isinstance(module, nn.Module) and type(module).__name__ in classes and "forward" not in vars(module):
        module.forward = partial(_run_with_checkpoint, module, module.forward)


def _run_with_checkpoint(module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not (module.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _always_to_none(real: Any) -> Any:
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        real(self, set_to_none=True)

    return zero_grad
