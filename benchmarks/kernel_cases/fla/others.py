"""Cases again, with what fla launches in place of its Triton kernels where it is asked to: kernels in Gluon."""

from __future__ import annotations

from dataclasses import replace

from kernel_cases.fla import gates, layers, scores, shapes

GLUON = (
    "attention over residuals",
    "balanced matrices",
    "cross entropy",
    "cross entropy of a large vocabulary",
    "short convolution",
)
CASES = [
    replace(case, name=f"{case.name}, in Gluon", environment={**case.environment, "FLA_GLUON": "1"})
    for case in (*layers.CASES, *gates.CASES, *shapes.CASES, *scores.CASES)
    if case.name in GLUON
]
