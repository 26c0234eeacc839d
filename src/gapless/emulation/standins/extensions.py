"""CUDA extensions, which cannot be built or loaded here: modules whose functions raise when called.

Extensions without CUDA are built and loaded as usual.
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
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.standins.given import find_replacement
from gapless.emulation.support import stacks
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import refuse
from gapless.torch_internals import OperatorNamespace, names_of_operators

_MISSING_CUDA_PATTERN = re.compile(
    r"lib(cudart|cuda|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|nvrtc|nvToolsExt|nccl|c10_cuda"
    r"|torch_cuda)[\w.-]*\.so|undefined symbol: \S*(cuda|Cuda|CUDA)"
)
"""Loader errors of compiled modules that were built for CUDA."""


class Extension(ModuleType):
    """A CUDA extension that was not built or loaded: every function name exists and raises when called."""

    def __init__(self, name: str, core: EmulationCore) -> None:
        super().__init__(name, f"The CUDA extension {name}, which is not available without a GPU.")
        self._core = core

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        function = functools.partial(_call_replacement, self._core, f"{self.__name__}.{name}")
        function.__name__ = name  # type: ignore[attr-defined]
        setattr(self, name, function)
        return function


def _call_replacement(core: EmulationCore, name: str, *args: Any, **kwargs: Any) -> Any:
    """Run the user's replacement for a function of an extension, as one kernel.

    Raises:
        NotEmulated: there is no replacement.
    """
    short = ".".join(name.rsplit(".", 2)[-2:])
    replacement = find_replacement(name, short)
    if replacement is None:
        raise refuse(
            f"`{name}` of a CUDA extension",
            f'Compute it in plain PyTorch for this check: @gapless.standin("{short}"), see docs/standins.md.',
        )
    if replacement.waits:
        core.wait(name, "read", call=short, waits=replacement.waits)
    local.quiet += 1
    try:
        out = replacement.function(*args, **kwargs)
    finally:
        local.quiet -= 1
    programme, reads, results = (
        core.recorder.programme,
        [*trees.tensors((args, kwargs))],
        [*trees.tensors(out)],
    )
    if programme is not None and core.enabled:
        programme.record_kernel(name.replace(".", "::"), reads, results)
    if core.races.full:
        core.races.record_launch(name, reads, results, max(map(core.device_of, reads), default=0))
    return out


def install(core: EmulationCore, patches: Patches) -> None:
    """Replace extensions that need CUDA to be built or loaded."""
    when_imported("torch.utils.cpp_extension", functools.partial(_patch_building, core, patches), patches)
    _patch_loading(core, patches)
    _patch_operators(core, patches)


# -- building ------------------------------------------------------------------------------------------


def _patch_building(core: EmulationCore, patches: Patches, module: ModuleType) -> None:
    def replace_cuda_builds(name: str) -> None:
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

    replace_cuda_builds("load")
    replace_cuda_builds("load_inline")
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


def _patch_loading(core: EmulationCore, patches: Patches) -> None:
    """Turn compiled modules that lack CUDA's libraries into an `Extension` when they are loaded."""
    loader = importlib.machinery.ExtensionFileLoader
    create = loader.create_module

    @functools.wraps(create)
    def create_module(self: Any, spec: Any) -> Any:
        try:
            return create(self, spec)
        except ImportError as error:
            if not _MISSING_CUDA_PATTERN.search(str(error)):
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
            # A library that checks whether its operators exist has its own fallback.
            caller = sys._getframe(1).f_code.co_filename
            if not _MISSING_CUDA_PATTERN.search(str(error)) or stacks.library_of(caller):
                raise
            core.recorder.extensions.setdefault(str(path))
            return None

    patches.set(operators, "load_library", load_library)


def _patch_operators(core: EmulationCore, patches: Patches) -> None:
    """Let operators that a missing extension would define exist, and raise when called."""
    look_up: Callable[[Any, str], Any] = OperatorNamespace.__getattr__

    @functools.wraps(look_up)
    def getattribute(self: Any, name: str) -> Any:
        try:
            return look_up(self, name)
        except AttributeError:
            qualified = f"{self.name}::{name}"
            lost = core.recorder.extensions and not name.startswith("_") and not _has_operators(self.name)
            if find_replacement(qualified) is None and not lost:
                raise
            return functools.partial(_call_operator, core, qualified)

    patches.set(OperatorNamespace, "__getattr__", getattribute)


def _has_operators(library: str) -> bool:
    """Whether the namespace `library` has operators: then a missing one is a plain mistake."""
    return any(name.startswith(f"{library}::") for name in names_of_operators())


def _call_operator(core: EmulationCore, name: str, *args: Any, **kwargs: Any) -> Any:
    """Run the user's replacement for an operator that does not exist here.

    Raises:
        NotEmulated: there is no replacement.
    """
    if find_replacement(name) is None:
        not_built = ", ".join(f"`{extension}`" for extension in core.recorder.extensions)
        raise refuse(
            f"The operator {name} (probably of the CUDA extension {not_built})",
            f'Compute it in plain PyTorch for this check: @gapless.standin("{name}"), see docs/standins.md.',
        )
    return _call_replacement(core, name, *args, **kwargs)
