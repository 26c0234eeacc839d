"""CUDA's autocast for CPU tensors that represent CUDA tensors.

torch decides by dispatch keys: CUDA tensors carry ``AutocastCUDA``, CPU tensors do not, so
``torch.autocast("cuda")`` would cast nothing here. Two changes: the key is included per thread when autocast
is switched on (whether it is *on* remains torch's own bit, the exclusion of the same key, so nesting,
threads, checkpointing and state queries work unchanged), and the key's kernels, whose C++ checks a tensor's
device, are replaced by kernels that look it up in the placement table.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from gapless import torch_internals
from gapless.emulation.dispatch import autocast_ops as ops
from gapless.emulation.dispatch.autocast_kernels import (
    CPU,
    CUDA,
    SHIELD,
    Caster,
    DeviceOf,
    below_autocast,
    body_of,
    overload,
    without_cpu_autocast,
)
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import (
    exclude_key,
    has_kernel,
    include_key,
    key_is_excluded,
    key_is_included,
    library_fallback,
    names_of_operators,
    registered_in_python,
    schemas_of_operator,
)

_fallback: Any = None
"""Fallthrough kernel for the shield's key. Never removed: a thread may still carry the key."""


class _Installed:
    """The registered autocast kernels, until `remove`."""

    def __init__(self, device_of: DeviceOf) -> None:
        self.caster = Caster(device_of)
        self._libraries: list[Any] = []
        self._torchvision = False
        self._shield = False
        policies = ops.aten_policies()
        names = {name: policy for name, policy in policies.items() if _has_kernel(f"aten::{name}")}
        names.update({name: ops.CUDNN_RNN for name in ops.RECURRENT.split() if _exists(f"aten::{name}")})
        self._register("aten", names)

    def torchvision(self) -> None:
        """Replace torchvision's C++ kernels once it is imported.

        Later versions (such as 0.27) have device-independent Python kernels, which work unchanged.
        """
        if self._torchvision or "torchvision.ops" not in sys.modules:
            return
        self._torchvision = True
        policies = {name: policy for policy, names in ops.TORCHVISION.items() for name in names.split()}
        names = {
            name: policy
            for name, policy in policies.items()
            if _has_kernel(f"torchvision::{name}")
            and f"torchvision/{name}/AutocastCUDA" not in registered_in_python
        }
        if names:
            self._register("torchvision", names)

    def shield(self) -> None:
        """Make the CPU's autocast, which is being switched on, pass by the device's tensors."""
        if self._shield:
            return
        self._shield = True
        _let_pass_the_shield()
        library = torch.library.Library("aten", "IMPL")
        self._libraries.append(library)
        for qualified in names_of_operators():
            if qualified.startswith("aten::") and has_kernel(qualified, "AutocastCPU"):
                name = qualified.removeprefix("aten::")
                library.impl(
                    name, without_cpu_autocast(self.caster, overload("aten", name)._op), "AutocastIPU"
                )

    def _register(self, namespace: str, policies: dict[str, str]) -> None:
        library = torch.library.Library(namespace, "IMPL")
        self._libraries.append(library)
        with warnings.catch_warnings():
            # torch warns once per process that kernels are overridden, which is intended here.
            warnings.filterwarnings("ignore", message=r"(?s).*[Oo]verrid")
            for name, policy in policies.items():
                kernel = below_autocast(body_of(self.caster, policy, name, namespace), self.caster)
                library.impl(name, kernel, "AutocastCUDA")

    def remove(self) -> None:
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()
        self.caster.clear()


_installed: _Installed | None = None


def install(device_of: DeviceOf, patches: Patches, note: Callable[[str], None] = lambda said: None) -> None:
    """Make autocast for "cuda" cast the tensors that `device_of` places on a device (index; -1: the host).

    `patches` records the replaced functions and is undone by its owner; `note` receives remarks for the
    report. `uninstall` restores the kernels.
    """
    global _installed
    if _installed is not None:
        uninstall()
    installed = _installed = _Installed(device_of)
    _patch_state(installed, patches, note)
    if torch.is_autocast_enabled("cuda"):
        include_key(CUDA, True)


def uninstall() -> None:
    """Restore CUDA's kernels, if any were replaced."""
    global _installed
    if _installed is not None:
        _installed.remove()
        _installed = None
        include_key(CUDA, False)
        include_key(SHIELD, False)
        exclude_key(SHIELD, True)


def _let_pass_the_shield() -> None:
    global _fallback
    if _fallback is None:
        _fallback = torch.library.Library("_", "IMPL")
        _fallback.fallback(torch.library.fallthrough_kernel, "AutocastIPU")


def _patch_state(installed: _Installed, patches: Patches, note: Callable[[str], None]) -> None:
    clear_cache, can_shield = torch.clear_autocast_cache, library_fallback is not None

    def update_keys() -> None:
        if not key_is_excluded(CUDA):
            installed.torchvision()
            if not key_is_included(CUDA):
                include_key(CUDA, True)
        cpu_is_on = not key_is_excluded(CPU)
        if cpu_is_on and not can_shield:
            note(torch_internals.missing_note("library_fallback"))
        if can_shield and cpu_is_on == key_is_excluded(SHIELD):
            installed.shield()
            include_key(SHIELD, cpu_is_on)
            exclude_key(SHIELD, not cpu_is_on)

    def switching(original: Any) -> Any:
        @functools.wraps(original)
        def set_enabled(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            update_keys()

        return set_enabled

    def clear_autocast_cache() -> None:
        clear_cache()
        installed.caster.clear()

    for name in ("set_autocast_enabled", "set_autocast_cpu_enabled"):
        if hasattr(torch, name):
            patches.set_everywhere(torch, name, switching(getattr(torch, name)))
    patches.set_everywhere(torch, "clear_autocast_cache", clear_autocast_cache)


def _exists(qualified: str) -> bool:
    name, _, which = qualified.partition(".")
    return any(schema.overload_name == which for schema in schemas_of_operator(name))


def _has_kernel(qualified: str) -> bool:
    return _exists(qualified) and has_kernel(qualified, "AutocastCUDA")
