"""Constants of compiled code: created on the host, but the compiler creates them on the GPU.

Inductor moves `torch.arange(n).to(x.device)` there, with what is computed from it, if no input, no random
number and no result of the graph is involved on the host. Nothing is copied then, and nothing waits.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless import trees
from gapless.emulation.support.local import local

_STRIDED = torch.strided


def note_operator(plan: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Note that an operator of compiled code ran on the host: it gives a constant if it takes only
    constants."""
    constants = local.constants
    if constants is None or plan.draws or plan.random:
        return
    inputs = [tensor for tensor in trees.tensors((args, kwargs)) if tensor.layout is _STRIDED]
    input_addresses = {tensor.untyped_storage()._cdata for tensor in inputs}
    if not input_addresses and not plan.makes:
        return
    if constants.keys() >= input_addresses:
        for tensor in trees.tensors(out):
            storage = tensor.untyped_storage()
            constants[storage._cdata] = storage  # keeps it alive, and so its address
    else:
        for address in input_addresses:
            constants.pop(address, None)


def is_constant(tensor: Any) -> bool:
    """Whether `tensor` is a constant of the compiled code that runs."""
    constants = local.constants
    if not constants or type(tensor) is not torch.Tensor or tensor.layout is not _STRIDED:
        return False
    return tensor.untyped_storage()._cdata in constants
