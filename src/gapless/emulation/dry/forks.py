"""A process whose tensors are larger than this machine's memory is forked.

Linux refuses to copy a mapping that is larger than all memory, used or not. So nothing of the memory that no
value was written to is copied: the child gets new memory at the same addresses, which takes none.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import sys
import weakref
from typing import Any

from gapless.emulation.dry.table import Table

_LARGE = 16 << 20
"""Bytes of a storage from which on its memory is not copied: smaller ones may share pages with others."""
_DONT_FORK, _DO_FORK = 10, 11  # madvise(2); Python names them only where its headers did
_FIXED = 0x10
_tables: weakref.WeakSet[Table] = weakref.WeakSet()
_left_out: list[tuple[int, int]] = []
_registered = False


def watch(table: Table) -> None:
    """Leave the memory of storages without values out of processes that are forked while `table` exists."""
    global _registered
    if not sys.platform.startswith("linux"):
        return
    _tables.add(table)
    if not _registered:
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
        _registered = True


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _before() -> None:
    libc = _libc() if _tables else None
    for table in list(_tables):
        for begin, size in table.untouched_memory(_LARGE):
            first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (begin + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
            if length > 0 and libc is not None and libc.madvise(first, length, _DONT_FORK) == 0:
                _left_out.append((first, length))


def _in_parent() -> None:
    if _left_out:
        libc = _libc()
        for first, length in _left_out:
            libc.madvise(first, length, _DO_FORK)
        _left_out.clear()


def _in_child() -> None:
    if _left_out:
        libc = _libc()
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000) | _FIXED
        for first, length in _left_out:
            libc.mmap(first, length, access, flags, -1, 0)
        _left_out.clear()
