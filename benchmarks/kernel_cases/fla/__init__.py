"""flash-linear-attention (``fla``): its operations beside the naive forms that it ships, or torch."""

from __future__ import annotations

from kernel_cases.fla import (
    decay,
    decode,
    delta,
    gates,
    layers,
    others,
    packed,
    precond,
    rwkv,
    scores,
    shapes,
    states,
    unused,
)

PACKAGE, DISTRIBUTION = "fla", "fla-core"
ELSEWHERE = ("triton_ascend", "for Huawei's NPUs, and on no GPU")
CASES = [
    *decay.CASES,
    *delta.CASES,
    *scores.CASES,
    *layers.CASES,
    *shapes.CASES,
    *rwkv.CASES,
    *gates.CASES,
    *decode.CASES,
    *precond.CASES,
    *states.CASES,
    *unused.CASES,
    *others.CASES,
    *packed.CASES,
]
