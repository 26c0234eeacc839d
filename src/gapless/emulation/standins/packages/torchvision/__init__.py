"""torchvision: how often its operators wait, and two of them where its compiled ones cannot be loaded.

A wheel made for CUDA does not load beside a torch that was made without. Then the package cannot even be
imported; here `nms` and `roi_align` are computed with plain torch, and its other operators refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

from gapless.emulation.standins.packages.torchvision import boxes
from gapless.emulation.standins.packages.torchvision.waits import OPERATORS
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches

__all__ = ["OPERATORS", "boxes", "installed", "while_importing"]


@contextmanager
def while_importing(patches: Patches) -> Iterator[None]:
    """Its operators are defined as soon as it has found that it has none."""
    when_imported("torchvision.extension", _define, patches)
    yield


def installed(module: ModuleType, patches: Patches) -> None:
    """Have it believe that its operators are there, once it has registered nothing for them."""
    extension = getattr(module, "extension", None)
    if boxes.defined() and extension is not None:
        extension._has_ops = lambda: True


def _define(extension: ModuleType) -> None:
    if not getattr(extension, "_has_ops", partial(bool, True))():
        boxes.define()
