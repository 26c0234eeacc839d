"""Process groups: "nccl" carried by gloo, with NCCL's manners."""

from __future__ import annotations

from gapless.emulate.core import Core
from gapless.emulate.patches import Patches


def install(core: Core, patches: Patches) -> None:
    """Placeholder until process groups are carried."""
