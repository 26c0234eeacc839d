"""Liger: its autograd functions beside plain torch."""

from __future__ import annotations

from kernel_cases.liger import layers, losses

PACKAGE, DISTRIBUTION = "liger_kernel.ops", "liger-kernel"
CASES = [*layers.CASES, *losses.CASES]
