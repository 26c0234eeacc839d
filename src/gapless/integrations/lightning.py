"""Lightning: a callback that profiles a window of training steps and reports at the end."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from gapless.integrations import trackers
from gapless.integrations._window import ProfiledWindow
from gapless.model import Report


def _callback_base() -> Any:
    """Return `Callback` of the installed Lightning, under either of its package names."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = [name for name in names if name in sys.modules]
    for name in (*loaded, *names):
        try:
            return importlib.import_module(f"{name}.callbacks").Callback
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", "lightning.pytorch", "pytorch_lightning"):
                raise
    raise ModuleNotFoundError("this callback needs Lightning: pip install lightning", name="lightning")


class GaplessCallback(_callback_base()):  # type: ignore[misc]  # a base that is chosen when it is imported
    """Profile some training steps on the GPU, and report at the end what it waited for.

    A step ends with the optimizer's step. The traces and their numbers (for ``gapless show``) go to `output`;
    `report` is the report once training has ended. With `log` its numbers also go to the trainer's loggers.
    Without a GPU nothing is recorded; under ``gapless check`` the callback does nothing, because the command
    records itself.

    Example::

        trainer = Trainer(callbacks=[GaplessCallback(wait=20, active=6)])

    The options are those of :class:`gapless.integrations.profiling.profile`.
    """

    def __init__(
        self,
        *,
        wait: int = 5,
        warmup: int = 2,
        active: int = 6,
        repeat: int = 1,
        stacks: bool = True,
        memory: bool = False,
        shapes: bool = False,
        output: str | os.PathLike[str] = "gapless-profile",
        show: bool = True,
        log: bool = True,
    ) -> None:
        super().__init__()
        self._log = log
        self._window = ProfiledWindow(
            show=show,
            wait=wait,
            warmup=warmup,
            active=active,
            repeat=repeat,
            stacks=stacks,
            memory=memory,
            shapes=shapes,
            output=output,
        )

    @property
    def report(self) -> Report | None:
        """The report; None before training has ended, and if nothing was recorded."""
        return self._window.report

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._window.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        self._window.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end(trainer)

    def _end(self, trainer: Any) -> None:
        def log(report: Report) -> None:
            if self._log and trainer.is_global_zero:
                for logger in trainer.loggers:
                    trackers.log(report, logger, trainer.global_step)

        self._window.end(log)
