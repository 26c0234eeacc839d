"""Collectives of Python objects: objects of another rank are not received, and the report says so."""

from __future__ import annotations

import inspect
import pickle
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.distributed.answers import expected
from gapless.emulation.support import stacks
from gapless.emulation.support.patches import Patches

c10d = dist.distributed_c10d
known_objects: deque[Any] = deque()
"""The next objects of another rank, if known."""


def install(core: EmulationCore, patches: Patches) -> None:
    """Let this rank receive its own objects in place of another's, until `patches` are undone."""
    for name, messages in (
        ("broadcast_object_list", _list_messages),
        ("recv_object_list", _list_messages),
        ("scatter_object_list", _scatter_messages),
    ):
        patches.set_everywhere(c10d, name, _receive_own(core, getattr(c10d, name), messages))


def _receive_own(
    core: EmulationCore, real: Any, messages: Callable[[dict[str, Any]], list[torch.Tensor]]
) -> Any:
    """Return `real` with received objects replaced by this rank's own, or by known ones."""
    signature = inspect.signature(real)

    @wraps(real)
    def receive(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        source = _source(bound.arguments)
        if known_objects:
            bound.arguments["object_list"] = [known_objects.popleft()]
        elif source != dist.get_rank():
            line = next((frame for frame in stacks.resolve(stacks.capture()) if frame.is_user), None)
            place = f"{line.where}: " if line is not None else ""
            core.note(
                f"{place}what rank {source} sends here is an object that is not known: none is received"
            )
        if source != dist.get_rank():
            expected.extend(messages(bound.arguments))
        try:
            return real(*args, **kwargs)
        finally:
            expected.clear()

    return receive


def _source(arguments: dict[str, Any]) -> int:
    """Return the rank that the objects come from."""
    inside = arguments.get("group_src")
    if inside is not None:
        group: Any = arguments["group"] or dist.group.WORLD
        return dist.get_global_rank(group, inside)
    return int(arguments.get("src") or 0)


def _list_messages(arguments: dict[str, Any]) -> list[torch.Tensor]:
    """Return the messages of a list: sizes, and bytes."""
    each = [pickle.dumps(data) for data in arguments["object_list"]]
    return [torch.tensor([len(data) for data in each]), _to_tensor(b"".join(each))]


def _scatter_messages(arguments: dict[str, Any]) -> list[torch.Tensor]:
    """Return the messages of a scattered object: the largest size, the bytes and their number."""
    data = pickle.dumps(arguments["scatter_object_output_list"][0])
    return [torch.tensor([len(data)]), _to_tensor(data), torch.tensor([len(data)])]


def _to_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
