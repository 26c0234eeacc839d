"""Hugging Face Transformers: a callback that profiles a window of training steps and reports at the end."""

from __future__ import annotations

import os
from typing import Any

from transformers.trainer_callback import TrainerCallback

from gapless.integrations import trackers
from gapless.integrations._window import ProfiledWindow
from gapless.model import Report


class GaplessCallback(TrainerCallback):
    """Profile some training steps on the GPU, and report at the end what it waited for.

    A step ends with the optimizer's step. The traces and their numbers (for ``gapless show``) go to `output`;
    `report` is the report once training has ended. `log` names a tracker for its numbers (``wandb``,
    ``mlflow``, or whatever :func:`gapless.integrations.trackers.log` takes). Without a GPU nothing is
    recorded; under ``gapless check`` the callback does nothing, because the command records itself.

    Example::

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[GaplessCallback()])

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
        log: Any = None,
    ) -> None:
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

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._window.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._window.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        def log(report: Report) -> None:
            if self._log is not None and state.is_world_process_zero:
                trackers.log(report, self._log, state.global_step)

        self._window.end(log)
