"""`profile`: record a block of one's own script under the profiler, and explain it at once."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cached_property
from pathlib import Path
from types import TracebackType

from gapless.analyze.profile.join import profile_passes
from gapless.analyze.profile.profile_report import report_run
from gapless.analyze.run.boundary import StepEnds
from gapless.capture import profiling
from gapless.commands import _output
from gapless.commands._passes import source_reader
from gapless.errors import GaplessError, UnreadableInput
from gapless.model import Report
from gapless.model.profile import save
from gapless.render import renderer


class profile:  # noqa: N801 - used like a function
    """Record some of the training steps in this block, without Python stacks and with them, and explain them.

    A step ends with the optimizer's step or with :func:`gapless.step`. After `wait` steps, `warmup` and
    `active` steps come twice; all of this `repeat` times. Then the block runs on without a profiler: it is
    `done`.

    Args:
        wait, warmup, active, repeat: numbers of steps and of repetitions, as above.
        stacks: record steps with Python stacks, too, to find lines.
        memory, shapes: record allocations, and shapes of inputs; both slow the script down.
        output: the folder for the traces, as TensorBoard and Perfetto read them, and for the numbers that
            ``gapless show`` reports again.
        show: print the report at the end of the block (on rank 0, if there are several).

    Example::

        with gapless.profile(active=4) as profiled:
            for images, labels in loader:
                train_step(images, labels)
                if profiled.done:
                    break

    Raises:
        UsageError: there is no GPU here, or a number of steps makes no sense.
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
    ) -> None:
        self._rank = _rank()
        self._show = show and self._rank == 0
        self._recipe = profiling.Recipe(
            Path(os.path.abspath(output)),
            f"rank{self._rank}",
            profiling.Schedule(wait, warmup, active, repeat),
            profiling.PASSES if stacks else ("times",),
            memory,
            shapes,
        )
        self._capture = profiling.Profiling(self._recipe, profiling.machine(), StepEnds())

    @property
    def done(self) -> bool:
        """Whether everything is recorded."""
        return self._capture.done

    @property
    def files(self) -> tuple[Path, ...]:
        """The traces written so far."""
        return tuple(self._capture.saved)

    @cached_property
    def report(self) -> Report:
        """The report on the last recorded window.

        Raises:
            UnreadableInput: nothing was recorded, or the GPU did nothing.
        """
        window = next(
            (at for at in reversed(range(self._recipe.schedule.repeat)) if any(self._paths(at))), -1
        )
        if window < 0:
            raise UnreadableInput(self._capture.why_nothing())
        window_profile = profile_passes(*self._paths(window), priced=True)
        save([window_profile], self._recipe.folder / f"{self._recipe.name}.gapless.json")
        notes = [note[:1].upper() + note[1:] for note in self._capture.session().notes]
        return report_run([window_profile], notes, source_reader(os.getcwd()))

    def __str__(self) -> str:
        return renderer("text")(self.report, _output.style_for(sys.stdout, folder=os.getcwd()))

    def __enter__(self) -> profile:
        self._capture.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._capture.stop()
        if not self._show:
            return
        try:
            _output.write(sys.stdout, str(self))
        except GaplessError as problem:  # the block itself has succeeded
            warnings.warn(str(problem), stacklevel=2)

    def _paths(self, window: int) -> tuple[str, str]:
        times, stacks = (
            str(path) if path in self._capture.saved else ""
            for path in (self._recipe.path("times", window), self._recipe.path("stacks", window))
        )
        return times, stacks


def _rank() -> int:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    try:
        return int(os.environ.get("RANK", 0))
    except ValueError:
        return 0
