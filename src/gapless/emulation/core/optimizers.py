"""Record optimizers when they are created and when they step."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.recording.optimizer_groups import find_maker
from gapless.emulation.support import stacks
from gapless.emulation.support.patches import Patches


def install(core: EmulationCore, patches: Patches) -> Any:
    """Record each optimizer that is created and that steps; return a handle with ``remove()``."""
    real = torch.optim.Optimizer.__init__

    @wraps(real)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        if core.enabled:
            several = len(self.param_groups) > 1
            maker = find_maker(type(self).__name__) if several else None
            core.recorder.optimizers.add(self, stacks.users_line(), maker)

    patches.set(torch.optim.Optimizer, "__init__", init)

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not core.enabled:
            return
        strand = core.recorder.strands.here()
        update = core.recorder.optimizers.note_step(optimizer, (strand.number, strand.passes))
        if core.recorder.programme is not None:
            core.recorder.programme.event(update)

    return register_optimizer_step_pre_hook(hook)
