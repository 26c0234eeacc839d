"""Answer a storage's device, and handle its creation, copies, moves, saving and sharing."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.core.transfers import count_copy
from gapless.emulation.dispatch.functions import as_device
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import HOST, PINNED
from gapless.torch_internals import DisableTorchFunction, FileWriter

Storage: Any = torch.UntypedStorage
_BETWEEN = b"\0"
"""Separates the two names in a handle; neither contains it."""
"""Separates the two names in a handle; neither contains it."""


def install(core: EmulationCore, patches: Patches) -> None:
    """Make storages use `core`'s placement, until `patches` are undone."""
    _install_answers(core, patches)
    _install_moves(core, patches)
    _install_saving(core, patches)
    _install_sharing(core, patches)


def _install_answers(core: EmulationCore, patches: Patches) -> None:
    where = core.placement.where
    cuda = [torch.device("cuda", index) for index in range(core.device_count)]
    real_device = Storage.device
    real_pinned = Storage.is_pinned

    def device(storage: Any) -> Any:
        index = where.get(storage._cdata, HOST)
        if index >= 0:
            return cuda[index]
        return real_device.__get__(storage) if hasattr(real_device, "__get__") else real_device

    def is_cuda(storage: Any) -> bool:
        return where.get(storage._cdata, HOST) >= 0

    def is_pinned(storage: Any, device: Any = "cuda") -> bool:
        return where.get(storage._cdata, HOST) == PINNED or (not is_cuda(storage) and real_pinned(storage))

    patches.set(Storage, "device", property(device))
    patches.set(Storage, "is_cuda", property(is_cuda))
    patches.set(Storage, "is_pinned", is_pinned)


def _install_moves(core: EmulationCore, patches: Patches) -> None:
    placement = core.placement
    real_new = Storage.__new__

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        wanted = None if device is None else as_device(device)
        if wanted is None or wanted.type != "cuda":
            option = {} if device is None else {"device": device}
            return real_new(cls, *args, **option, **kwargs)
        out = real_new(cls, *args, **kwargs)
        placement.put_storage(out, core.index_of(wanted))
        return out

    def move_storage(storage: Any, target: int, non_blocking: bool, call: str) -> Any:
        return _move(core, storage, target, non_blocking, call)

    def clone(storage: Any) -> Any:
        core.races.check_storage_read(storage, "UntypedStorage.clone")
        out = _copy_bytes(storage)
        placement.put_storage(out, placement.where.get(storage._cdata, HOST))
        return out

    def cpu(storage: Any) -> Any:
        return move_storage(storage, HOST, False, "UntypedStorage.cpu")

    def to_cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
        index = core.index_of(torch.device("cuda") if device is None else as_device(device))
        return move_storage(storage, index, non_blocking, "UntypedStorage.cuda")

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        return move_storage(storage, core.index_of(as_device(device)), non_blocking, "UntypedStorage.to")

    real_resize = Storage.resize_

    def resize(storage: Any, nbytes: int) -> Any:
        out = real_resize(storage, nbytes)
        if placement.update_size(storage):
            core.races.record_resize(storage)
        return out

    patches.set(Storage, "__new__", staticmethod(new))
    patches.set(Storage, "resize_", resize)
    for name, method in (("clone", clone), ("cpu", cpu), ("cuda", to_cuda), ("to", to)):
        patches.set(Storage, name, method)


def _move(core: EmulationCore, storage: Any, target: int, non_blocking: bool, call: str) -> Any:
    """Copy `storage` to `target` and count the copy; return `storage` itself if it is there already."""
    placement = core.placement
    source = placement.where.get(storage._cdata, HOST)
    if source == target or (source < 0 and target < 0):
        return storage
    size = storage.nbytes()
    asynchronous = count_copy(core, source, target, non_blocking=non_blocking, nbytes=size, call=call)
    out = _copy_bytes(storage)
    placement.put_storage(out, target)
    if size:
        source_bytes, target_bytes = _as_bytes(storage), _as_bytes(out)
        core.races.record_copy(
            source_bytes, target_bytes, source, target, asynchronous=asynchronous, action=call
        )
    return out


def _copy_bytes(storage: Any) -> Any:
    local.quiet += 1  # the caller counts it, or nothing crosses to the host
    try:
        return Storage(storage.nbytes()).copy_(storage, False)
    finally:
        local.quiet -= 1


def _as_bytes(storage: Any) -> torch.Tensor:
    """View a storage as a byte tensor, uncounted."""
    local.quiet += 1
    try:
        with DisableTorchFunction():
            return torch.empty(0, dtype=torch.uint8).set_(storage)
    finally:
        local.quiet -= 1


def _install_saving(core: EmulationCore, patches: Patches) -> None:
    """Report reads of storages by C++ file writers: a copy to them may still be running."""
    write_file, write_record = Storage._write_file, FileWriter.write_record

    def written(storage: Any, *args: Any) -> Any:
        core.races.check_storage_read(storage, "pickle")
        return write_file(storage, *args)

    def record_write(writer: Any, name: str, data: Any, *size: Any) -> Any:
        if isinstance(data, Storage):
            core.races.check_storage_read(data, "torch.save")
        return write_record(writer, name, data, *size)

    patches.set(Storage, "_write_file", written)
    patches.set(FileWriter, "write_record", record_write)


def _install_sharing(core: EmulationCore, patches: Patches) -> None:
    """Share device memory between processes (CUDA's IPC) as host shared memory.

    The shared memory's manager and file name take the place of CUDA's handle.
    """

    def share(storage: Any) -> tuple[Any, ...]:
        local.quiet += 1  # the device's memory stays where it is
        try:
            manager, name, size = storage._share_filename_cpu_()
        finally:
            local.quiet -= 1
        storage._shared_incref()  # until the other process has opened it
        handle = _BETWEEN.join((manager, name))
        return core.placement.where.get(storage._cdata, HOST), handle, size, 0, b"", 0, b"", False

    def open_shared(cls: Any, index: int, handle: bytes, size: int, *counters: object) -> Any:
        out = Storage._new_shared_filename_cpu(*handle.split(_BETWEEN), size)
        core.placement.put_storage(out, core.index_of(torch.device("cuda", index)))
        return out._shared_decref()

    patches.set(Storage, "_share_cuda_", share)
    patches.set(Storage, "_new_shared_cuda", classmethod(open_shared))
    patches.set(Storage, "_release_ipc_counter", classmethod(lambda cls, *counters, device=None: None))
