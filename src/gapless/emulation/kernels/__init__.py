"""Operators that ATen has for CUDA alone, or whose results differ there, on the CPU's values.

Which those are the dispatcher says; how each is run is tried in turn: a kernel written here, ATen's own
decomposition, and where an operator only says of what shape its results are, zeros of that shape, with a note
that the values are not computed. What has none of these is refused by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch

from gapless import torch_internals, trees
from gapless.emulation.support.refusals import refuse
from gapless.torch_internals import DisableTorchFunction, has_any_kernel, has_kernel

Note = Callable[[str], None]
Kernel = Callable[..., Any]
How = Literal["kernel", "decomposition", "shapes", "refused"]

KERNELS: dict[str, Kernel] = {}
"""Kernels by overload (``mm.dtype``); their parameters are those of the operator's schema."""

ON_HOST: dict[str, tuple[int, ...]] = {}
"""Which of their results are on the host."""
WORKSPACES: dict[str, Callable[..., list[tuple[int, ...]]]] = {}
"""Shapes of what they ask for on the device besides, in float32, and give back as they end."""

OWN = frozenset(
    {
        "_fused_rms_norm", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
        "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_batch_norm",
        "_native_batch_norm_legit", "_native_batch_norm_legit.no_stats", "_batch_norm_with_update",
        "native_batch_norm_backward", "batch_norm_backward", "log_sigmoid_forward", "log_sigmoid_backward",
        "_embedding_bag", "_embedding_bag_forward_only",
    }
)  # fmt: skip
"""Overloads that the CPU has too, with results of another type or size, or by other operators."""

_MODULES = ("attention", "cudnn", "dropout", "kept", "norm", "products", "recurrent", "sparse", "varlen")
_HOST_KEYS = (
    "CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU",
    "NestedTensorCPU",
)  # fmt: skip


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Register a kernel for these overloads of ATen."""

    def register(function: Kernel) -> Kernel:
        for name in names:
            KERNELS[name] = function
        return function

    return register


def on_host(func: Any) -> tuple[int, ...]:
    """Positions among the results of `func` that are on the host wherever its arguments are."""
    return ON_HOST.get(_short(func), ())


def workspace(func: Any) -> Callable[..., list[tuple[int, ...]]] | None:
    """What tells the shapes of float32 memory that `func` needs while it runs, from its arguments."""
    return WORKSPACES.get(_short(func))


def lacking(func: Any) -> bool:
    """Whether the overload `func` of ATen, or what its ``out=`` form calls, has no kernel for the CPU."""
    if not any(has_kernel(func.name(), key) for key in _HOST_KEYS):
        return True
    functional = _functional(func)
    return functional is not None and lacking(functional)


def own(func: Any) -> bool:
    """Whether the overload `func` has a kernel here in place of the CPU's, which gives something else."""
    if func.namespace != "aten" or _short(func) not in OWN:
        return False
    return _short(func) != "_fused_rms_norm" or fuses_rms_norm()


def fuses_rms_norm() -> bool:
    """Whether this torch has a kernel for CUDA of RMS normalization: 2.9 and later."""
    return bool(has_any_kernel("aten::_fused_rms_norm_backward"))


def runner(func: Any, note: Note) -> Callable[[int, Any, dict[str, Any]], Any]:
    """How to run `func`, which is `lacking` or CUDA's `own`, given where its arguments are.

    Raises (when run):
        NotEmulated: nothing is known of it.
    """
    how, run = found(func)

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise refuse(f"The operator {func.name()}", "Take the code path without it when checking.")

    def shaped(*args: Any, **kwargs: Any) -> Any:
        note(f"{func.name()} is not computed here: its results are zeros of the right shape")
        return run(*args, **kwargs)

    chosen = refused if how == "refused" else shaped if how == "shapes" else run

    def call(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if index == -1:
            return func(*args, **kwargs)  # the host's kernel, or ATen's own error where there is none
        with DisableTorchFunction():
            return chosen(*args, **kwargs)

    return call


@cache
def found(func: Any) -> tuple[How, Kernel]:
    """How the overload `func` is run, and what runs it."""
    for module in _MODULES:
        importlib.import_module(f"{__name__}.{module}")
    written = KERNELS.get(_short(func))
    if written is not None:
        return "kernel", written
    functional = _functional(func)
    if functional is not None:
        how, run = found(functional)
        return how, _into_out(func, run)
    tables = torch_internals.decompositions.global_decomposition_table
    decomposition = tables["post_autograd"].get(func)
    if decomposition is not None:
        return "decomposition", decomposition
    if has_kernel(func.name(), "Meta") or func in tables["meta"]:
        return "shapes", _zeros(func)
    return "refused", lambda *_, **__: None


def _short(func: Any) -> str:
    return str(func.name().split("::", 1)[1])


def _functional(func: Any) -> Any:
    """The overload that gives what `func` writes into ``out=``; None where `func` is another kind."""
    overload = func._schema.overload_name
    if overload != "out" and not overload.endswith("_out"):
        return None
    packet = getattr(torch.ops.aten, func._schema.name.split("::", 1)[1])
    name = overload[:-4] or "default"
    known = has_any_kernel(f"{func._schema.name}{f'.{name}' if overload[:-4] else ''}")
    return getattr(packet, name) if known else None


def _into_out(func: Any, run: Kernel) -> Kernel:
    """`run`, with its results written into the arguments that `func` takes for them."""
    names = [one.name for one in func._schema.arguments if one.alias_info and one.kwarg_only]

    def into(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in names]
        made = run(*args, **kwargs)
        for target, one in zip(targets, made if isinstance(made, (list, tuple)) else (made,), strict=True):
            target.resize_(one.shape).copy_(one)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return into


def _zeros(func: Any) -> Kernel:
    """What `func` says of shapes, with zeros in them; what it writes in place stays as it was."""
    written = [one.name for one in func._schema.arguments if one.alias_info and one.alias_info.is_write]

    def run(*args: Any, **kwargs: Any) -> Any:
        if written:
            return args[0]
        shapes = trees.mapped((args, kwargs), lambda tensor: tensor.to("meta"))
        return trees.mapped(func(*shapes[0], **shapes[1]), _zeros_like)

    return run


def _zeros_like(meta: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="cpu").zero_()
