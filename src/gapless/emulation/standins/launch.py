"""One kernel of a stand-in: computed by plain torch on the CPU's values, seen as one launch.

What is computed inside is nobody's business: no wait, no launch and no memory of it counts. The body of a
kernel gets and gives CPU tensors; the results are placed where the arguments are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from gapless import trees
from gapless.emulation.core.core import Core
from gapless.emulation.dry.opaque import without_values
from gapless.emulation.support.places import HOST
from gapless.model.programme import Shape
from gapless.torch_internals import (
    DisableTorchFunction,
    DispatchKey,
    DispatchKeySet,
    ExcludedKeys,
    without_dispatch_modes,
)

Tensor = torch.Tensor
Body = Callable[..., Any]
_AUTOCAST = DispatchKeySet(DispatchKey.AutocastCUDA)


class State:
    """Whose launches these are: the core of the emulation that is on; None: nobody's."""

    core: Core | None = None
    used: Callable[[str], None] = staticmethod(lambda package: None)
    """Told the package of each kernel that is launched."""


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Run what is inside as on a machine without any emulation, casting nothing."""
    with (
        without_dispatch_modes(),
        DisableTorchFunction(),
        ExcludedKeys(_AUTOCAST),
    ):
        yield


def launch(
    name: str,
    body: Body,
    *args: Any,
    writes: Sequence[Tensor | None] = (),
    work: Sequence[Shape] | None = None,
    anywhere: bool = False,
    shaped: Body | None = None,
) -> Any:
    """Run ``body(*args)`` as the kernel `name` (``package::kernel``) of a device; gives what the body gives.

    `writes` are arguments that it writes in place. `work` are the shapes that tell how much is computed,
    where those of the arguments do not. `shaped` gives results without data for arguments without, where the
    body cannot, or takes long over it.

    Raises:
        RuntimeError: the tensors are not on a device, and not `anywhere`; or not all on the same one.
    """
    core = State.core
    given = list(trees.tensors(args))
    if core is None:
        return body(*args)
    index = _where(core, name, given, anywhere)
    if index == HOST:
        return body(*args)
    State.used(name.partition("::")[0])

    written = [t for t in writes if t is not None]

    def ran(*given: Any) -> Any:
        values = core.values
        with unseen():
            if values is not None and values.lacks(trees.tensors(given)):
                return without_values(values, name, shaped or body, body, given, written)
            return _in_own_memory(body(*given), given)

    out = core.graphs.launch(name, ran, args, written, lambda: ran(*args))
    made = list(trees.tensors(out))
    for tensor in made:
        if core.placement.state_of(tensor) != index:
            core.place(tensor, index)
    _told(core, name, given, written or made, work)
    return out


def _in_own_memory(out: Any, given: Any) -> Any:
    """What a kernel gives, each result in memory of its size, unless it lies in an argument's."""
    theirs = {one.untyped_storage()._cdata for one in trees.tensors(given)}

    def own(tensor: Tensor) -> Tensor:
        storage: Any = tensor.untyped_storage()
        fits = storage.nbytes() == tensor.numel() * tensor.element_size()
        return (
            tensor
            if fits or storage._cdata in theirs
            else tensor.clone(memory_format=torch.contiguous_format)
        )

    return trees.mapped(out, own)


def _where(core: Core, name: str, tensors: Sequence[Tensor], anywhere: bool) -> int:
    """The device that all `tensors` are on; single numbers may be on the host."""
    places = {core.device_of(one) for one in tensors if one.dim() or core.device_of(one) >= 0}
    if len(places) == 1 and (anywhere or HOST not in places):
        return places.pop()
    if not places:
        return HOST if anywhere else core.current_device()
    if HOST in places:
        raise RuntimeError(
            f"{name} takes CUDA tensors, but {'one is' if len(places) > 1 else 'these are'} on the CPU"
        )
    raise RuntimeError(f"{name}: its tensors are on {len(places)} different devices")


def _told(core: Core, name: str, reads: Sequence[Tensor], writes: Sequence[Tensor], work: Any) -> None:
    """Tell the programme, and the record of memory, of one launch."""
    memory, programme = core.placement.memory, core.recorder.programme
    if memory is not None:
        memory.operator = name
        memory.uses(tuple(reads))
    if programme is not None and core.enabled:
        programme.launched(name, reads, writes, work)
    if core.races.full:
        index = max(map(core.device_of, (*reads, *writes)), default=HOST)
        core.races.record_launch(name, reads, writes, max(index, 0))


def differentiable(
    name: str,
    body: Body,
    *tensors: Tensor | None,
    backward: str = "",
    work: Sequence[Shape] | None = None,
    constants: int = 0,
    random: bool = False,
    anywhere: bool = False,
    shaped: Body | None = None,
) -> Any:
    """Like `launch`, with a kernel for the backward pass, which keeps `tensors` and the first result.

    The body is a function of `tensors` alone. It is computed again for the backward pass, with the same
    random numbers where it is `random`. Of its results the last `constants` carry no gradient.
    """
    wanted = [t is not None and t.requires_grad for t in tensors]
    if not (torch.is_grad_enabled() and any(wanted)):
        return launch(name, body, *tensors, work=work, anywhere=anywhere, shaped=shaped)
    call = _Call(name, backward or f"{name}_backward", body, work, constants, random, anywhere, shaped)
    return _Kernel.apply(call, *tensors)


class _Call:
    """What a kernel and its backward pass share."""

    def __init__(
        self, name: str, backward: str, body: Body, work: Any, constants: int, random: bool, anywhere: bool,
        shaped: Body | None,
    ) -> None:  # fmt: skip
        self.name, self.backward, self.body, self.shaped = name, backward, body, shaped
        self.work, self.constants, self.anywhere = work, constants, anywhere
        self.state = torch.get_rng_state() if random else None

    def gradients(self, given: Sequence[Tensor | None], upstream: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients of those among `given` that want one."""
        inner = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in given]
        leaves = [t for t in inner if t is not None and t.requires_grad]
        drawn = torch.get_rng_state() if self.state is not None else None
        try:
            if self.state is not None:
                torch.set_rng_state(self.state)
            with torch.enable_grad():
                outs = self.varying(self.body(*inner))
        finally:
            if drawn is not None:
                torch.set_rng_state(drawn)
        pairs = [(o, g.to(o.dtype)) for o, g in zip(outs, upstream, strict=True) if o.requires_grad]
        if not pairs:
            return [None] * len(inner)
        outs, gradients = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outs, leaves, gradients, allow_unused=True))
        wanted = [t is not None and t.requires_grad for t in inner]
        return [_as_stored(next(found), t) if want else None for want, t in zip(wanted, inner, strict=True)]

    def varying(self, out: Any) -> tuple[Tensor, ...]:
        """The results that carry a gradient."""
        outs = out if isinstance(out, tuple) else (out,)
        return outs[: len(outs) - self.constants]


def _as_stored(gradient: Tensor | None, tensor: Tensor | None) -> Tensor | None:
    """`gradient` in memory as that of `tensor`, which kernels write it to."""
    if gradient is None or tensor is None or gradient.stride() == tensor.stride():
        return gradient
    return torch.empty_like(tensor, dtype=gradient.dtype).copy_(gradient)


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor | None) -> Any:  # type: ignore[override]
        out = launch(
            call.name, call.body, *tensors, work=call.work, anywhere=call.anywhere, shaped=call.shaped
        )
        ctx.call = call
        ctx.save_for_backward(*tensors, call.varying(out)[0])
        if isinstance(out, tuple):
            ctx.mark_non_differentiable(*out[len(out) - call.constants :])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:  # type: ignore[override]
        call: _Call = ctx.call
        tensors = ctx.saved_tensors[:-1]
        wanted = ctx.needs_input_grad[1:]

        def shaped(given: Any, _: Any) -> list[Tensor | None]:
            return [torch.empty_like(t) if want else None for t, want in zip(given, wanted, strict=True)]

        found = launch(
            call.backward,
            call.gradients,
            tensors,
            upstream[: len(upstream) - call.constants],
            work=None if call.work is None else (call.work[0], *call.work),
            anywhere=call.anywhere,
            shaped=shaped,
        )
        return (None, *found)
