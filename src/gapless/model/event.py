"""`Site` and `Event`: what happened in a capture, where, and when."""

from __future__ import annotations

import itertools
from typing import Literal

import msgspec

from gapless.model.cause import Origin
from gapless.model.source import SourceLine, Stack, deciding_frame, library_frames, user_line
from gapless.model.use import Span, Use

Mechanism = Literal["read", "size", "values", "status", "h2d", "d2h", "explicit", "free", "none"]
"""Why the host waits.

- ``read``: a value is read on the host (``.item()`` and everything that ends in it);
- ``size``: the result's size depends on the data;
- ``values``: the operator needs values of a device tensor on the host;
- ``status``: an error code is read back (``torch.linalg``);
- ``h2d`` / ``d2h``: a copy from host to device or back;
- ``explicit``: the program asks to wait;
- ``free``: memory is returned to the driver;
- ``none``: it does not: a place in a profile at which the device is idle for another reason.
"""

METRIC_RESULT = "result of gapless.metrics"
"""The `detail` of a read of what a metric computed."""

Phase = Literal["train", "eval"]


class WaitedTensor(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tensor that the host waits for at a site: that is read, copied or has an unknown size.

    `dtype` is torch's word for it (``bfloat16``), `shape` that of the first wait.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    needs_gradient: bool = False


INDEX_OR_VALUE = "index or value"
"""`Site.detail` of a small copy for a write through an index, where a profile does not show which it is."""


class Site(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A place where the host waits: what is the same for all waits there.

    - `operator`: what waits, as torch or CUDA spells it (``aten::nonzero``, ``cudaStreamSynchronize``).
    - `call`: the Python call that leads to it, if that says more (``Tensor.__bool__``, ``torch.allclose``),
      else "".
    - `detail`: the variant; of copies ``pageable``, ``pinned``, ``scalar``, ``list``, ``index``; of a
      wait for an event ``copy`` if it was recorded right behind a copy of pinned memory; of a
      GradScaler's reads the optimizer (``AdamW, fused=False`` if it has a fused form).
    - `stack`: innermost first. In backward `node` names the autograd node, and `forward` is the stack of the
      forward call that created it (empty if unknown).
    - `basis`: the place in a library's source that shows the wait, if no real GPU was seen to wait there.
    - `batch`: whether a DataLoader made what is copied to the device; None if unknown.
    - `span`, `expression`: the user's expression that waits, and its source text on one line; None and "" if
      they are unknown.
    - `uses`: what the value that is read there is for, the nearest use first; empty if that was not analysed.
    - `cause`: where the values come from; None if unknown.
    - `tensors`: what is waited for, in the order of the operator's arguments (of ``x[mask]`` first ``x``);
      empty if it was not recorded, or dtypes or numbers of dimensions differ from wait to wait.
    """

    operator: str
    mechanism: Mechanism
    call: str = ""
    detail: str = ""
    stack: Stack = ()
    node: str = ""
    forward: Stack = ()
    basis: str = ""
    batch: bool | None = None
    span: Span | None = None
    expression: str = ""
    uses: tuple[Use, ...] = ()
    cause: Origin | None = None
    tensors: tuple[WaitedTensor, ...] = ()

    @property
    def line(self) -> SourceLine | None:
        """The user's line to change.

        In backward that is the forward line that created the node, unless the user's own backward code waits.
        """
        return user_line(self._telling_stack)

    @property
    def library_frames(self) -> Stack:
        """Library frames below the user's line, innermost first; in backward those of hooks come first."""
        return library_frames(self._telling_stack)

    @property
    def deciding_frame(self) -> SourceLine | None:
        """The library line that chose to wait; None if the user's own line did."""
        return deciding_frame(self._telling_stack)

    @property
    def _telling_stack(self) -> Stack:
        if not self.forward:
            return self.stack
        ran = self._frames_above_engine
        return self.stack if any(frame.is_user for frame in ran) else (*ran, *self.forward)

    @property
    def _frames_above_engine(self) -> Stack:
        """The Python code that backward called: a hook, a function's `backward`, a layer computed again."""
        return tuple(itertools.takewhile(lambda frame: frame.function != "_engine_run_backward", self.stack))

    @property
    def in_backward(self) -> bool:
        return bool(self.node)

    @property
    def of_node(self) -> bool:
        """Whether a node of autograd ran the operator itself, not Python code that backward called."""
        return self.in_backward and len(self._frames_above_engine) in (0, len(self.stack))


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The waits at one site between two step marks.

    `site` is a position in `Session.sites`, `tick` the number of step marks before. The site was reached
    `calls` times, and the host waited `waits` times. `time` is seconds from the capture's begin to the first
    of them, `bytes` the total copied. `strand` numbers the run's threads and asyncio tasks; 0 is the main
    thread outside of any task.
    """

    site: int
    tick: int
    time: float = 0.0
    calls: int = 1
    waits: int = 1
    bytes: int = 0
    phase: Phase = "train"
    strand: int = 0


class StepMark(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that shows where steps begin and end.

    `kind`:

    - ``optimizer``: a step of the optimizer `name`, even if a scaler skipped it;
    - ``along``: a step of another optimizer with the gradients of the same backward pass;
    - ``profiler``: ``profiler.step()``; ``user``: ``gapless.step()``;
    - ``backward``: a backward pass begins; ``batch``: a DataLoader yielded a batch;
    - ``gradients``: a backward pass ended, in a script without optimizers;
    - ``forward``: a module was called that no other called, in a script that has not trained yet;
    - ``wait``: the wait `name`, in a script with neither modules nor training.

    ``along``, ``backward`` and ``batch`` do not advance the tick. Optimizers that step inside a backward pass
    are marked at its end. `strand` is the thread's, as in an `Event`.
    """

    kind: Literal[
        "optimizer", "along", "profiler", "user", "backward", "batch", "gradients", "forward", "wait"
    ]  # fmt: skip
    tick: int
    time: float
    name: str = ""
    stack: Stack = ()
    strand: int = 0
