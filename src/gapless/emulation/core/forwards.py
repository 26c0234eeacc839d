"""Mark the ends of forward passes: in inference nothing else separates iterations."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from gapless import trees
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.local import local


def install(core: EmulationCore) -> contextlib.ExitStack:
    """Mark the end of each outermost module call, as long as nothing is trained.

    Return a handle whose ``close()`` removes the hooks.
    """

    def enter(module: nn.Module, args: Any) -> None:
        local.modules += 1

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        local.modules = max(local.modules - 1, 0)
        if local.modules or not core.enabled or core.trained or core.recorder.differentiated:
            return
        if any(core.device_of(tensor) >= 0 for tensor in _first_tensors(out, args)):
            core.recorder.mark("forward", type(module).__name__, depth=1)

    # At each call of a compiled module torch would warn of these hooks, which are not the script's.
    warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
    hooks = contextlib.ExitStack()
    hooks.callback(register_module_forward_pre_hook(enter).remove)
    hooks.callback(register_module_forward_hook(leave, always_call=True).remove)
    return hooks


def _first_tensors(*values: Any) -> list[Any]:
    """Return the first tensor of each of `values`, which tells the device the module ran on."""
    firsts = (next(iter(trees.tensors(value)), None) for value in values)
    return [tensor for tensor in firsts if tensor is not None]
