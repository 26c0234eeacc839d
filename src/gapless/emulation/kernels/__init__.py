"""Run on the CPU the ATen operators that only CUDA has, or whose results differ on CUDA.

The dispatcher says which operators lack a CPU kernel. Each is run by the first that exists: a kernel written
here, ATen's own decomposition, or, if there is only a meta kernel, zeros of the right shape, with a note that
the values are not computed. An operator with none of these is refused by name.
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
"""Kernels by overload name (``mm.dtype``); their parameters are those of the operator's schema."""

HOST_RESULTS: dict[str, tuple[int, ...]] = {}
"""Positions of results that are on the host, by overload name."""
WORKSPACES: dict[str, Callable[..., list[tuple[int, ...]]]] = {}
"""Functions of the arguments that give the shapes of temporary float32 device memory, by overload name."""

REPLACED = frozenset(
    {
        "_fused_rms_norm", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
        "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_batch_norm",
        "_native_batch_norm_legit", "_native_batch_norm_legit.no_stats", "_batch_norm_with_update",
        "native_batch_norm_backward", "batch_norm_backward", "log_sigmoid_forward", "log_sigmoid_backward",
        "_embedding_bag", "_embedding_bag_forward_only",
    }
)  # fmt: skip
"""Overloads whose CPU kernel gives results of another dtype or size, or calls other operators."""

_MODULES = (
    "attention_kernels", "cudnn", "dropout", "kept", "norm", "products", "recurrent_kernels", "sparse",
    "varlen",
)  # fmt: skip
_HOST_KEYS = (
    "CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU",
    "NestedTensorCPU",
)  # fmt: skip


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as the kernel of these ATen overloads."""

    def register(function: Kernel) -> Kernel:
        for name in names:
            KERNELS[name] = function
        return function

    return register


def host_results(func: Any) -> tuple[int, ...]:
    """Positions of the results of `func` that are on the host even if its arguments are on the device."""
    return HOST_RESULTS.get(_overload_name(func), ())


def workspace(func: Any) -> Callable[..., list[tuple[int, ...]]] | None:
    """A function of the arguments of `func` giving the shapes of the temporary float32 memory it needs."""
    return WORKSPACES.get(_overload_name(func))


def lacks_cpu_kernel(func: Any) -> bool:
    """Whether ATen's overload `func`, or the functional form of an ``out=`` overload, has no CPU kernel."""
    if not any(has_kernel(func.name(), key) for key in _HOST_KEYS):
        return True
    functional = _functional_overload(func)
    return functional is not None and lacks_cpu_kernel(functional)


def replaces_cpu_kernel(func: Any) -> bool:
    """Whether a kernel here replaces the CPU's kernel of `func`, whose results differ from CUDA's."""
    if func.namespace != "aten" or _overload_name(func) not in REPLACED:
        return False
    return _overload_name(func) != "_fused_rms_norm" or fuses_rms_norm()


def fuses_rms_norm() -> bool:
    """Whether this torch has a fused CUDA kernel for RMS normalization (2.9 and later)."""
    return bool(has_any_kernel("aten::_fused_rms_norm_backward"))


def runner(func: Any, note: Note) -> Callable[[int, Any, dict[str, Any]], Any]:
    """Return a function (device index, args, kwargs) that runs `func` with CUDA's results.

    `func` is an overload that `lacks_cpu_kernel` or `replaces_cpu_kernel`. Index -1 means the host.

    Raises (when run):
        NotEmulated: there is no kernel, decomposition or meta kernel of it.
    """
    how, run = find_kernel(func)

    def refuse_call(*args: Any, **kwargs: Any) -> Any:
        raise refuse(f"The operator {func.name()}", "Take the code path without it when checking.")

    def run_noting(*args: Any, **kwargs: Any) -> Any:
        note(f"{func.name()} is not computed here: its results are zeros of the right shape")
        return run(*args, **kwargs)

    chosen = refuse_call if how == "refused" else run_noting if how == "shapes" else run

    def call(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if index == -1:
            return func(*args, **kwargs)  # the host's kernel, or ATen's own error where there is none
        with DisableTorchFunction():
            return chosen(*args, **kwargs)

    return call


@cache
def find_kernel(func: Any) -> tuple[How, Kernel]:
    """Return how `func` is run (kernel, decomposition, shapes or refused) and the function that runs it."""
    for module in _MODULES:
        importlib.import_module(f"{__name__}.{module}")
    registered = KERNELS.get(_overload_name(func))
    if registered is not None:
        return "kernel", registered
    functional = _functional_overload(func)
    if functional is not None:
        how, run = find_kernel(functional)
        return how, _write_into_out(func, run)
    tables = torch_internals.decompositions.global_decomposition_table
    decomposition = tables["post_autograd"].get(func)
    if decomposition is not None:
        return "decomposition", decomposition
    if has_kernel(func.name(), "Meta") or func in tables["meta"]:
        return "shapes", _zeros_kernel(func)
    return "refused", lambda *_, **__: None


def _overload_name(func: Any) -> str:
    return str(func.name().split("::", 1)[1])


def _functional_overload(func: Any) -> Any:
    """The overload that returns what `func` writes into ``out=``; None if `func` is no ``out=`` overload."""
    overload = func._schema.overload_name
    if overload != "out" and not overload.endswith("_out"):
        return None
    packet = getattr(torch.ops.aten, func._schema.name.split("::", 1)[1])
    name = overload[:-4] or "default"
    exists = has_any_kernel(f"{func._schema.name}{f'.{name}' if overload[:-4] else ''}")
    return getattr(packet, name) if exists else None


def _write_into_out(func: Any, run: Kernel) -> Kernel:
    """Wrap `run` to write its results into the ``out=`` arguments of `func`."""
    names = [
        argument.name for argument in func._schema.arguments if argument.alias_info and argument.kwarg_only
    ]

    def into(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in names]
        results = run(*args, **kwargs)
        for target, result in zip(
            targets, results if isinstance(results, (list, tuple)) else (results,), strict=True
        ):
            target.resize_(result.shape).copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return into


def _zeros_kernel(func: Any) -> Kernel:
    """A kernel that returns zeros of the shapes of `func`'s results; in-place arguments stay unchanged."""
    written = [
        argument.name
        for argument in func._schema.arguments
        if argument.alias_info and argument.alias_info.is_write
    ]

    def run(*args: Any, **kwargs: Any) -> Any:
        if written:
            return args[0]
        shapes = trees.map_tensors((args, kwargs), lambda tensor: tensor.to("meta"))
        return trees.map_tensors(func(*shapes[0], **shapes[1]), _zeros_like)

    return run


def _zeros_like(meta: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="cpu").zero_()
