"""Hooks into Triton's launchers: which kernels are run, and that nothing is measured to choose them."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch

from gapless.emulation.core.core import Core
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import refuse
from gapless.emulation.triton import driver
from gapless.emulation.triton.compiling import compiler
from gapless.emulation.triton.launches import Launches

_TUNED = (
    "Triton's autotuner measured nothing: each kernel takes the first of its configurations (on a GPU the "
    "first launch of every key measures all of them, and waits for each)"
)


def install(core: Core, patches: Patches) -> None:
    """Evaluate launches, now and where the script imports Triton later."""
    launches = Launches(core)
    changes: dict[str, Callable[[ModuleType], None]] = {
        "triton.runtime.driver": partial(driver.install, core, patches),
        "triton.runtime.jit": partial(_run, launches, patches),
        "triton.runtime.autotuner": partial(_tune, core, patches),
    }
    if hasattr(torch.library, "wrap_triton"):  # since torch 2.6; it is for compilers to look into
        patches.set_everywhere(torch.library, "wrap_triton", lambda triton_kernel: triton_kernel)
    for name, change in changes.items():
        when_imported(name, change, patches)


def _run(launches: Launches, patches: Patches, jit: Any) -> None:
    """Give every kernel a compiler that ends with TTIR, and caches of its own while the emulation is on."""
    function = jit.JITFunction
    real = function.run
    if not hasattr(function, "create_binder"):
        patches.set(function, "run", _too_old)
        return
    changed: set[int] = set()

    def create_binder(self: Any) -> Any:
        found = real_binder(self)
        self.compile = compiler(launches.launch, self.CompiledKernel)
        return found

    real_binder = function.create_binder

    @functools.wraps(real)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in changed:
            changed.add(id(self))
            patches.set(self, "device_caches", defaultdict(self.create_binder))
        return real(self, *args, **kwargs)

    patches.set(function, "create_binder", create_binder)
    patches.set(function, "run", run)


def _too_old(self: Any, *_: Any, **__: Any) -> Any:
    raise refuse(
        f"the Triton kernel `{getattr(self, '__name__', '?')}`",
        "This Triton is too old for kernels to be evaluated: pip install triton>=3.3.",
    )


def _tune(core: Core, patches: Patches, autotuner: Any) -> None:
    """Take the first configuration; what was tuned here is forgotten afterwards, and kept nowhere."""
    tuner = autotuner.Autotuner
    if not hasattr(tuner, "_bench"):
        return
    real = tuner.run
    changed: set[int] = set()

    def bench(self: Any, *args: Any, config: Any, **kwargs: Any) -> list[float]:
        core.note(_TUNED)
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
