"""Profile a window of training steps inside a trainer's loop: the shared part of trainers' callbacks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError

if TYPE_CHECKING:
    from gapless.model import Report


class ProfiledWindow:
    """One `gapless.integrations.profiling.profile` during a trainer's run.

    Call `begin` when training begins, `step` after each batch and `end` when it ends or fails; repeated calls
    are harmless. Nothing here raises into the training: problems are warnings. Without a GPU nothing is
    recorded, with one warning; under ``gapless check`` and ``gapless profile``, which record themselves,
    nothing is done.
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
        """Training begins: count steps from now on."""
        if self._on or self._profile is not None or _is_recorded_already():
            return
        from gapless.integrations.profiling import profile

        try:
            self._profile = profile(show=False, **self._options)
            self._profile.__enter__()
        except GaplessError as error:
            self._profile = None
            _warn_once(str(error))
            return
        self._on = True

    def step(self) -> None:
        """A batch is done: close the profiler once everything is recorded."""
        if self._on and self._profile.done:
            self._close()

    def end(self, then: Callable[[Report], object] = lambda report: None) -> None:
        """Training ends: explain the recording, print it, and call `then` with the report."""
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


def _is_recorded_already() -> bool:
    """Whether ``gapless check`` or ``gapless profile`` is running the script."""
    emulator = sys.modules.get("gapless.emulation.emulator")
    return emulator is not None and (emulator._current is not None or bool(emulator.step_listeners))


_said: set[str] = set()


def _warn_once(text: str) -> None:
    """Warn of `text` in rank 0, the first time only."""
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
