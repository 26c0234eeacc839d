"""flash-linear-attention (``fla``): its operations beside the naive forms that it ships, or torch."""

from __future__ import annotations

from kernel_cases.fla import decay, delta, layers, scores

PACKAGE, DISTRIBUTION = "fla", "fla-core"
CASES = [*decay.CASES, *delta.CASES, *scores.CASES, *layers.CASES]
