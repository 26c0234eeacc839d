"""Grouping of tensors by device, which C++ code would do by the storages' own device."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulate.core import Core
from gapless.emulate.patches import Patches
from gapless.torch_internals import place


def install(core: Core, patches: Patches) -> None:
    """Optimizers and gradient clipping group by emulated device and dtype."""

    def group(tensorlistlist: Any, with_indices: bool = False) -> dict[Any, Any]:
        lists = [list(tensors) for tensors in tensorlistlist]
        groups: dict[Any, Any] = {}
        for position, leader in enumerate(lists[0]):
            key = (leader.device, leader.dtype)
            columns, indices = groups.setdefault(key, ([[] for _ in lists], []))
            for column, tensors in zip(columns, lists, strict=True):
                if tensors:  # a list may be empty: that state is not kept
                    column.append(tensors[position])
            if with_indices:
                indices.append(position)
        return groups

    patches.set_everywhere(*place("group_tensors"), torch.no_grad()(group))
