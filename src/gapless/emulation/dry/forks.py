"""Lets a process be forked whose tensors are larger than this machine's memory.

Linux refuses to copy a mapping that is larger than all memory, used or not. So memory without values is
excluded from the copy: the child gets new memory at the same addresses, which takes none.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import sys
import weakref
from typing import Any

from gapless.emulation.dry.guess_table import ValueTable

_MIN_EXCLUDED_BYTES = 16 << 20
"""Bytes from which the memory of a storage is excluded: smaller ones may share pages with others."""
_DONT_FORK, _DO_FORK = 10, 11  # madvise(2); Python names them only where its headers did
_MAP_FIXED = 0x10
_tables: weakref.WeakSet[ValueTable] = weakref.WeakSet()
_excluded_ranges: list[tuple[int, int]] = []
_registered = False


def watch_forks(table: ValueTable) -> None:
    """Exclude the memory of storages without values from forks while `table` exists."""
    global _registered
    if not sys.platform.startswith("linux"):
        return
    _tables.add(table)
    if not _registered:
        os.register_at_fork(before=_exclude_memory, after_in_parent=_include_again, after_in_child=_map_again)
        _registered = True


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _exclude_memory() -> None:
    libc = _libc() if _tables else None
    for table in list(_tables):
        for begin, size in table.untouched_memory(_MIN_EXCLUDED_BYTES):
            first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (begin + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
            if length > 0 and libc is not None and libc.madvise(first, length, _DONT_FORK) == 0:
                _excluded_ranges.append((first, length))


def _include_again() -> None:
    if _excluded_ranges:
        libc = _libc()
        for first, length in _excluded_ranges:
            libc.madvise(first, length, _DO_FORK)
        _excluded_ranges.clear()


def _map_again() -> None:
    if _excluded_ranges:
        libc = _libc()
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000) | _MAP_FIXED
        for first, length in _excluded_ranges:
            libc.mmap(first, length, access, flags, -1, 0)
        _excluded_ranges.clear()
