"""Reads of tensors by the host that are no operators: numpy, lists, DLPack, files."""

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
from gapless.emulation.dry.guess_table import dense_part
from gapless.emulation.dry.guesses.guess import Guess
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import requested_at
from gapless.torch_internals import place

Tensor = torch.Tensor
Handler = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
_MAX_FRAMES = 6
"""Frames searched for safetensors above a call: it calls directly."""
_MAX_SAVED_BYTES = 1 << 20
"""Bytes of a tensor up to which values are made up for a file; larger ones are left out."""


def make_handlers(values: Any, existing: dict[Any, Handler]) -> dict[Any, Handler]:
    """Return handlers for calls that read values, which go on to the `existing` ones."""
    lookers: list[Any] = [
        Tensor.numpy,
        Tensor.tolist,
        Tensor.__repr__,
        Tensor.__dlpack__,
    ]
    real = [inspect.unwrap(function) for function in lookers]  # the keys of the function mode
    reading = {function: _reading_handler(values, existing.get(function)) for function in real}
    pointer = inspect.unwrap(Tensor.data_ptr)
    return {**reading, pointer: _pointer_handler(values, existing.get(pointer))}


def _pointer_handler(values: Any, otherwise: Handler | None) -> Handler:
    """Return a handler of `data_ptr`: safetensors writes the bytes at an address, others only compare it."""

    def handler(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        record = values.record_of(args[0])
        lacks = record is not None and not record.filled and _is_called_by_safetensors()
        lacks = lacks and (args[0].nbytes > _MAX_SAVED_BYTES or not values.fill(args[0]))
        address = func(*args, **kwargs) if otherwise is None else otherwise(mode, func, args, kwargs)
        if not lacks:
            return address
        values.core.note(_ZEROS_NOTE.format("safetensors"))
        return filling.address_of_zeros(args[0].nbytes)

    return handler


def _is_called_by_safetensors() -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "safetensors.torch":
            return "bytes" in frame.f_code.co_name or "ndarray" in frame.f_code.co_name
        frame = frame.f_back
    return False


def _reading_handler(values: Any, otherwise: Handler | None) -> Handler:
    def handler(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        prepare_read(values, args[0], getattr(func, "__name__", "a copy"))
        return func(*args, **kwargs) if otherwise is None else otherwise(mode, func, args, kwargs)

    return handler


def prepare_read(values: Any, tensor: Tensor, how: str) -> None:
    """Make up values of `tensor` before the host reads them, or note that it is too large."""
    record: Guess | None = values.record_of(tensor)
    if record is None or tensor.is_meta:
        return
    if record.filled:
        if values.placement.state_of(tensor) >= 0:  # else it was counted when it came to the host
            values.reads.values(record, tensor.numel())
        return
    if how == "__repr__":
        values.fill(tensor)
        return
    if record.exact and not record.mean and tensor.untyped_storage().nbytes() > filling.MAX_FILLED_BYTES:
        values.forget(tensor)  # memory of that size is fresh, and reads as zeros until it is written
    elif values.fill(tensor):
        if not record.exact and not record.filled:
            values.reads.values(record, tensor.numel())
    else:
        values.core.note(
            f"{how.strip('_')} of {tensor.nbytes / 2**20:.0f} MB without values returns whatever is in "
            f"memory{requested_at()}, usually zeros: values computed from it are not the script's"
        )


def install(values: Any, patches: Patches) -> None:
    """Patch torch to write files without missing values, and to map files that it loads."""
    real: Any = torch_internals.FileWriter
    mapped: set[str] = set()

    def lacks(storage: Any) -> bool:
        record = values.records.get(storage._cdata)
        return record is not None and not record.filled

    def readable(data: Any, by: str) -> Any:
        """Return what to write for `data`: zeros if it has no values, as its memory may hold anything."""
        if not isinstance(data, torch.UntypedStorage) or not lacks(data):
            return data
        values.core.races.check_storage_read(data, by)
        values.core.note(_ZEROS_NOTE.format(by))
        return filling.zero_storage(data.nbytes())

    class FileWriter(real):  # type: ignore[misc]
        """Leaves holes in the file for missing values, which take no disk space and read as zeros."""

        def __init__(self, file: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(file, str) and os.path.realpath(file) in mapped:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.realpath(file))  # a mapped file keeps its content
            super().__init__(file, *args, **kwargs)
            self._holes = isinstance(file, str) and hasattr(self, "write_record_metadata")

        def write_record(self, name: str, data: Any, nbytes: int) -> None:
            if (
                isinstance(data, torch.UntypedStorage)
                and self._holes
                and nbytes > _MAX_SAVED_BYTES
                and lacks(data)
            ):
                values.core.note(_HOLES_NOTE)
                self.write_record_metadata(name, nbytes)
            else:
                super().write_record(name, readable(data, "torch.save"), nbytes)

    write_file = torch_internals.write_storage_to_file

    def written(storage: Any, *args: Any) -> Any:
        return write_file(readable(storage, "pickle"), *args)

    patches.set(*place("FileWriter"), FileWriter)
    patches.set(*place("write_storage_to_file"), written)
    patches.set(Tensor, "__reduce_ex__", _reduce_with_values(values, Tensor.__reduce_ex__))
    load = _make_mapping_load(torch.load, mapped)
    for module in (torch, torch.serialization):
        patches.set(module, "load", load)


def _reduce_with_values(values: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return `__reduce_ex__` that makes up values of small tensors: writers of bytes do not know the type."""

    @functools.wraps(real)
    def reduce_ex(tensor: Any, protocol: Any) -> Any:
        if (
            values.record_of(tensor) is not None
            and dense_part(tensor).untyped_storage().nbytes() <= _MAX_SAVED_BYTES
        ):
            values.fill(tensor)
        return real(tensor, protocol)

    return reduce_ex


def _make_mapping_load(real: Callable[..., Any], mapped: set[str]) -> Callable[..., Any]:
    """Return `torch.load` that maps files, unless the script sets ``mmap``, and adds them to `mapped`.

    Mapped files take no memory until read; writing one again must not change loaded tensors.
    """

    @functools.wraps(real)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mmap") is None and isinstance(f, (str, os.PathLike)) and _is_zip_archive(f):
            kwargs["mmap"] = True
            mapped.add(os.path.realpath(f))
        return real(f, *args, **kwargs)

    return load


def _is_zip_archive(file: str | os.PathLike[str]) -> bool:
    """Whether `file` is a zip archive, which can be mapped; False if it cannot be read."""
    try:
        with open(file, "rb") as opened:
            return opened.read(4) == b"PK\x03\x04"
    except OSError:
        return False


_ZEROS_NOTE = (
    "{} wrote zeros for tensors without values in a dry run: the file has its full length; do not use it "
    "as a checkpoint"
)
_HOLES_NOTE = (
    "torch.save wrote no data for tensors without values in a dry run: the file has its full length, takes "
    "no disk space and reads as zeros; do not use it as a checkpoint"
)
