"""What is told of NCCL's buffers where something fits: they are in no figure, and need what is left."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model.memory_report import Buffers
from gapless.model.wording import between, binary_size, count


def beside(nccl: Buffers | None, left: int) -> str:
    """That what is `left` (bytes) may be too little for NCCL; "" where it is enough in any case.

    >>> beside(Buffers(groups=1, least=2 << 30, most=4 << 30), 1 << 30)
    ' by itself, but the 1 GiB left are too little for NCCL (2–4 GiB for 1 process group)'
    """
    if nccl is None or left >= nccl.most:
        return ""
    if left < nccl.least:
        return f" by itself, but the remaining {binary_size(left)} are too little for NCCL ({_takes(nccl)})"
    return f", with {binary_size(left)} left for NCCL, which takes {_takes(nccl)}"


def cell(fits: bool, left: int, nccl: Buffers | None) -> str:
    """``yes``, ``no``, or ``by itself`` where NCCL certainly needs more than what is `left`."""
    if not fits:
        return "no"
    return "by itself" if nccl is not None and left < nccl.least else "yes"


def note(nccl: Buffers | None, left: Iterable[tuple[str, int]]) -> str:
    """What NCCL takes, and which of those that fit leave less for it; "" where all leave enough."""
    scarce = [f"{name} leaves {binary_size(size)}" for name, size in left if nccl and size < nccl.most]
    if nccl is None or not scarce:
        return ""
    return f"NCCL takes {_takes(nccl)} more, which no figure here includes: {', '.join(scarce)}"


def _takes(nccl: Buffers) -> str:
    return f"{between(nccl.least, nccl.most)} for {count(nccl.groups, 'process group')}"
