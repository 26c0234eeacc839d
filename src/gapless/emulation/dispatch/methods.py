"""Handle tensor methods, and functions that create tensors from values, where the function mode is off.

It is off in bodies of custom operators, of ``__torch_dispatch__`` and ``__torch_function__``, and wherever
torch functions are disabled. Moves and reads by operators are still seen by the dispatch mode there; the
methods here reach no operator, because the values are on the host already.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.dispatch.functions import FunctionMode
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import DispatchModeKey, device_constructors, dispatch_mode_of

Tensor = torch.Tensor
has_override = (
    torch.overrides.has_torch_function_unary
)  # whether a mode is on, or the tensor is of a class that asks
READS = (
    "tolist", "numpy", "__repr__", "item", "is_nonzero", "__bool__", "__int__", "__float__", "__complex__",
    "__index__",
)  # fmt: skip
METHODS = (*READS, "cpu", "cuda", "to", "type", "type_as", "new", "new_tensor")
"""Methods whose waits depend on a tensor's placement and that reach no operator."""
FUNCTIONS = ("tensor", "as_tensor")
_OURS = ("gapless.emulation.", "gapless.kernels.")
_FOR_THE_SCRIPT = "gapless.emulation.cuda_api.tensor_types"  # creates tensors from the script's values


def install(core: EmulationCore, patches: Patches) -> None:
    """Call the function mode's handlers for these methods and functions where the mode itself is off."""
    mode = FunctionMode(core)
    device_constructors()  # caches the unpatched functions for `torch.set_default_device`
    for name in METHODS:
        patches.set(Tensor, name, _asking(mode, getattr(Tensor, name)))
    for name in FUNCTIONS:
        patches.set_everywhere(torch, name, _asking(mode, getattr(torch, name)))


def _asking(mode: FunctionMode, function: Any) -> Any:
    handler = mode.handlers[function]
    reads = function.__name__ in READS

    @functools.wraps(function)
    def ask(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else None
        if has_override(first) or not mode.core.enabled or (reads and local.quiet) or _not_the_script():
            return function(*args, **kwargs)
        return handler(mode, function, args, kwargs)

    return ask


def _not_the_script() -> bool:
    """Whether the caller is the emulation itself, or a fake tensor mode is on."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    ours = caller.startswith(_OURS) and caller != _FOR_THE_SCRIPT
    return ours or dispatch_mode_of(DispatchModeKey.FAKE) is not None
