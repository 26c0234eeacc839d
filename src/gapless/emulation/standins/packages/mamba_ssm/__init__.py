"""mamba: selective scans, their steps, gated norms, and the layers `Mamba` and `Mamba2` for training."""

from __future__ import annotations

from gapless.emulation.standins.packages.mamba_ssm._package import PACKAGE

__all__ = ["PACKAGE"]
