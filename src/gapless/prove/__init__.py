"""Two callables side by side: whether they compute the same, and which one waits less and is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.prove.proving import compare as compare

__all__ = ["compare"]


def __getattr__(name: str) -> Any:
    if name != "compare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gapless.prove.proving import compare

    return compare
