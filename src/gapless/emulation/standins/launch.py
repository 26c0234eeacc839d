"""One kernel of a stand-in: computed in plain torch on CPU tensors, counted as one launch.

No wait, launch or memory of the computation inside counts. A kernel's body takes and returns CPU tensors; the
results are placed on the device of the arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from gapless import trees
from gapless.emulation.core.core import EmulationCore
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


class LaunchState:
    """The core of the running emulation that counts launches; None if there is none."""

    core: EmulationCore | None = None
    used: Callable[[str], None] = staticmethod(lambda package: None)
    """Called with the package of each launched kernel."""


@contextlib.contextmanager
def without_emulation() -> Iterator[None]:
    """Run the block without emulation and without autocast."""
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
    """Run ``body(*args)`` as the kernel `name` (``package::kernel``) of a device; return the body's result.

    `writes` are arguments that it writes in place. `work` are shapes that determine the amount of work, if
    those of the arguments do not. `shaped` returns results without data for arguments without data, if the
    body cannot or would be slow.

    Raises:
        RuntimeError: tensors are on the CPU and `anywhere` is False, or they are on several devices.
    """
    core = LaunchState.core
    tensors = list(trees.tensors(args))
    if core is None:
        return body(*args)
    index = _device_of_all(core, name, tensors, anywhere)
    if index == HOST:
        return body(*args)
    LaunchState.used(name.partition("::")[0])

    written = [t for t in writes if t is not None]

    def run(*tensors: Any) -> Any:
        values = core.values
        with without_emulation():
            if values is not None and values.lacks(trees.tensors(tensors)):
                return without_values(values, name, shaped or body, body, tensors, written)
            return _with_own_memory(body(*tensors), tensors)

    out = core.graphs.launch(name, run, args, written, lambda: run(*args))
    results = list(trees.tensors(out))
    for tensor in results:
        if core.placement.state_of(tensor) != index:
            core.place(tensor, index)
    _record_launch(core, name, tensors, written or results, work)
    return out


def _with_own_memory(out: Any, args: Any) -> Any:
    """Return a kernel's results, each in storage of its exact size unless it shares an argument's."""
    argument_keys = {tensor.untyped_storage()._cdata for tensor in trees.tensors(args)}

    def own(tensor: Tensor) -> Tensor:
        storage: Any = tensor.untyped_storage()
        fits = storage.nbytes() == tensor.numel() * tensor.element_size()
        return (
            tensor
            if fits or storage._cdata in argument_keys
            else tensor.clone(memory_format=torch.contiguous_format)
        )

    return trees.map_tensors(out, own)


def _device_of_all(core: EmulationCore, name: str, tensors: Sequence[Tensor], anywhere: bool) -> int:
    """Return the device that all `tensors` are on; scalars may be on the host."""
    places = {core.device_of(tensor) for tensor in tensors if tensor.dim() or core.device_of(tensor) >= 0}
    if len(places) == 1 and (anywhere or HOST not in places):
        return places.pop()
    if not places:
        return HOST if anywhere else core.current_device()
    if HOST in places:
        raise RuntimeError(
            f"{name} takes CUDA tensors, but {'one is' if len(places) > 1 else 'these are'} on the CPU"
        )
    raise RuntimeError(f"{name}: its tensors are on {len(places)} different devices")


def _record_launch(
    core: EmulationCore, name: str, reads: Sequence[Tensor], writes: Sequence[Tensor], work: Any
) -> None:
    """Record one launch in the programme, the memory record and the races."""
    memory, programme = core.placement.memory, core.recorder.programme
    if memory is not None:
        memory.operator = name
        memory.record_use(tuple(reads))
    if programme is not None and core.enabled:
        programme.record_kernel(name, reads, writes, work)
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
    """Like `launch`, with a kernel for the backward pass, which saves `tensors` and the first result.

    The body is a function of `tensors` alone. It is recomputed for the backward pass, with the same random
    numbers if it is `random`. Its last `constants` results have no gradient.
    """
    wanted = [t is not None and t.requires_grad for t in tensors]
    if not (torch.is_grad_enabled() and any(wanted)):
        return launch(name, body, *tensors, work=work, anywhere=anywhere, shaped=shaped)
    call = _DifferentiableCall(
        name, backward or f"{name}_backward", body, work, constants, random, anywhere, shaped
    )
    return _KernelFunction.apply(call, *tensors)


class _DifferentiableCall:
    """The parameters that a kernel and its backward pass share."""

    def __init__(
        self, name: str, backward: str, body: Body, work: Any, constants: int, random: bool, anywhere: bool,
        shaped: Body | None,
    ) -> None:  # fmt: skip
        self.name, self.backward, self.body, self.shaped = name, backward, body, shaped
        self.work, self.constants, self.anywhere = work, constants, anywhere
        self.state = torch.get_rng_state() if random else None

    def gradients(self, inputs: Sequence[Tensor | None], upstream: Sequence[Tensor]) -> list[Tensor | None]:
        """Return a gradient for each input that requires one, else None."""
        inner = [None if t is None else t.detach().requires_grad_(t.requires_grad) for t in inputs]
        leaves = [t for t in inner if t is not None and t.requires_grad]
        random_state = torch.get_rng_state() if self.state is not None else None
        try:
            if self.state is not None:
                torch.set_rng_state(self.state)
            with torch.enable_grad():
                outs = self.differentiable_results(self.body(*inner))
        finally:
            if random_state is not None:
                torch.set_rng_state(random_state)
        pairs = [(o, g.to(o.dtype)) for o, g in zip(outs, upstream, strict=True) if o.requires_grad]
        if not pairs:
            return [None] * len(inner)
        outs, gradients = zip(*pairs, strict=True)
        results = iter(torch.autograd.grad(outs, leaves, gradients, allow_unused=True))
        wanted = [t is not None and t.requires_grad for t in inner]
        return [
            _with_strides_of(next(results), t) if want else None
            for want, t in zip(wanted, inner, strict=True)
        ]

    def differentiable_results(self, out: Any) -> tuple[Tensor, ...]:
        """Return the results that have a gradient."""
        outs = out if isinstance(out, tuple) else (out,)
        return outs[: len(outs) - self.constants]


def _with_strides_of(gradient: Tensor | None, tensor: Tensor | None) -> Tensor | None:
    """Return `gradient` with the strides of `tensor`, as kernels write it."""
    if gradient is None or tensor is None or gradient.stride() == tensor.stride():
        return gradient
    return torch.empty_like(tensor, dtype=gradient.dtype).copy_(gradient)


class _KernelFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _DifferentiableCall, *tensors: Tensor | None) -> Any:  # type: ignore[override]
        out = launch(
            call.name, call.body, *tensors, work=call.work, anywhere=call.anywhere, shaped=call.shaped
        )
        ctx.call = call
        ctx.save_for_backward(*tensors, call.differentiable_results(out)[0])
        if isinstance(out, tuple):
            ctx.mark_non_differentiable(*out[len(out) - call.constants :])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> Any:  # type: ignore[override]
        call: _DifferentiableCall = ctx.call
        tensors = ctx.saved_tensors[:-1]
        wanted = ctx.needs_input_grad[1:]

        def shape_gradients(saved: Any, _: Any) -> list[Tensor | None]:
            return [torch.empty_like(t) if want else None for t, want in zip(saved, wanted, strict=True)]

        gradients = launch(
            call.backward,
            call.gradients,
            tensors,
            upstream[: len(upstream) - call.constants],
            work=None if call.work is None else (call.work[0], *call.work),
            anywhere=call.anywhere,
            shaped=shape_gradients,
        )
        return (None, *gradients)
