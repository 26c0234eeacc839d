"""Describe NCCL's buffers beside a run that fits: no figure includes them, and they need the rest."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model.memory_report import Buffers
from gapless.model.wording import binary_size, binary_size_range, count


def describe_remaining_room(nccl: Buffers | None, left: int) -> str:
    """Say whether the `left` bytes are enough for NCCL; "" if they certainly are.

    >>> describe_remaining_room(Buffers(groups=1, least=2 << 30, most=4 << 30), 1 << 30)
    ' by itself, but the remaining 1 GiB are too little for NCCL (2–4 GiB for 1 process group)'
    """
    if nccl is None or left >= nccl.most:
        return ""
    if left < nccl.least:
        return (
            f" by itself, but the remaining {binary_size(left)} are too little for NCCL "
            f"({_describe_need(nccl)})"
        )
    return f", with {binary_size(left)} left for NCCL, which takes {_describe_need(nccl)}"


def cell(fits: bool, left: int, nccl: Buffers | None) -> str:
    """Return ``yes``, ``no``, or ``by itself`` if NCCL certainly needs more than the `left` bytes."""
    if not fits:
        return "no"
    return "by itself" if nccl is not None and left < nccl.least else "yes"


def note(nccl: Buffers | None, left: Iterable[tuple[str, int]]) -> str:
    """Say what NCCL takes and which fitting rows leave less than that; "" if all leave enough."""
    scarce = [f"{name} leaves {binary_size(size)}" for name, size in left if nccl and size < nccl.most]
    if nccl is None or not scarce:
        return ""
    return f"NCCL takes {_describe_need(nccl)} more, which no figure here includes: {', '.join(scarce)}"


def _describe_need(nccl: Buffers) -> str:
    return f"{binary_size_range(nccl.least, nccl.most)} for {count(nccl.groups, 'process group')}"
