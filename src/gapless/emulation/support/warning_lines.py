"""Attribute torch's warnings to the user's line: Python blames the innermost frame, one of Gapless's."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

from gapless.emulation.support import stacks
from gapless.emulation.support.patches import Patches


def install(patches: Patches) -> None:
    """Show warnings raised inside Gapless's frames at the line they would have without an emulation."""
    real = warnings.showwarning

    @wraps(real)
    def showwarning(
        message: Any, category: Any, filename: str, lineno: int, *rest: Any, **options: Any
    ) -> Any:
        if stacks.is_own(filename):
            frames = stacks.resolve(stacks.capture())
            innermost = next((frame for frame in frames if frame.file != warnings.__file__), None)
            if innermost is not None:
                filename, lineno = innermost.file, innermost.line
        return real(message, category, filename, lineno, *rest, **options)

    patches.set(warnings, "showwarning", showwarning)
