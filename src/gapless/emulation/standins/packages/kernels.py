"""Hugging Face's kernels, which can be installed without a GPU: what its Hub has compiled for CUDA alone."""

from __future__ import annotations

import functools
import importlib
import re
from types import ModuleType
from typing import Any

from gapless.emulation.standins import finder
from gapless.emulation.standins.extensions import Extension
from gapless.emulation.standins.launch import LaunchState
from gapless.emulation.support.patches import Patches

_SAME = (
    (r"flash[-_]?att(ention|n)[-_]?3", "flash_attn_interface"),
    (r"flash[-_]?att(ention|n)([-_]?2)?", "flash_attn"),
    (r"causal[-_]conv1d", "causal_conv1d"),
    (r"mamba[-_]ssm", "mamba_ssm"),
)
"""Endings of repository names, and the package whose functions they hold."""


def installed(module: ModuleType, patches: Patches) -> None:
    """Give stand-ins for kernels that are known; what cannot be had refuses when it is called."""
    if not hasattr(module, "has_kernel"):
        return  # somebody's own module of that name
    real: Any = module.get_kernel

    @functools.wraps(real)
    def get_kernel(repo_id: str, *args: Any, **kwargs: Any) -> Any:
        standing = _standin_module(repo_id)
        if standing is not None:
            return standing
        try:
            return real(repo_id, *args, **kwargs)
        except (OSError, ImportError, RuntimeError, ValueError):  # offline, or not made for a CPU
            if LaunchState.core is None:
                raise
            LaunchState.core.recorder.extensions.setdefault(repo_id)
            return Extension(repo_id, LaunchState.core)

    patches.set(module, "get_kernel", get_kernel)


def _standin_module(repo_id: str) -> ModuleType | None:
    """A module with the functions of the package that a repository is made of; None where none is known."""
    last = repo_id.rpartition("/")[2]
    for ending, package in _SAME:
        if re.search(rf"{ending}$", last):
            try:
                with finder.requests.for_everyone():  # a kernel was asked for, and not a package
                    standin = importlib.import_module(package)
            except ImportError:  # stand-ins are switched off, or this GPU has none
                return None
            module = ModuleType(repo_id, standin.__doc__)
            module.__dict__.update({name: getattr(standin, name) for name in dir(standin) if name[0] != "_"})
            setattr(module, package, standin)
            return module
    return None
