"""Where Liger's functions are."""

from __future__ import annotations

from typing import Any

from kernel_cases.cases import Modules

ops = Modules("liger_kernel.ops")


def call(name: str, *arguments: Any) -> Any:
    """``LigerSoftmaxFunction.apply(…)`` for ``softmax.LigerSoftmaxFunction``."""
    return ops(name).apply(*arguments)
