"""Asynchronous collectives: NCCL's stream does them, and ``wait()`` makes the current stream wait for it."""

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
_OUTPUTS = ("output_tensors", "output_tensor", "output_lists", "outputs", "output", "out")
_PASSED_ON = ("get_future", "is_success", "exception", "result", "source_rank", "synchronize")
_recent: deque[Any] = deque(maxlen=64)
"""Works on their way to whoever asked, until waited for: C++ alone would not keep what Python adds."""


def sides(name: str, values: dict[str, Any], rank: int) -> tuple[list[Tensor], list[Tensor]]:
    """What a collective reads and what it writes."""
    given = {key: list(trees.tensors(value)) for key, value in values.items() if key != "timeout"}
    writes = [one for key in given if key in _OUTPUTS for one in given[key]]
    others = [one for key in given if key not in _OUTPUTS for one in given[key]]
    if writes:
        return others, writes
    root = values.get("root_rank")
    if name == "send" or (name == "broadcast_" and root == rank) or (name == "reduce_" and root != rank):
        return others, []
    return [], others


def told(
    checker: Checker,
    name: str,
    values: dict[str, Any],
    group: Any,
    index: int,
    heard: Callable[[], None],
    work: Any,
) -> Any:
    """Tell of a collective on device `index`; gives the work to hand on in place of `work`, boxed both.

    `heard` is called as well when somebody waits for it.
    """
    asynchronous = bool(values.get("async_op", True)) and not local.coalescing
    if asynchronous and name not in ("send", "recv_"):
        checker.begin()
    if not checker.full or local.quiet:
        return work
    reads, writes = sides(name, values, group.rank())
    if not asynchronous or not _from_python():
        checker.launched(f"c10d::{name}", reads, writes, index)
        return work
    awaited = checker.collective(f"c10d::{name}", reads, writes, index, id(group))

    def both() -> None:
        heard()
        awaited()

    return _pending(Work.unbox(work), both)


def _from_python() -> bool:
    """Whether Python asked for it: DistributedDataParallel's C++ waits in C++, where nobody looks on."""
    if local.backward == HOST:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if frame.f_code.co_filename.endswith("distributed_c10d.py"):
            return True
        frame = frame.f_back
    return False


def _pending(work: Any, awaited: Callable[[], None]) -> Any:
    """`work`, boxed, which says when somebody waits for it."""
    made = _class()(work, awaited)
    _recent.append(made)
    return made.boxed()


_known: list[type] = []


def _class() -> type:
    if not _known:
        _known.append(_made())
    return _known[0]


def _made() -> type:
    base: Any = Work

    class Pending(base):  # type: ignore[misc, valid-type]
        """A work of another that tells who waits for it."""

        def __init__(self, work: Any, awaited: Callable[[], None]) -> None:
            super().__init__()
            self._work = work
            self._awaited = awaited

        def wait(self, *timeout: Any) -> Any:
            self._awaited()
            with suppress(ValueError):
                _recent.remove(self)  # which holds the tensors, too
            return self._work.wait(*timeout)

        def block_current_stream(self) -> Any:
            self._awaited()

        def is_completed(self) -> bool:
            self._awaited()
            return bool(self._work.is_completed())

    def passing(name: str) -> Any:
        def method(self: Any, *args: Any) -> Any:
            self._awaited()
            return getattr(self._work, name)(*args)

        return method

    for name in _PASSED_ON:
        if hasattr(base, name):
            setattr(Pending, name, passing(name))
    return Pending
