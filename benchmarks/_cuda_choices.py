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

Tensor = torch.Tensor
_OVERLAPS = 1
"""What torch answers of a tensor some of whose elements share memory for sure."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Sample(NamedTuple):
    """One call: `function` of the tensors in `args` and `kwargs`, which are on the host."""

    name: str
    dtype: torch.dtype
    learns: bool
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Choice(NamedTuple):
    """The operators of a call, the tensors it keeps (shape, type), and those it gives; or its error.

    `backward` are the operators of its backward pass, and `gradients` what that gives; or its error.
    """

    operators: tuple[str, ...] = ()
    kept: tuple[tuple[Any, ...], ...] = ()
    results: tuple[tuple[Any, ...], ...] = ()
    error: str = ""
    backward: tuple[str, ...] = ()
    gradients: tuple[tuple[Any, ...], ...] = ()
    backward_error: str = ""


# -- samples ---------------------------------------------------------------------------------------------


def of_operators(
    entries: list[Any],
    most: int,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    learning: tuple[bool, ...] = (True, False),
) -> Iterator[Sample]:
    """Up to `most` samples of each entry of ``op_db``, type and grad mode; images with channels last, too."""
    for op, dtype, learns in itertools.product(entries, dtypes, learning):
        if dtype not in op.supported_dtypes("cuda"):
            continue
        if learns and not (op.supports_autograd and dtype in op.supported_backward_dtypes("cuda")):
            continue
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        with contextlib.suppress(Exception):  # some samples cannot be made on a CPU
            for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=learns), most):
                args = (sample.input, *sample.args)
                yield Sample(name, dtype, learns, op.op, args, sample.kwargs)
                if any(isinstance(one, Tensor) and one.dim() == 4 for one in args):
                    laid = tuple(map(_channels_last, args))
                    yield Sample(f"{name} channels last", dtype, learns, op.op, laid, sample.kwargs)


def _channels_last(one: Any) -> Any:
    if not isinstance(one, Tensor) or one.dim() != 4:
        return one
    return one.detach().to(memory_format=torch.channels_last).requires_grad_(one.requires_grad)


def of_modules(most: int, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[Sample]:
    """Up to `most` samples of each module of torch, type and mode."""
    for info, dtype, training in itertools.product(module_db, dtypes, (True, False)):
        if dtype not in info.dtypes or issubclass(info.module_cls, LazyModuleMixin):
            continue
        with contextlib.suppress(Exception):
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=training, training=training
            )
            for one in itertools.islice(inputs, most):
                if one.forward_input is None:
                    continue
                made, given = one.constructor_input, one.forward_input
                module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
                yield Sample(
                    info.name, dtype, training, _called(module),
                    (list(module.state_dict().items()), *given.args), given.kwargs,
                )  # fmt: skip


def _called(module: nn.Module) -> Callable[..., Any]:
    """`module` as a function of its state, which goes where a sample is put."""

    def call(state: list[tuple[str, Tensor]], *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, dict(state), args, kwargs)

    return call


def of_ours(dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[Sample]:
    """What neither of torch's lists has: numbers that change type on the way, dropout inside, cells."""
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
            name, dtype, learns, function, tuple(one.to(dtype).requires_grad_(learns) for one in args), {}
        )


# -- what runs -----------------------------------------------------------------------------------------------


class _Seen(TorchDispatchMode):
    """Names of the operators that launch something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if func.namespace != "prim" and launches(func):
            self.names.append(func.name().removeprefix("aten::"))
        return out


def choice(sample: Sample, put: Callable[[Tensor], Tensor]) -> Choice:
    """What runs for `sample`, whose tensors `put` places on the device."""
    kept: list[tuple[Any, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(_described(tensor))
        return tensor

    placed = tree_map(lambda one: put(one) if isinstance(one, Tensor) else one, (sample.args, sample.kwargs))
    seen = _Seen()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    try:
        with torch.set_grad_enabled(sample.learns), seen, hooks:
            out = sample.function(*placed[0], **placed[1])
    except Exception as error:
        return Choice(error=_short(error))
    outs = [one for one in tree_flatten(out)[0] if isinstance(one, Tensor)]
    forward = Choice(tuple(seen.names), tuple(kept), tuple(map(_described, outs)))
    leaves = [one for one in tree_flatten(placed)[0] if isinstance(one, Tensor) and one.requires_grad]
    return _with_backward(forward, [one for one in outs if one.requires_grad], leaves)


def _with_backward(forward: Choice, outs: list[Tensor], leaves: list[Tensor]) -> Choice:
    """`forward` with what runs to get from `outs` to the gradients of `leaves`."""
    if not outs or not leaves:
        return forward
    seen = _Seen()
    try:
        given = [torch.ones_like(one) for one in outs]
        with seen:
            gradients = _gradients(outs, leaves, given)
    except Exception as error:
        return forward._replace(backward_error=_short(error))
    made = tuple(() if one is None else _described(one) for one in gradients)
    return forward._replace(backward=tuple(seen.names), gradients=made)


def _gradients(outs: list[Tensor], leaves: list[Tensor], given: list[Tensor]) -> list[Tensor | None]:
    """As of ``torch.autograd.grad``, whose engine wants a device of CUDA's to be there: node after node, in
    the order of its numbers."""
    there: dict[Any, list[Tensor | None]] = {}
    found: dict[int, Tensor] = {}
    ready: list[tuple[int, int, Any]] = []

    def add(node: Any, at: int, gradient: Tensor | None) -> None:
        if node is None or gradient is None:
            return
        if node not in there:
            there[node] = [None] * len(node._input_metadata)
            heapq.heappush(ready, (-node._sequence_nr(), len(there), node))
        known, like = there[node][at], node._input_metadata[at]
        if gradient.shape != like.shape:
            gradient = gradient.sum_to_size(like.shape)
        gradient = gradient.to(like.dtype)
        there[node][at] = gradient if known is None else known + gradient

    with torch.no_grad():
        for out, one in zip(outs, given, strict=True):
            add(*(out.grad_fn, out.output_nr) if out.grad_fn else (_leaf_of(out), 0), one)
        while ready:
            node = heapq.heappop(ready)[-1]
            gradients = there.pop(node)
            if hasattr(node, "variable"):
                found[id(node.variable)] = gradients[0]
                continue
            made = (getattr(node, "apply", None) or node)(*gradients)
            made = made if isinstance(made, tuple) else (made,)
            if len(made) > len(
                node.next_functions
            ):  # of a function in Python, with those of what is no tensor
                made = tuple(one for one in made if one is not None)
            for (after, at), gradient in zip(node.next_functions, made, strict=False):
                add(after, at, gradient)
    return [found.get(id(leaf)) for leaf in leaves]


def _leaf_of(tensor: Tensor) -> Any:
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _described(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def on_fakes(samples: list[Sample], alone: list[str]) -> list[Choice]:
    """What torch chooses on CUDA; `alone` are composite operators that have a kernel there."""
    library = torch.library.Library("aten", "IMPL")
    for name in alone:
        library.impl(name, _no_work, "CUDA")
    try:
        found = []
        for sample in samples:
            with fake_cuda(), FakeTensorMode(allow_non_fake_inputs=True):
                found.append(choice(sample, _faked))
        return found
    finally:
        library._destroy()


def _no_work(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("fakes ask for shapes alone")


def _faked(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return made.requires_grad_(tensor.requires_grad)


def on_emulated(samples: list[Sample], gpu: str = "H100") -> list[Choice]:
    """What runs on the emulated device."""
    with warnings.catch_warnings(), Emulator(gpu):
        warnings.simplefilter("ignore")
        return [choice(sample, _moved) for sample in samples]


def _moved(tensor: Tensor) -> Tensor:
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
    """Bytes that `call` keeps for backward beside `tensors`, and the operators that launch in both passes."""
    known = {one.untyped_storage()._cdata for one in tensors}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    seen = _Seen()
    with seen, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = call(*tensors)
    gradient = torch.ones_like(out)
    with seen:
        out.backward(gradient)
    return sum(sizes.values()), seen.names
