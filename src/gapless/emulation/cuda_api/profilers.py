"""Restrict the script's own profiler to CPU activity: there is no device activity to record."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch.autograd.profiler
import torch.profiler

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import KinetoProfile


def install(core: EmulationCore, patches: Patches) -> None:
    """Make profilers record CPU activity only; `ProfilerActivity.CUDA` is accepted and dropped."""
    legacy = torch.autograd.profiler.profile
    real = legacy.__init__

    @wraps(real)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("use_device") == "cuda":
            kwargs["use_device"] = None
        kwargs.pop("use_cuda", None)
        real(self, *args, **kwargs)

    patches.set(legacy, "__init__", init)
    real_kineto = KinetoProfile.__init__

    @wraps(real_kineto)
    def init_kineto(self: Any, *args: Any, **kwargs: Any) -> None:
        real_kineto(self, *args, **kwargs)
        if self.use_device == "cuda":
            core.note("the script's own profiler records CPU activity only, because the device is emulated")
            self.use_device = None
            activity = torch.profiler.ProfilerActivity
            self.activities = {activity.CPU, *self.activities} - {activity.CUDA}

    patches.set(KinetoProfile, "__init__", init_kineto)
