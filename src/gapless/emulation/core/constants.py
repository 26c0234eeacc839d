"""Constants of compiled code: what it makes on the host and uses on the GPU, the compiler makes on the GPU.

Inductor moves `torch.arange(n).to(x.device)` there, with what is computed from it, where no input, no random
number and no result of the graph is involved on the host. So nothing is copied then, and nobody waits.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless import trees
from gapless.emulation.support.local import local

_STRIDED = torch.strided


def made(plan: Any, args: Any, kwargs: Any, out: Any) -> None:
    """An operator of compiled code has run on the host: it gives a constant if all that it takes is one."""
    known = local.constants
    if known is None or plan.draws or plan.random:
        return
    taken = [one for one in trees.tensors((args, kwargs)) if one.layout is _STRIDED]
    given = {one.untyped_storage()._cdata for one in taken}
    if not given and not plan.makes:
        return
    if known.keys() >= given:
        for one in trees.tensors(out):
            storage = one.untyped_storage()
            known[storage._cdata] = storage  # which keeps it, and so its number
    else:
        for number in given:
            known.pop(number, None)


def holds(tensor: Any) -> bool:
    """Whether `tensor` is a constant of the compiled code that runs."""
    known = local.constants
    if not known or type(tensor) is not torch.Tensor or tensor.layout is not _STRIDED:
        return False
    return tensor.untyped_storage()._cdata in known
