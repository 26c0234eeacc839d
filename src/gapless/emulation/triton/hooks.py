"""Patch Triton to evaluate kernel launches, and to pick autotuner configurations without measuring."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import refuse
from gapless.emulation.triton import driver
from gapless.emulation.triton.compiling import evaluating_compiler
from gapless.emulation.triton.launches import TritonLaunches

_AUTOTUNE_NOTE = (
    "Triton's autotuner measured nothing: each kernel takes the first of its configurations (on a GPU the "
    "first launch of every key measures all of them, and waits for each)"
)


def install(core: EmulationCore, patches: Patches) -> None:
    """Patch Triton now, or when the script imports it."""
    launches = TritonLaunches(core)
    changes: dict[str, Callable[[ModuleType], None]] = {
        "triton.runtime.driver": partial(driver.install, core, patches),
        "triton.runtime.jit": partial(_patch_run, launches, patches),
        "triton.runtime.autotuner": partial(_patch_autotuner, core, patches),
    }
    if hasattr(torch.library, "wrap_triton"):  # since torch 2.6; only compilers need it
        patches.set_everywhere(torch.library, "wrap_triton", lambda triton_kernel: triton_kernel)
    for name, change in changes.items():
        when_imported(name, change, patches)


def _patch_run(launches: TritonLaunches, patches: Patches, jit: Any) -> None:
    """Give every kernel a compiler that stops at TTIR, and empty caches while the emulation is on."""
    function = jit.JITFunction
    real = function.run
    if not hasattr(function, "create_binder"):
        patches.set(function, "run", _refuse_old_triton)
        return
    changed: set[int] = set()

    def create_binder(self: Any) -> Any:
        binder = real_binder(self)
        self.compile = evaluating_compiler(launches.launch, self.CompiledKernel)
        return binder

    real_binder = function.create_binder

    @functools.wraps(real)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in changed:
            changed.add(id(self))
            patches.set(self, "device_caches", defaultdict(self.create_binder))
        return real(self, *args, **kwargs)

    patches.set(function, "create_binder", create_binder)
    patches.set(function, "run", run)


def _refuse_old_triton(self: Any, *_: Any, **__: Any) -> Any:
    raise refuse(
        f"the Triton kernel `{getattr(self, '__name__', '?')}`",
        "This Triton is too old for kernels to be evaluated: pip install triton>=3.3.",
    )


def _patch_autotuner(core: EmulationCore, patches: Patches, autotuner: Any) -> None:
    """Make the autotuner take the first configuration; its choices are neither kept nor cached."""
    tuner = autotuner.Autotuner
    if not hasattr(tuner, "_bench"):
        return
    real = tuner.run
    changed: set[int] = set()

    def bench(self: Any, *args: Any, config: Any, **kwargs: Any) -> list[float]:
        core.note(_AUTOTUNE_NOTE)
        return [1.0, 1.0, 1.0]

    @functools.wraps(real)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in changed:
            changed.add(id(self))
            patches.set(self, "cache", {})
            patches.set(self, "cache_results", False)
        return real(self, *args, **kwargs)

    patches.set(tuner, "_bench", bench)
    patches.set(tuner, "run", run)
