"""NVIDIA's apex: fused norms, optimizers and kernels over many tensors; `amp` refuses when it is called."""

from __future__ import annotations

from gapless.emulation.standins.packages.apex._package import PACKAGE

__all__ = ["PACKAGE"]
