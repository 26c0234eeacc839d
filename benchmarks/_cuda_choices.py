"""Samples of operators, and what runs for them and is kept for backward, on two devices that are not there.

The reference is `FakeTensorMode` with CUDA's name: torch's own C++ chooses by it, as far as that was built
without CUDA. The kernels that torch's list of operators gives CUDA alone are registered there without work.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from _op_samples import sample_inputs
from device_classes import fake_cuda
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.modules.lazy import LazyModuleMixin
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from gapless.emulation.dispatch.operators import launches
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions

Tensor = torch.Tensor
_OVERLAPS = 1
"""torch's answer for a tensor that surely has elements sharing memory."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Sample(NamedTuple):
    """A call of `function`; the tensors in `args` and `kwargs` are on the host."""

    name: str
    dtype: torch.dtype
    learns: bool
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Choice(NamedTuple):
    """What a call ran, kept for backward (shape, dtype) and returned (shape, dtype), or its error.

    `backward` and `gradients` are the same for its backward pass, or `backward_error`.
    """

    operators: tuple[str, ...] = ()
    kept: tuple[tuple[Any, ...], ...] = ()
    results: tuple[tuple[Any, ...], ...] = ()
    error: str = ""
    backward: tuple[str, ...] = ()
    gradients: tuple[tuple[Any, ...], ...] = ()
    backward_error: str = ""


# -- samples ---------------------------------------------------------------------------------------------


def samples_of_operators(
    entries: list[Any],
    most: int,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    learning: tuple[bool, ...] = (True, False),
) -> Iterator[Sample]:
    """Yield up to `most` samples of each entry of ``op_db``, dtype and grad mode; images also in channels
    last."""
    for op, dtype, learns in itertools.product(entries, dtypes, learning):
        if dtype not in op.supported_dtypes("cuda"):
            continue
        if learns and not (op.supports_autograd and dtype in op.supported_backward_dtypes("cuda")):
            continue
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        with contextlib.suppress(Exception):  # some samples cannot be made on a CPU
            for sample in itertools.islice(sample_inputs(op, dtype, learns), most):
                args = (sample.input, *sample.args)
                yield Sample(name, dtype, learns, op.op, args, sample.kwargs)
                if any(isinstance(arg, Tensor) and arg.dim() == 4 for arg in args):
                    laid = tuple(map(_channels_last, args))
                    yield Sample(f"{name} channels last", dtype, learns, op.op, laid, sample.kwargs)


def _channels_last(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dim() != 4:
        return value
    return value.detach().to(memory_format=torch.channels_last).requires_grad_(value.requires_grad)


def samples_of_modules(most: int, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[Sample]:
    """Yield up to `most` samples of each module of torch, dtype and mode."""
    for info, dtype, training in itertools.product(module_db, dtypes, (True, False)):
        if dtype not in info.dtypes or issubclass(info.module_cls, LazyModuleMixin):
            continue
        with contextlib.suppress(Exception):
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=training, training=training
            )
            for module_input in itertools.islice(inputs, most):
                if module_input.forward_input is None:
                    continue
                constructor, call = module_input.constructor_input, module_input.forward_input
                module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).train(training)
                yield Sample(
                    info.name, dtype, training, _as_function(module),
                    (list(module.state_dict().items()), *call.args), call.kwargs,
                )  # fmt: skip


def _as_function(module: nn.Module) -> Callable[..., Any]:
    """Return a function that calls `module` with the state it is given."""

    def call(state: list[tuple[str, Tensor]], *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, dict(state), args, kwargs)

    return call


def own_samples(dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[Sample]:
    """Yield samples that torch's lists lack: dtypes that change on the way, dropout, cells."""
    narrow, wide = torch.randn(3, 8), torch.randn(2, 4, 6, 6)
    cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "softmax to float32": (lambda x: torch.softmax(x, -1, dtype=torch.float32), (narrow,)),
        "log_softmax to float32": (lambda x: torch.log_softmax(x, -1, dtype=torch.float32), (narrow,)),
        "cross_entropy smoothed": (
            lambda x: functional.cross_entropy(x, x.argmax(-1), label_smoothing=0.1), (narrow,),
        ),
        "dropout in place": (lambda x: functional.dropout(x + 1, 0.5, inplace=True), (narrow,)),
        "feature dropout": (lambda x: functional.dropout2d(x, 0.5), (wide,)),
        "alpha dropout": (lambda x: functional.alpha_dropout(x, 0.5, True), (narrow,)),
        "max_pool1d": (lambda x: functional.max_pool1d(x, 2), (narrow,)),
        "weight_norm": (lambda x: torch._weight_norm(x, x[:, :1].abs() + 1, 0), (narrow,)),
    }  # fmt: skip
    for (name, (function, args)), dtype, learns in itertools.product(cases.items(), dtypes, (True, False)):
        yield Sample(
            name, dtype, learns, function, tuple(arg.to(dtype).requires_grad_(learns) for arg in args), {}
        )


# -- what runs -----------------------------------------------------------------------------------------------


class _LaunchRecorder(TorchDispatchMode):
    """Records the names of the operators that launch something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if func.namespace != "prim" and launches(func):
            self.names.append(func.name().removeprefix("aten::"))
        return out


def record_choice(sample: Sample, put: Callable[[Tensor], Tensor]) -> Choice:
    """Run `sample` with its tensors placed by `put`; return which operators ran."""
    kept: list[tuple[Any, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(_describe(tensor))
        return tensor

    placed = tree_map(
        lambda leaf: put(leaf) if isinstance(leaf, Tensor) else leaf, (sample.args, sample.kwargs)
    )
    launched = _LaunchRecorder()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    try:
        with torch.set_grad_enabled(sample.learns), launched, hooks:
            out = sample.function(*placed[0], **placed[1])
    except Exception as error:
        return Choice(error=_error_text(error))
    outs = [tensor for tensor in tree_flatten(out)[0] if isinstance(tensor, Tensor)]
    forward = Choice(tuple(launched.names), tuple(kept), tuple(map(_describe, outs)))
    leaves = [leaf for leaf in tree_flatten(placed)[0] if isinstance(leaf, Tensor) and leaf.requires_grad]
    return _with_backward(forward, [tensor for tensor in outs if tensor.requires_grad], leaves)


def _with_backward(forward: Choice, outs: list[Tensor], leaves: list[Tensor]) -> Choice:
    """Return `forward` with the operators that run from `outs` to the gradients of `leaves`."""
    if not outs or not leaves:
        return forward
    launched = _LaunchRecorder()
    try:
        seeds = [torch.ones_like(out) for out in outs]
        with launched:
            gradients = _gradients(outs, leaves, seeds)
    except Exception as error:
        return forward._replace(backward_error=_error_text(error))
    described = tuple(() if gradient is None else _describe(gradient) for gradient in gradients)
    return forward._replace(backward=tuple(launched.names), gradients=described)


def _gradients(outs: list[Tensor], leaves: list[Tensor], seeds: list[Tensor]) -> list[Tensor | None]:
    """Compute gradients node by node, in sequence order, as ``torch.autograd.grad`` does.

    That engine itself insists on a CUDA device.
    """
    pending: dict[Any, list[Tensor | None]] = {}
    gradients_of: dict[int, Tensor] = {}
    ready: list[tuple[int, int, Any]] = []

    def add(node: Any, at: int, gradient: Tensor | None) -> None:
        if node is None or gradient is None:
            return
        if node not in pending:
            pending[node] = [None] * len(node._input_metadata)
            heapq.heappush(ready, (-node._sequence_nr(), len(pending), node))
        previous, like = pending[node][at], node._input_metadata[at]
        if gradient.shape != like.shape:
            gradient = gradient.sum_to_size(like.shape)
        gradient = gradient.to(like.dtype)
        pending[node][at] = gradient if previous is None else previous + gradient

    with torch.no_grad():
        for out, seed in zip(outs, seeds, strict=True):
            add(*(out.grad_fn, out.output_nr) if out.grad_fn else (_leaf_of(out), 0), seed)
        while ready:
            node = heapq.heappop(ready)[-1]
            gradients = pending.pop(node)
            if hasattr(node, "variable"):
                gradients_of[id(node.variable)] = gradients[0]
                continue
            inputs = (getattr(node, "apply", None) or node)(*gradients)
            inputs = inputs if isinstance(inputs, tuple) else (inputs,)
            if len(inputs) > len(
                node.next_functions
            ):  # of a function in Python, with those of what is no tensor
                inputs = tuple(gradient for gradient in inputs if gradient is not None)
            for (after, at), gradient in zip(node.next_functions, inputs, strict=False):
                add(after, at, gradient)
    return [gradients_of.get(id(leaf)) for leaf in leaves]


def _leaf_of(tensor: Tensor) -> Any:
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _describe(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def choices_on_fakes(samples: list[Sample], alone: list[str]) -> list[Choice]:
    """Return torch's choices on CUDA for fake tensors; operators in `alone` are composites with a kernel
    there."""
    library = torch.library.Library("aten", "IMPL")
    for name in alone:
        library.impl(name, _refuse_to_run, "CUDA")
    try:
        choices = []
        with fake_cuda():
            for sample in samples:
                with FakeTensorMode(allow_non_fake_inputs=True):
                    choices.append(record_choice(sample, _to_fake))
        return choices
    finally:
        library._destroy()


def _refuse_to_run(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("fakes ask for shapes alone")


def _to_fake(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return fake.requires_grad_(tensor.requires_grad)


def choices_on_emulator(samples: list[Sample], gpu: str = "H100") -> list[Choice]:
    """Return what runs on the emulated device."""
    with warnings.catch_warnings(), Emulator(EmulatorOptions(gpu)):
        warnings.simplefilter("ignore")
        return [record_choice(sample, _to_device) for sample in samples]


def _to_device(tensor: Tensor) -> Tensor:
    overlaps = tensor.layout is torch.strided and torch._debug_has_internal_overlap(tensor) == _OVERLAPS
    if tensor.layout is not torch.strided or overlaps:
        return tensor.detach().to("cuda").requires_grad_(tensor.requires_grad)
    placed = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    with torch.no_grad():
        placed.copy_(tensor)
    return placed.requires_grad_(tensor.requires_grad)


def all_entries() -> list[Any]:
    return list(op_db)


def operators_and_kept(call: Callable[..., Tensor], tensors: list[Tensor]) -> tuple[int, list[str]]:
    """Return the bytes `call` keeps for backward beside `tensors`, and the operators launched in both
    passes."""
    inputs = {tensor.untyped_storage()._cdata for tensor in tensors}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in inputs:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    launched = _LaunchRecorder()
    with launched, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = call(*tensors)
    gradient = torch.ones_like(out)
    with launched:
        out.backward(gradient)
    return sum(sizes.values()), launched.names
