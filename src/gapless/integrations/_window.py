"""A window of training steps, profiled while somebody else's loop runs: what trainers' callbacks share."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError

if TYPE_CHECKING:
    from gapless.model import Report


class Window:
    """One `gapless.integrations.profiling.profile` in the life of a trainer.

    `begin` is called when training begins, `step` after each batch, `end` when it ends or fails; each may be
    called again. Nothing here raises into the training: what goes wrong is warned of. Without a GPU nothing
    is recorded, which is said once; under ``gapless check`` and ``gapless profile``, which look on
    themselves, nothing is done at all.
    """

    def __init__(self, show: bool = True, **options: Any) -> None:
        self._show = show
        self._options = options
        self._profile: Any = None
        self._on = False
        self.report: Report | None = None

    @property
    def recording(self) -> bool:
        """Whether the window is still open."""
        return self._on

    def begin(self) -> None:
        """Training begins: count steps from here."""
        if self._on or self._profile is not None or _looked_at():
            return
        from gapless.integrations.profiling import profile

        try:
            self._profile = profile(show=False, **self._options)
            self._profile.__enter__()
        except GaplessError as error:
            self._profile = None
            _say_once(str(error))
            return
        self._on = True

    def step(self) -> None:
        """A batch is done. Once everything is recorded the profiler goes away; training runs on."""
        if self._on and self._profile.done:
            self._close()

    def end(self, then: Callable[[Report], object] = lambda report: None) -> None:
        """Training ends: explain what was recorded, print it, and hand it to `then`."""
        if self._profile is None or self.report is not None:
            return
        self._close()
        try:
            self.report = self._profile.report
            if self._show and _rank() == 0:
                print(self._profile, end="", file=sys.stdout, flush=True)  # noqa: T201 - it is the result
            then(self.report)
        except GaplessError as error:
            warnings.warn(str(error), stacklevel=2)

    def _close(self) -> None:
        if self._on:
            self._on = False
            self._profile.__exit__(None, None, None)


def _looked_at() -> bool:
    """Whether ``gapless check`` or ``gapless profile`` runs the script."""
    emulator = sys.modules.get("gapless.emulation.emulator")
    return emulator is not None and (emulator._current is not None or bool(emulator.step_listeners))


_said: set[str] = set()


def _say_once(text: str) -> None:
    """Warn of `text`, in rank 0, the first time only."""
    if text not in _said and _rank() == 0:
        _said.add(text)
        warnings.warn(f"profiling is off: {text}", stacklevel=2)


def _rank() -> int:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    try:
        return int(os.environ.get("RANK", 0))
    except ValueError:
        return 0
