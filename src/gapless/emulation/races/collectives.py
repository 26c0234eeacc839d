"""Asynchronous collectives: they run on NCCL's stream, and ``wait()`` orders the current stream after it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

from gapless import trees
from gapless.emulation.races.checker import Checker
from gapless.emulation.support.local import local
from gapless.emulation.support.places import HOST
from gapless.torch_internals import Work

Tensor = torch.Tensor
_OUTPUT_NAMES = ("output_tensors", "output_tensor", "output_lists", "outputs", "output", "out")
_FORWARDED_METHODS = ("get_future", "is_success", "exception", "result", "source_rank", "synchronize")
_recent: deque[Any] = deque(maxlen=64)
"""Recent works until waited for: C++ alone would not keep what Python adds to them alive."""


def reads_and_writes(name: str, values: dict[str, Any], rank: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that a collective reads and those that it writes."""
    tensors = {key: list(trees.tensors(value)) for key, value in values.items() if key != "timeout"}
    writes = [tensor for key in tensors if key in _OUTPUT_NAMES for tensor in tensors[key]]
    inputs = [tensor for key in tensors if key not in _OUTPUT_NAMES for tensor in tensors[key]]
    if writes:
        return inputs, writes
    root = values.get("root_rank")
    if name == "send" or (name == "broadcast_" and root == rank) or (name == "reduce_" and root != rank):
        return inputs, []
    return [], inputs


def track_collective(
    checker: Checker,
    name: str,
    values: dict[str, Any],
    group: Any,
    index: int,
    on_wait: Callable[[], None],
    work: Any,
) -> Any:
    """Record a collective on device `index` with `checker`; return a boxed work that replaces `work`.

    `on_wait` is called too when somebody waits for it.
    """
    asynchronous = bool(values.get("async_op", True)) and not local.coalescing
    if asynchronous and name not in ("send", "recv_"):
        checker.follow_all()
    if not checker.full or local.quiet:
        return work
    reads, writes = reads_and_writes(name, values, group.rank())
    if not asynchronous or not _from_python():
        checker.record_launch(f"c10d::{name}", reads, writes, index)
        return work
    awaited = checker.collective(f"c10d::{name}", reads, writes, index, id(group))

    def both() -> None:
        on_wait()
        awaited()

    return _watch_work(Work.unbox(work), both)


def _from_python() -> bool:
    """Whether Python called the collective: the waits of DistributedDataParallel's C++ cannot be observed."""
    if local.backward == HOST:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if frame.f_code.co_filename.endswith("distributed_c10d.py"):
            return True
        frame = frame.f_back
    return False


def _watch_work(work: Any, awaited: Callable[[], None]) -> Any:
    """Return `work`, boxed, calling `awaited` when somebody waits for it."""
    watched = _work_class()(work, awaited)
    _recent.append(watched)
    return watched.boxed()


_work_classes: list[type] = []


def _work_class() -> type:
    if not _work_classes:
        _work_classes.append(_make_work_class())
    return _work_classes[0]


def _make_work_class() -> type:
    base: Any = Work

    class Pending(base):  # type: ignore[misc, valid-type]
        """Wraps a work and calls `awaited` when somebody waits for it."""

        def __init__(self, work: Any, awaited: Callable[[], None]) -> None:
            super().__init__()
            self._work = work
            self._awaited = awaited

        def wait(self, *timeout: Any) -> Any:
            self._awaited()
            with suppress(ValueError):
                _recent.remove(self)  # it keeps the tensors alive
            return self._work.wait(*timeout)

        def block_current_stream(self) -> Any:
            self._awaited()

        def is_completed(self) -> bool:
            self._awaited()
            return bool(self._work.is_completed())

    def forward(name: str) -> Any:
        def method(self: Any, *args: Any) -> Any:
            self._awaited()
            return getattr(self._work, name)(*args)

        return method

    for name in _FORWARDED_METHODS:
        if hasattr(base, name):
            setattr(Pending, name, forward(name))
    return Pending
