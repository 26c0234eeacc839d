"""Run operators that call other operators: ATen's composite ones, and Python ones (`torch.library`).

Two things are off inside a mode's handler that these need. The mode itself: without it the body of a custom
operator would run unseen, as on a machine without a GPU. And the dispatch keys that resolve lazy conjugation
and negation: an ATen kernel that creates such views would compute wrong values.

A custom operator with a kernel for CUDA only is run by that kernel if it is Python (ATen's have kernels in
`kernels/`), else by a stand-in that the user registered, else it returns zeros in the shape of its fake
implementation.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from gapless.emulation import kernels
from gapless.emulation.dispatch import composites, fakes
from gapless.emulation.standins.given import find_replacement
from gapless.emulation.support.local import local
from gapless.emulation.support.refusals import refuse
from gapless.errors import NotEmulated
from gapless.torch_internals import (
    DispatchKey,
    TorchDispatchMode,
    count_function_modes,
    dump_of_operator,
    exclude_key,
    has_kernel,
    key_is_excluded,
    registered_in_python,
    without_function_mode,
)

Key: Any = DispatchKey
Runner = Callable[[int, Any, dict[str, Any]], Any]

_ATEN = frozenset({"aten", "prim", "quantized", "mkldnn", "mkl"})
_SEALED = frozenset({"c10d", "_c10d_functional", "profiler"})
_OF_TORCH = _ATEN | _SEALED | {
    "c10d_functional", "cuda", "debugprims", "fsdp", "inductor", "mkldnn_prepacked", "onednn", "prepacked",
    "prims", "quantized_decomposed", "rngprims", "sparse", "streams", "symm_mem",
}  # fmt: skip
"""Namespaces of operators that come with torch."""
_ON_HOST = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_VIEWS_INSIDE = (
    "aten::linalg_",
    "aten::_linalg_",
    "aten::fft_",
    "aten::_fft_",
    "aten::cholesky_",
    "aten::lu_",
)


def runner(
    func: Any, mode: TorchDispatchMode, note: Callable[[str], None], has_rows: bool = False
) -> Runner | None:
    """Return a function (device index, args, kwargs) that runs `func`; None if it can be called directly.

    `has_rows`: the table of waits has rows for it, so waits inside its CPU kernel are not counted.

    Raises (when run):
        NotEmulated: the operator has a kernel for CUDA only, and no fake implementation.
    """
    if func.namespace in _SEALED:
        return None
    if func.namespace in _ATEN:
        if kernels.lacks_cpu_kernel(func) or kernels.replaces_cpu_kernel(func):
            return kernels.runner(func, note)
        return _resolving_runner(func) if _makes_views_inside(func) else None
    return _CustomOperator(func, mode, has_rows).run


def _makes_views_inside(func: Any) -> bool:
    """Whether the kernel of `func` may call operators on views it creates; views and factories do not."""
    schema = func._schema
    if any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns):
        return False
    if any(argument.name == "device" for argument in schema.arguments):
        return False
    return not has_kernel(func.name(), "CPU") or schema.name.startswith(_VIEWS_INSIDE)


def _resolving_runner(func: Any) -> Runner:
    """Return a runner of `func` with conjugation and negation of views resolved inside."""

    def run(index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if not key_is_excluded(Key.Conjugate):
            return func(*args, **kwargs)
        exclude_key(Key.Conjugate, False)
        exclude_key(Key.Negative, False)
        try:
            return func(*args, **kwargs)
        finally:
            exclude_key(Key.Conjugate, True)
            exclude_key(Key.Negative, True)

    return run


class _CustomOperator:
    """A custom operator, and which of its kernels to run in place of the device's."""

    def __init__(self, func: Any, mode: Any, has_rows: bool) -> None:
        name = func.name()
        self.func, self.mode, self.has_rows, self.name = func, mode, has_rows, name
        self.on_cuda = _has_python_kernel(func, "CUDA")
        self.on_host = next((getattr(Key, key) for key in _ON_HOST if _has_python_kernel(func, key)), None)
        self.in_parts = has_kernel(name, "CompositeImplicitAutograd")
        self.reachable = self.in_parts or any(has_kernel(name, key) for key in _ON_HOST)
        self.resolving = _resolving_runner(func)
        if mode.core.values is not None:
            self.resolving = mode.core.values.wrap(func, self.resolving)

    def run(self, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operator with arguments on device `index` (negative: on the host)."""
        if index < 0:
            if self.on_host is not None:
                return self._by_key(self.on_host, args, kwargs)
            return self.resolving(index, args, kwargs)
        standin = find_replacement(self.name, self.func._schema.name)
        if standin is not None:
            self.mode.core.wait(self.name, "read", waits=standin.waits)
            with _pause_counting(), _mode_on(self.mode):
                return standin.function(*args, **kwargs)
        with _pause_counting() if self.has_rows else contextlib.nullcontext():
            return self._on_device(index, args, kwargs)

    def _on_device(self, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.on_cuda:
            try:
                return self._by_key(Key.CUDA, args, kwargs)
            except NotEmulated:
                if not fakes.has_rule(self.func):
                    raise
                return self._run_fake(args, kwargs)
        if self.on_host is not None:
            return self._by_key(self.on_host, args, kwargs)
        if not self.reachable:
            return self._run_fake(args, kwargs)
        if not self.has_rows and not self.in_parts and self.func.namespace not in _OF_TORCH:
            self.mode.core.recorder.unknown(self.name)
        return self.resolving(index, args, kwargs)

    def _by_key(self, key: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with _mode_on(self.mode):
            return self.func._op_dk(key, *args, **kwargs)

    def _run_fake(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return zeros of the shapes of the fake implementation, and note it in the report.

        Raises:
            NotEmulated: the shapes are not known.
        """

        def without_values(*args: Any, **kwargs: Any) -> Any:
            with _pause_counting():
                return self._by_key(Key.Meta, args, kwargs)

        core = self.mode.core
        try:
            results = fakes.shaped_zeros(self.func, args, kwargs, without_values)
        except fakes.NoRule as reason:
            kernel = (
                "a kernel for CUDA only" if self.on_cuda or has_kernel(self.name, "CUDA") else "no kernel"
            )
            own = self.func._schema.name
            raise refuse(
                f"The operator {self.name}{_defined_at(self.name)} has {kernel}, and {reason}. Its result",
                "Register a CPU kernel or a fake for it (torch.library.register_fake), or compute it in "
                f'plain PyTorch for this check: @gapless.standin("{own}"), see docs/standins.md.',
            ) from None
        if not self.has_rows:
            core.recorder.unknown(self.name)
        core.note(
            f"{self.name} has no kernel that runs without a GPU: its results have the right shapes but are "
            "zeros; values computed from them are not the script's"
        )
        return results


@contextlib.contextmanager
def _pause_counting() -> Iterator[None]:
    """A context in which waits and launches are not counted."""
    local.quiet += 1
    try:
        yield
    finally:
        local.quiet -= 1


def _defined_at(name: str) -> str:
    """``" (defined at ops.py:12)"`` from the dispatcher's dump; "" if there is no user file."""
    match = re.search(r"^schema: .*\n(?:.*\n)*?.*registered at (\S+?):(\d+)", dump_of_operator(name), re.M)
    if match is None or match[1].startswith(("/dev/null", "..")):
        return ""
    return f" (defined at {match[1]}:{match[2]})"


def decomposer(func: Any, mode: Any) -> Callable[[Any, dict[str, Any]], Any] | None:
    """Return a function that runs the composite operator `func` by its parts; None if it is not composite.

    The table of waits knows the parts. Autograd decomposes composite operators before they arrive here,
    except in inference mode and in the body of a kernel.
    """
    name = func.name()
    if (
        not has_kernel(name, "CompositeImplicitAutograd")
        or has_kernel(name, "CPU")
        or kernels.replaces_cpu_kernel(func)
    ):
        return None

    def run(args: Any, kwargs: dict[str, Any]) -> Any:
        with _mode_on(mode):
            return composites.decompose(func, args, kwargs, mode.core.device_of)

    return run


def mixed_device_runner(func: Any, mode: TorchDispatchMode) -> Callable[[Any, dict[str, Any]], Any] | None:
    """Return a function that runs `func` with `mode` seeing the operators inside; None if it is not possible.

    For ATen operators with one kernel for all devices. If its arguments are on several devices, the operators
    inside decide what is copied and what is refused.
    """
    name = func.name()
    if func.namespace != "aten" or has_kernel(name, "CPU"):
        return None
    key = next((getattr(Key, key) for key in _ON_HOST[1:] if has_kernel(name, key)), None)
    if key is None or any(argument.name == "device" for argument in func._schema.arguments):
        return None

    def run(args: Any, kwargs: dict[str, Any]) -> Any:
        with _mode_on(mode):
            return func._op_dk(key, *args, **kwargs)

    return run


@contextlib.contextmanager
def _mode_on(mode: TorchDispatchMode) -> Iterator[None]:
    """Enter `mode` and resolve conjugation and negation while a kernel is called by its dispatch key.

    Function modes are off: they would be shown the call again, without the key.
    """
    unseen = without_function_mode() if count_function_modes() else contextlib.nullcontext()
    excluded = key_is_excluded(Key.Conjugate)
    exclude_key(Key.Conjugate, False)
    exclude_key(Key.Negative, False)
    try:
        with mode, unseen:
            yield
    finally:
        exclude_key(Key.Conjugate, excluded)
        exclude_key(Key.Negative, excluded)


def _has_python_kernel(func: Any, key: str) -> bool:
    """Whether a Python function is registered as kernel of `func` for this dispatch key."""
    schema = func._schema
    short = schema.name.split("::", 1)[1]
    if schema.overload_name:
        short = f"{short}.{schema.overload_name}"
    return f"{func.namespace}/{short}/{key}" in registered_in_python
