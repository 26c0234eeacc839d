"""CUDA extensions, which nobody can build or load here: modules whose functions refuse when they are called.

What needs no CUDA is built and loaded as ever.
"""

from __future__ import annotations

import functools
import importlib.machinery
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from gapless import trees
from gapless.emulation.core.core import Core
from gapless.emulation.standins.given import given_for
from gapless.emulation.support import stacks
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import refuse
from gapless.torch_internals import OperatorNamespace, names_of_operators

_CUDA_LIBRARIES = re.compile(
    r"lib(cudart|cuda|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvrtc|nvToolsExt|nccl|c10_cuda"
    r"|torch_cuda)[\w.-]*\.so|undefined symbol: \S*(cuda|Cuda|CUDA)"
)
"""What the loader misses where a compiled module was made for CUDA."""


class Extension(ModuleType):
    """A CUDA extension that was not built or loaded: all its functions are there, and refuse when called."""

    def __init__(self, name: str, core: Core) -> None:
        super().__init__(name, f"The CUDA extension {name}, which is not available without a GPU.")
        self._core = core

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        function = functools.partial(_call, self._core, f"{self.__name__}.{name}")
        function.__name__ = name  # type: ignore[attr-defined]
        setattr(self, name, function)
        return function


def _call(core: Core, name: str, *args: Any, **kwargs: Any) -> Any:
    """Run what the user gave for a function of an extension, as one kernel.

    Raises:
        NotEmulated: nothing was given.
    """
    short = ".".join(name.rsplit(".", 2)[-2:])
    given = given_for(name, short)
    if given is None:
        raise refuse(
            f"`{name}` of a CUDA extension",
            f'Compute it in plain PyTorch for this check: @gapless.standin("{short}"), see docs/standins.md.',
        )
    if given.waits:
        core.wait(name, "read", call=short, waits=given.waits)
    local.quiet += 1
    try:
        out = given.function(*args, **kwargs)
    finally:
        local.quiet -= 1
    programme, reads, made = core.recorder.programme, [*trees.tensors((args, kwargs))], [*trees.tensors(out)]
    if programme is not None and core.enabled:
        programme.launched(name.replace(".", "::"), reads, made)
    if core.races.full:
        core.races.record_launch(name, reads, made, max(map(core.device_of, reads), default=0))
    return out


def install(core: Core, patches: Patches) -> None:
    """Replace what would be built with CUDA sources, and what misses CUDA's libraries when it is loaded."""
    when_imported("torch.utils.cpp_extension", functools.partial(_building, core, patches), patches)
    _loading(core, patches)
    _operators(core, patches)


# -- building ------------------------------------------------------------------------------------------


def _building(core: Core, patches: Patches, module: ModuleType) -> None:
    def unless_cuda(name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("with_cuda") or kwargs.get("cuda_sources") or any(_cuda_files((args, kwargs))):
                title = str(kwargs.get("name") or (args[0] if args else "?"))
                core.recorder.extensions.setdefault(title)
                return Extension(title, core) if kwargs.get("is_python_module", True) else None
            return original(*args, **kwargs)

        patches.set(module, name, load)

    def cuda_extension(name: str = "?", *_: Any, **__: Any) -> Any:
        raise refuse(f"the CUDA extension `{name}`", "Build it on a machine with a CUDA toolkit.")

    unless_cuda("load")
    unless_cuda("load_inline")
    patches.set(module, "CUDAExtension", cuda_extension)


def _cuda_files(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value.endswith((".cu", ".cuh")):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _cuda_files(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _cuda_files(item)
    elif hasattr(value, "__fspath__"):
        yield from _cuda_files(str(value))


# -- loading -------------------------------------------------------------------------------------------


def _loading(core: Core, patches: Patches) -> None:
    """A compiled module that misses CUDA's libraries becomes an `Extension`."""
    loader = importlib.machinery.ExtensionFileLoader
    create = loader.create_module

    @functools.wraps(create)
    def create_module(self: Any, spec: Any) -> Any:
        try:
            return create(self, spec)
        except ImportError as error:
            if not _CUDA_LIBRARIES.search(str(error)):
                raise
            core.recorder.extensions.setdefault(spec.name)
            return Extension(spec.name, core)

    patches.set(loader, "create_module", create_module)
    operators = type(torch.ops)
    load = operators.load_library

    @functools.wraps(load)
    def load_library(self: Any, path: Any) -> Any:
        try:
            return load(self, path)
        except OSError as error:
            # A library that asks whether its operators are there has something else where they are not.
            asked_by = sys._getframe(1).f_code.co_filename
            if not _CUDA_LIBRARIES.search(str(error)) or stacks.library_of(asked_by):
                raise
            core.recorder.extensions.setdefault(str(path))
            return None

    patches.set(operators, "load_library", load_library)


def _operators(core: Core, patches: Patches) -> None:
    """Operators that an extension would have defined refuse when they are called, too."""
    look_up: Callable[[Any, str], Any] = OperatorNamespace.__getattr__

    @functools.wraps(look_up)
    def getattribute(self: Any, name: str) -> Any:
        try:
            return look_up(self, name)
        except AttributeError:
            qualified = f"{self.name}::{name}"
            lost = core.recorder.extensions and not name.startswith("_") and not _has_operators(self.name)
            if given_for(qualified) is None and not lost:
                raise
            return functools.partial(_call_operator, core, qualified)

    patches.set(OperatorNamespace, "__getattr__", getattribute)


def _has_operators(library: str) -> bool:
    """Whether somebody defined operators of that name: then one that is missing there is missing."""
    return any(name.startswith(f"{library}::") for name in names_of_operators())


def _call_operator(core: Core, name: str, *args: Any, **kwargs: Any) -> Any:
    """Run what the user gave for an operator that is not there.

    Raises:
        NotEmulated: nothing was given.
    """
    if given_for(name) is None:
        not_built = ", ".join(f"`{one}`" for one in core.recorder.extensions)
        raise refuse(
            f"The operator {name} (probably of the CUDA extension {not_built})",
            f'Compute it in plain PyTorch for this check: @gapless.standin("{name}"), see docs/standins.md.',
        )
    return _call(core, name, *args, **kwargs)
