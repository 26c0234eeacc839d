"""Objects that only another rank has: lists of them stay as they are, and the report says so."""

from __future__ import annotations

import inspect
import pickle
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from gapless.emulation.core.core import Core
from gapless.emulation.distributed.answers import expected
from gapless.emulation.support import stacks
from gapless.emulation.support.patches import Patches

c10d = dist.distributed_c10d
known: deque[Any] = deque()
"""What the next lists from another rank hold, where that is known."""


def install(core: Core, patches: Patches) -> None:
    """Have this rank receive its own objects where another one would send its, until `patches` are undone."""
    for name, messages in (
        ("broadcast_object_list", _list),
        ("recv_object_list", _list),
        ("scatter_object_list", _part),
    ):
        patches.set_everywhere(c10d, name, _receiving(core, getattr(c10d, name), messages))


def _receiving(core: Core, real: Any, messages: Callable[[dict[str, Any]], list[torch.Tensor]]) -> Any:
    signature = inspect.signature(real)

    @wraps(real)
    def receive(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        source = _source(given.arguments)
        if known:
            given.arguments["object_list"] = [known.popleft()]
        elif source != dist.get_rank():
            line = next((one for one in stacks.resolve(stacks.capture()) if one.is_user), None)
            place = f"{line.where}: " if line is not None else ""
            core.note(
                f"{place}what rank {source} sends here is an object that is not known: none is received"
            )
        if source != dist.get_rank():
            expected.extend(messages(given.arguments))
        try:
            return real(*args, **kwargs)
        finally:
            expected.clear()

    return receive


def _source(given: dict[str, Any]) -> int:
    """The rank that the objects come from."""
    inside = given.get("group_src")
    if inside is not None:
        group: Any = given["group"] or dist.group.WORLD
        return dist.get_global_rank(group, inside)
    return int(given.get("src") or 0)


def _list(given: dict[str, Any]) -> list[torch.Tensor]:
    """Sizes and bytes of a list."""
    each = [pickle.dumps(one) for one in given["object_list"]]
    return [torch.tensor([len(one) for one in each]), _tensor(b"".join(each))]


def _part(given: dict[str, Any]) -> list[torch.Tensor]:
    """The largest size, the bytes and their number."""
    data = pickle.dumps(given["scatter_object_output_list"][0])
    return [torch.tensor([len(data)]), _tensor(data), torch.tensor([len(data)])]


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
