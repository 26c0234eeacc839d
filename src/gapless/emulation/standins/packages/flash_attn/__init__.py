"""flash-attention 2: attention in all its entry points, padding, rotary embedding, norms and cross entropy.

What is launched and what waits is as in the package's own source.
"""

from __future__ import annotations

from gapless.emulation.standins.packages.flash_attn._package import PACKAGE

__all__ = ["PACKAGE"]
