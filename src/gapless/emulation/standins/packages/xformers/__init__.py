"""xformers: memory-efficient attention with its biases, SwiGLU and a few operators.

Where the real package is installed, its attention finds no kernel for the CPU's values; this one computes.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

from gapless.emulation.standins.packages.xformers._package import PACKAGE
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches

__all__ = ["PACKAGE", "installed"]


def installed(module: ModuleType, patches: Patches) -> None:
    """Have the real package's attention computed here; its biases say themselves what they mean."""
    when_imported("xformers.ops", partial(_replace_functions, patches), patches)


def _replace_functions(patches: Patches, module: ModuleType) -> None:
    from gapless.emulation.standins.packages.xformers import attention

    for name in ("memory_efficient_attention", "memory_efficient_attention_forward"):
        if hasattr(module, name):
            patches.set_everywhere(module, name, getattr(attention, name), "xformers")
