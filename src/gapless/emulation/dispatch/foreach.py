"""Group tensors by emulated device; C++ would group by the storages' own device, the CPU."""

from __future__ import annotations

from typing import Any

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import DisableTorchFunction, place


def install(core: EmulationCore, patches: Patches) -> None:
    """Make optimizers and gradient clipping group by emulated device and dtype."""

    def group(tensorlistlist: Any, with_indices: bool = False) -> dict[Any, Any]:
        lists = [list(tensors) for tensors in tensorlistlist]
        groups: dict[Any, Any] = {}
        with DisableTorchFunction():  # C++ reads them without torch functions, too
            keys = [(leader.device, leader.dtype) for leader in lists[0]]
        for position, key in enumerate(keys):
            columns, indices = groups.setdefault(key, ([[] for _ in lists], []))
            for column, tensors in zip(columns, lists, strict=True):
                if tensors:  # a list may be empty: a state that is not kept
                    column.append(tensors[position])
            if with_indices:
                indices.append(position)
        return groups

    patches.set_everywhere(*place("group_tensors"), group)
