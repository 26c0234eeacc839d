"""Cases again, with what fla launches in place of its usual kernels: in Gluon, or written for Huawei's NPUs.

Gluon is asked for by a variable. What is for NPUs is Triton all the same, and fla takes it here where it is told
that the device is one; most of it does not get past the Triton of PyPI, which has no block pointers any more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernel_cases.cases import Case
from kernel_cases.fla import decay, delta, gates, layers, scores, shapes

USUAL = (*decay.CASES, *delta.CASES, *gates.CASES, *layers.CASES, *scores.CASES, *shapes.CASES)
GLUON = {
    "attention over residuals",
    "balanced matrices",
    "cross entropy",
    "cross entropy of a large vocabulary",
    "short convolution",
}
ASCEND = {
    "attention over residuals",
    "gated layer norm",
    "GLU of a power",
    "GRPO loss",
    "Kimi delta attention, recurrent",
    "KL divergence of linears",
    "L2 norm",
    "log sigmoid",
    "MesaNet, chunk",
    "rotary",
    "scaled sigmoid",
    "short convolution of one token",
    "short convolution, with a state",
    "sigmoid",
    "SwiGLU",
    "swish",
    "TTT, chunk",
}


OLD = async_copy.async_copy_global_to_shared
RENAMED = {f"{async_copy.__name__}.{OLD.__name__}": getattr(async_copy, "async_load", OLD)}
"""What fla calls by a name that Triton has given up."""


def _again(names: Collection[str], how: str, **changes: Any) -> list[Case]:
    return [replace(case, name=f"{case.name}, {how}", **changes) for case in USUAL if case.name in names]


CASES = [
    *_again(GLUON, "in Gluon", environment={"FLA_GLUON": "1"}, knobs=RENAMED),
    *_again(ASCEND, "as on an NPU", knobs={"fla.utils.IS_NPU": True}),
]
