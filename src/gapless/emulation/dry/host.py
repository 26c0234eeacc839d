"""The host's ways to the values of a tensor that no operator shows: numpy, lists, DLPack, files."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from gapless import torch_internals
from gapless.emulation.dry import filling
from gapless.emulation.dry.guesses.guess import Guess
from gapless.emulation.dry.table import stored
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import requested_at
from gapless.torch_internals import place

Tensor = torch.Tensor
Handler = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
_NEAR = 6
"""Frames between a call and the mode that sees it, at most."""
_SMALL = 1 << 20
"""Bytes of a tensor up to which values are made up to be saved."""


def handlers(values: Any, others: dict[Any, Handler]) -> dict[Any, Handler]:
    """Handlers for what looks at values, besides those that there are in `others`."""
    lookers: list[Any] = [
        Tensor.numpy,
        Tensor.tolist,
        Tensor.__repr__,
        Tensor.__dlpack__,
    ]
    real = [inspect.unwrap(function) for function in lookers]  # as the function mode is asked for them
    found = {function: _looked(values, others.get(function)) for function in real}
    pointer = inspect.unwrap(Tensor.data_ptr)
    return {**found, pointer: _pointed(values, others.get(pointer))}


def _pointed(values: Any, otherwise: Handler | None) -> Handler:
    """safetensors writes what it finds at an address; others ask for one to compare it."""

    def handler(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        record = values.of(args[0])
        lacks = record is not None and not record.filled and _writes_bytes()
        lacks = lacks and (args[0].nbytes > _SMALL or not values.fill(args[0]))
        found = func(*args, **kwargs) if otherwise is None else otherwise(mode, func, args, kwargs)
        if not lacks:
            return found
        values.core.note(_WRITTEN.format("safetensors"))
        return filling.address_of_zeros(args[0].nbytes)

    return handler


def _writes_bytes() -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "safetensors.torch":
            return "bytes" in frame.f_code.co_name or "ndarray" in frame.f_code.co_name
        frame = frame.f_back
    return False


def _looked(values: Any, otherwise: Handler | None) -> Handler:
    def handler(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shown(values, args[0], getattr(func, "__name__", "a copy"))
        return func(*args, **kwargs) if otherwise is None else otherwise(mode, func, args, kwargs)

    return handler


def shown(values: Any, tensor: Tensor, how: str) -> None:
    """Somebody looks at the values of `tensor`: they are made up if that is no longer too much."""
    record: Guess | None = values.of(tensor)
    if record is None or tensor.is_meta:
        return
    if record.filled:
        if values.placement.state_of(tensor) >= 0:  # else it was told when it came to the host
            values.reads.values(record, tensor.numel())
        return
    if how == "__repr__":
        values.fill(tensor)
        return
    if record.exact and not record.mean and tensor.untyped_storage().nbytes() > filling.MOST:
        values.forget(tensor)  # memory of that size is fresh, and reads as zeros until somebody writes there
    elif values.fill(tensor):
        if not record.exact and not record.filled:
            values.reads.values(record, tensor.numel())
    else:
        values.core.note(
            f"{how.strip('_')} of {tensor.nbytes / 2**20:.0f} MB without values returns whatever is in "
            f"memory{requested_at()}, usually zeros: values computed from it are not the script's"
        )


def install(values: Any, patches: Patches) -> None:
    """Files are written without the bytes of values that are not there, and mapped where they are loaded.

    Until `patches` are undone.
    """
    real: Any = torch_internals.FileWriter
    mapped: set[str] = set()

    def lacks(storage: Any) -> bool:
        record = values.records.get(storage._cdata)
        return record is not None and not record.filled

    def readable(data: Any, by: str) -> Any:
        """What is to be written for `data`: zeros for memory without values, which may hold anything."""
        if not isinstance(data, torch.UntypedStorage) or not lacks(data):
            return data
        values.core.races.check_storage_read(data, by)
        values.core.note(_WRITTEN.format(by))
        return filling.zeros(data.nbytes())

    class FileWriter(real):  # type: ignore[misc]
        """Leaves holes in the file, which take no room on disk and read as zeros."""

        def __init__(self, file: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(file, str) and os.path.realpath(file) in mapped:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.realpath(file))  # what is mapped stays as it was loaded
            super().__init__(file, *args, **kwargs)
            self._holes = isinstance(file, str) and hasattr(self, "write_record_metadata")

        def write_record(self, name: str, data: Any, nbytes: int) -> None:
            if isinstance(data, torch.UntypedStorage) and self._holes and nbytes > _SMALL and lacks(data):
                values.core.note(_SAVED)
                self.write_record_metadata(name, nbytes)
            else:
                super().write_record(name, readable(data, "torch.save"), nbytes)

    write_file = torch_internals.write_storage_to_file

    def written(storage: Any, *args: Any) -> Any:
        return write_file(readable(storage, "pickle"), *args)

    patches.set(*place("FileWriter"), FileWriter)
    patches.set(*place("write_storage_to_file"), written)
    patches.set(Tensor, "__reduce_ex__", _reducing(values, Tensor.__reduce_ex__))
    load = _mapping(torch.load, mapped)
    for module in (torch, torch.serialization):
        patches.set(module, "load", load)


def _reducing(values: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    """What is small gets values when it is pickled: whoever writes its bytes does not know their type."""

    @functools.wraps(real)
    def reduce_ex(tensor: Any, protocol: Any) -> Any:
        if values.of(tensor) is not None and stored(tensor).untyped_storage().nbytes() <= _SMALL:
            values.fill(tensor)
        return real(tensor, protocol)

    return reduce_ex


def _mapping(real: Callable[..., Any], mapped: set[str]) -> Callable[..., Any]:
    """`torch.load` that takes no memory for what nobody reads, unless the script says how it is to load.

    The files are remembered in `mapped`: one that is written again must not change what was loaded.
    """

    @functools.wraps(real)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mmap") is None and isinstance(f, (str, os.PathLike)) and _is_archive(f):
            kwargs["mmap"] = True
            mapped.add(os.path.realpath(f))
        return real(f, *args, **kwargs)

    return load


def _is_archive(file: str | os.PathLike[str]) -> bool:
    """Whether it is of a kind that can be mapped; what cannot be read is the real function's to tell."""
    try:
        with open(file, "rb") as opened:
            return opened.read(4) == b"PK\x03\x04"
    except OSError:
        return False


_WRITTEN = (
    "{} wrote zeros for tensors without values in a dry run: the file has its full length; do not use it "
    "as a checkpoint"
)
_SAVED = (
    "torch.save wrote no data for tensors without values in a dry run: the file has its full length, takes "
    "no disk space and reads as zeros; do not use it as a checkpoint"
)
