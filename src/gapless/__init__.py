"""Gapless finds every place where PyTorch training makes the GPU wait.

Names are loaded on first use: ``import gapless`` costs nothing and does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gapless._version import __version__ as __version__

if TYPE_CHECKING:
    from gapless.analyze import report as report
    from gapless.capture.memory_history import memory_snapshot as memory_snapshot
    from gapless.emulation.handle import emulate as emulate
    from gapless.integrations.profiling import profile as profile
    from gapless.model.session import Session as Session
    from gapless.model.session import load as load
    from gapless.model.session import save as save
    from gapless.prove import compare as compare

_HOMES = {
    "Session": "gapless.model.session",
    "annotate": "gapless.capture.annotate",
    "assume": "gapless.emulation.assume",
    "compare": "gapless.prove",
    "emulate": "gapless.emulation.handle",
    "load": "gapless.model.session",
    "memory_snapshot": "gapless.capture.memory_history",
    "load_ipython_extension": "gapless.integrations.notebook",
    "save": "gapless.model.session",
    "profile": "gapless.integrations.profiling",
    "report": "gapless.analyze",
    "no_waits": "gapless.capture.guard",
    "standin": "gapless.emulation.standins.given",
    "step": "gapless.emulation.emulator",
    "unload_ipython_extension": "gapless.integrations.notebook",
}
"""Public names that are not subpackages, with the module that defines each."""

__all__ = [
    "Session",
    "annotate",
    "assume",
    "compare",
    "emulate",
    "load",
    "loading",
    "memory_snapshot",
    "metrics",
    "no_waits",
    "ops",
    "profile",
    "report",
    "save",
    "standin",
    "step",
]


def __getattr__(name: str) -> Any:
    if name in ("loading", "metrics", "ops"):  # rooms that are used by name
        return importlib.import_module(f"gapless.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gapless' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
