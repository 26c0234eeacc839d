"""Operators made of others: composite ones of ATen, and those with a body in Python (`torch.library`).

Inside a mode's handler two things are off that these need. The mode itself: the body of a custom operator
would run as on a machine without a GPU, and what it reads would not be seen. And the dispatch keys that
resolve lazy conjugation and negation: an ATen kernel that makes such views for itself would compute with
wrong values.

An operator that was given a kernel for CUDA alone has none that the CPU values here could reach: its CUDA
kernel is called instead, where that is Python; ATen's own have kernels in `kernels/`. Else it gives zeros as
its shape rule says, unless the user gave something to compute.
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
"""Libraries of operators that come with torch."""
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
    func: Any, mode: TorchDispatchMode, note: Callable[[str], None], known: bool = False
) -> Runner | None:
    """How to run the overload `func`, given its arguments' device; None where it can just be called.

    `known` says that the table of waits knows it: what its kernel for the CPU does is no matter then.

    Raises (when run):
        NotEmulated: the operator has a kernel for CUDA alone, and no shape rule.
    """
    if func.namespace in _SEALED:
        return None
    if func.namespace in _ATEN:
        if kernels.lacks_cpu_kernel(func) or kernels.replaces_cpu_kernel(func):
            return kernels.runner(func, note)
        return _resolving(func) if _makes_views_inside(func) else None
    return _Custom(func, mode, known).run


def _makes_views_inside(func: Any) -> bool:
    """Whether the kernel of `func` may call others on views it has made; views and factories do not."""
    schema = func._schema
    if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
        return False
    if any(one.name == "device" for one in schema.arguments):
        return False
    return not has_kernel(func.name(), "CPU") or schema.name.startswith(_VIEWS_INSIDE)


def _resolving(func: Any) -> Runner:
    """Run a kernel that calls other operators on views it has made."""

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


class _Custom:
    """An operator of a library: which of its kernels stands for the one on the device."""

    def __init__(self, func: Any, mode: Any, known: bool) -> None:
        name = func.name()
        self.func, self.mode, self.known, self.name = func, mode, known, name
        self.on_cuda = _in_python(func, "CUDA")
        self.on_host = next((getattr(Key, key) for key in _ON_HOST if _in_python(func, key)), None)
        self.in_parts = has_kernel(name, "CompositeImplicitAutograd")
        self.reachable = self.in_parts or any(has_kernel(name, key) for key in _ON_HOST)
        self.resolving = _resolving(func)
        if mode.core.values is not None:
            self.resolving = mode.core.values.wrap(func, self.resolving)

    def run(self, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run it with arguments on the device `index`."""
        if index < 0:
            if self.on_host is not None:
                return self._by_key(self.on_host, args, kwargs)
            return self.resolving(index, args, kwargs)
        given = find_replacement(self.name, self.func._schema.name)
        if given is not None:
            self.mode.core.wait(self.name, "read", waits=given.waits)
            with _quiet(), _seen_by(self.mode):
                return given.function(*args, **kwargs)
        with _quiet() if self.known else contextlib.nullcontext():
            return self._on_device(index, args, kwargs)

    def _on_device(self, index: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.on_cuda:
            try:
                return self._by_key(Key.CUDA, args, kwargs)
            except NotEmulated:
                if not fakes.has_rule(self.func):
                    raise
                return self._faked(args, kwargs)
        if self.on_host is not None:
            return self._by_key(self.on_host, args, kwargs)
        if not self.reachable:
            return self._faked(args, kwargs)
        if not self.known and not self.in_parts and self.func.namespace not in _OF_TORCH:
            self.mode.core.recorder.unknown(self.name)
        return self.resolving(index, args, kwargs)

    def _by_key(self, key: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with _seen_by(self.mode):
            return self.func._op_dk(key, *args, **kwargs)

    def _faked(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Zeros of the right shapes, which the report says.

        Raises:
            NotEmulated: the shapes are not known.
        """

        def without_values(*args: Any, **kwargs: Any) -> Any:
            with _quiet():
                return self._by_key(Key.Meta, args, kwargs)

        core = self.mode.core
        try:
            found = fakes.shaped(self.func, args, kwargs, without_values)
        except fakes.NoRule as reason:
            kernel = (
                "a kernel for CUDA only" if self.on_cuda or has_kernel(self.name, "CUDA") else "no kernel"
            )
            own = self.func._schema.name
            raise refuse(
                f"The operator {self.name}{_registered_at(self.name)} has {kernel}, and {reason}. Its result",
                "Register a CPU kernel or a fake for it (torch.library.register_fake), or compute it in "
                f'plain PyTorch for this check: @gapless.standin("{own}"), see docs/standins.md.',
            ) from None
        if not self.known:
            core.recorder.unknown(self.name)
        core.note(
            f"{self.name} has no kernel that runs without a GPU: its results have the right shapes but are "
            "zeros; values computed from them are not the script's"
        )
        return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Neither waits nor launches in here count."""
    local.quiet += 1
    try:
        yield
    finally:
        local.quiet -= 1


def _registered_at(name: str) -> str:
    """``" (defined at ops.py:12)"``, as the dispatcher remembers; "" where that says nothing to a user."""
    found = re.search(r"^schema: .*\n(?:.*\n)*?.*registered at (\S+?):(\d+)", dump_of_operator(name), re.M)
    if found is None or found[1].startswith(("/dev/null", "..")):
        return ""
    return f" (defined at {found[1]}:{found[2]})"


def decomposer(func: Any, mode: Any) -> Callable[[Any, dict[str, Any]], Any] | None:
    """How to run `func` by its parts, if it has any; they are what the table of waits knows.

    Autograd takes composite operators apart before they come here, but there is none of it in inference mode
    and in the body of a kernel.
    """
    name = func.name()
    if (
        not has_kernel(name, "CompositeImplicitAutograd")
        or has_kernel(name, "CPU")
        or kernels.replaces_cpu_kernel(func)
    ):
        return None

    def run(args: Any, kwargs: dict[str, Any]) -> Any:
        with _seen_by(mode):
            return composites.taken_apart(func, args, kwargs, mode.core.device_of)

    return run


def opener(func: Any, mode: TorchDispatchMode) -> Callable[[Any, dict[str, Any]], Any] | None:
    """How to run an operator of ATen whose one kernel for all devices calls others, so that `mode` sees them.

    Where its arguments lie on several devices they say what is copied, and what is refused.
    """
    name = func.name()
    if func.namespace != "aten" or has_kernel(name, "CPU"):
        return None
    key = next((getattr(Key, key) for key in _ON_HOST[1:] if has_kernel(name, key)), None)
    if key is None or any(one.name == "device" for one in func._schema.arguments):
        return None

    def run(args: Any, kwargs: dict[str, Any]) -> Any:
        with _seen_by(mode):
            return func._op_dk(key, *args, **kwargs)

    return run


@contextlib.contextmanager
def _seen_by(mode: TorchDispatchMode) -> Iterator[None]:
    """Let `mode` see what a kernel that is called by its dispatch key runs inside.

    A function mode would be shown the call again, without the key; most often it is off already.
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


def _in_python(func: Any, key: str) -> bool:
    """Whether somebody registered a Python function as kernel of `func` for this dispatch key."""
    schema = func._schema
    short = schema.name.split("::", 1)[1]
    if schema.overload_name:
        short = f"{short}.{schema.overload_name}"
    return f"{func.namespace}/{short}/{key}" in registered_in_python
