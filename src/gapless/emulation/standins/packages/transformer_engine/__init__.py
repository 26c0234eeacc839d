"""Transformer Engine: linear layers, norms, optimizers, and the contexts for fp8, which change nothing."""

from __future__ import annotations

from gapless.emulation.standins.packages.transformer_engine._package import PACKAGE

__all__ = ["PACKAGE"]
