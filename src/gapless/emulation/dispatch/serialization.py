"""Keep placements in `torch.save` and `torch.load`, and count the waits of their copies."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.serialization

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.places import HOST

_PRIORITY = 5  # before the CPU's own entry at 10
_core: EmulationCore | None = None
_registered = False


def install(core: EmulationCore) -> None:
    """Tag device storages with ``cuda:N`` when saved, and place them when loaded."""
    global _core, _registered
    _core = core
    if not _registered:
        # torch cannot unregister a package: without an emulation both functions decline.
        torch.serialization.register_package(_PRIORITY, _tag, _deserialize)
        _registered = True


def uninstall() -> None:
    global _core
    _core = None


def _tag(storage: Any) -> str | None:
    if _core is None:
        return None
    index = _core.placement.where.get(storage._cdata, HOST)
    if index < 0:
        return None
    if _is_legacy():
        _core.wait("aten::_to_copy", "d2h", call="torch.save", detail="pageable", nbytes=storage.nbytes())
    return f"cuda:{index}"


def _is_legacy() -> bool:
    """Whether the legacy format is written: its copies to the host are not seen, those of zip are."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == torch.serialization.__file__:
        if frame.f_code.co_name == "_legacy_save":
            return True
        frame = frame.f_back
    return False


def _deserialize(storage: Any, location: str) -> Any:
    if _core is None or not location.startswith("cuda"):
        return None
    index = _core.index_of(torch.device(location))
    if not _core.placement.where.get(storage._cdata, HOST) >= 0:
        _core.wait("aten::_to_copy", "h2d", call="torch.load", detail="pageable", nbytes=storage.nbytes())
    memory = _core.placement.memory
    if memory is None:
        _core.placement.put_storage(storage, index)
        return storage
    memory.loading = True
    try:
        _core.placement.put_storage(storage, index)
    finally:
        memory.loading = False
    return storage
