"""`Site` and `Event`: what happened in a capture, where, and when."""

from __future__ import annotations

import itertools
from typing import Literal

import msgspec

from gapless.model.source import SourceLine, Stack, deciding_frame, library_frames, user_line

Mechanism = Literal["read", "size", "values", "status", "h2d", "d2h", "explicit", "free", "none"]
"""Why the host waits.

- ``read``: a value is read on the host (``.item()`` and all that ends there);
- ``size``: the size of the result depends on the data;
- ``values``: the operator needs values of a device tensor on the host to do its work;
- ``status``: an error code is read back (``torch.linalg``);
- ``h2d`` / ``d2h``: a copy from host to device or back;
- ``explicit``: the program asks to wait;
- ``free``: memory is given back to the driver;
- ``none``: it does not: a place of a profile where the device is idle for another reason.
"""

Phase = Literal["train", "eval"]


class Site(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A place where the host waits: everything about a wait that does not change when it happens again.

    `operator` is what waits, in the field's spelling (``aten::nonzero``, ``cudaStreamSynchronize``).
    `call` is the Python call through which it was reached where that tells more
    (``Tensor.__bool__``, ``Tensor.tolist``, ``torch.allclose``), else empty.
    `detail` tells variants apart: for copies ``pageable``, ``pinned``, ``scalar``, ``list``, ``index``; for
    what a GradScaler reads the optimizer, as ``AdamW, fused=False`` where it has a fused form.
    `stack` is innermost first. In backward, `node` names the autograd node and `forward` is the stack of
    the forward call that created it (empty if unknown). `basis` is the place in a library's source that alone
    says so, where no real GPU was seen to wait there. `batch` says of a copy to the device whether a
    DataLoader handed out what is copied; None where that is not known.
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
        ran = tuple(itertools.takewhile(lambda frame: frame.function != "_engine_run_backward", self.stack))
        return self.stack if any(frame.is_user for frame in ran) else (*ran, *self.forward)

    @property
    def in_backward(self) -> bool:
        return bool(self.node)


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Waits at one site between two step marks.

    `site` indexes `Session.sites`. `tick` counts the step marks seen before. `calls` is how often the
    site was reached in that time and `waits` how many times the host waited there.
    `time` is seconds since the capture began, of the first of them. `bytes` is what was copied, in all.
    `strand` numbers the threads and asyncio tasks of the run; 0 is the main thread outside of any task.
    """

    site: int
    tick: int
    time: float = 0.0
    calls: int = 1
    waits: int = 1
    bytes: int = 0
    phase: Phase = "train"
    strand: int = 0


class Mark(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that tells where steps begin and end.

    `kind`: ``optimizer`` (a step of the optimizer `name`, skipped by a scaler or not), ``along`` (one of
    another optimizer with the gradients of the same backward pass as the one before), ``profiler``
    (``profiler.step()``), ``user`` (``gapless.step()``), ``backward`` (a backward pass begins),
    ``batch`` (a batch was drawn from a DataLoader), ``gradients`` (a backward pass ended in a script that has
    made no optimizer), ``forward`` (a module was called that no other called, in a script that has trained
    nothing so far), ``wait`` (the wait `name` in a script that has neither modules nor training). ``along``,
    ``backward`` and ``batch`` do not advance the tick. Optimizers that step inside a backward pass are marked
    where that ends. `strand` is that of the thread, as of an `Event`.
    """

    kind: Literal[
        "optimizer", "along", "profiler", "user", "backward", "batch", "gradients", "forward", "wait"
    ]  # fmt: skip
    tick: int
    time: float
    name: str = ""
    stack: Stack = ()
    strand: int = 0
