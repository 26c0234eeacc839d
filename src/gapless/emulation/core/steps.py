"""Mark where training steps begin and end, without the user's help."""

from __future__ import annotations

import contextlib
import weakref
from functools import wraps
from typing import Any

import torch
import torch.profiler
import torch.utils.data
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gapless import torch_internals
from gapless.emulation.core.core import EmulationCore
from gapless.emulation.core.optimizer_reads import Stepping
from gapless.emulation.support.local import local
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.places import HOST
from gapless.torch_internals import LoaderIter, sequence_number


def install(core: EmulationCore, patches: Patches) -> Any:
    """Mark optimizer steps, profiler steps, backward passes, batches and evaluation.

    Return a handle whose ``close()`` removes the optimizers' hooks.
    """
    _install_backward(core, patches)
    _install_batches(core, patches)
    _install_profiler(core, patches)
    _install_phase(core, patches)
    _install_scaler(core, patches)
    _install_custom_functions(core, patches)
    if core.placement.memory is not None:
        _install_moves(core, patches)
    hooks = contextlib.ExitStack()
    hooks.callback(register_optimizer_step_pre_hook(_pre_step_hook(core)).remove)
    hooks.callback(register_optimizer_step_post_hook(_post_step_hook(core)).remove)
    return hooks


def _pre_step_hook(core: EmulationCore) -> Any:
    """Return a hook that notes the begin of an optimizer's step."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        local.scaled = None  # the scaler has decided
        local.stepping = Stepping(optimizer)
        if core.recorder.programme is not None:
            core.recorder.programme.optimizing = True
        if core.placement.memory is not None:
            core.placement.memory.begin_step(optimizer)
        core.graphs.before_step(optimizer)

    return hook


def _post_step_hook(core: EmulationCore) -> Any:
    """Return a hook that notes the end of an optimizer's step and marks it."""

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        local.stepping = None
        if core.enabled:
            if core.recorder.programme is not None:
                core.recorder.programme.optimizing = False
            if core.placement.memory is not None:
                core.placement.memory.end_step(optimizer)
            core.recorder.mark("optimizer", _mark_name(core, optimizer), depth=1)

    return hook


def _mark_name(core: EmulationCore, optimizer: Any) -> str:
    """Return the mark's name: the optimizer's class and its number."""
    number = core.optimizers.get(optimizer)
    if number is None:
        number = core.optimizers_seen
        core.optimizers_seen += 1
        core.optimizers.put(optimizer, number)
    return f"{type(optimizer).__name__}.step#{number}"


def _install_scaler(core: EmulationCore, patches: Patches) -> None:
    """Mark a step that GradScaler skips after an overflow: it is a step all the same."""
    from torch.amp.grad_scaler import GradScaler

    real = GradScaler.step

    @wraps(real)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = core.recorder.stepped
        local.scaled = optimizer
        try:
            out = real(self, optimizer, *args, **kwargs)
        finally:
            local.scaled = None
        if core.enabled and core.recorder.stepped == before:
            core.recorder.mark("optimizer", _mark_name(core, optimizer), depth=1)
        return out

    patches.set(GradScaler, "step", step)


def _install_backward(core: EmulationCore, patches: Patches) -> None:
    """Wrap the one Python function that every call of the autograd engine goes through."""
    real = torch_internals.run_backward

    @wraps(real)
    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not core.enabled:
            return real(outputs, *args, **kwargs)
        before, strand = local.backward, core.recorder.strands.here()
        devices = [core.device_of(tensor) for tensor in outputs if isinstance(tensor, torch.Tensor)]
        if (device := max(devices, default=HOST)) != HOST:
            core.graphs.before_backward(outputs)
        local.backward = device
        outermost = not strand.depth
        if outermost:
            core.recorder.phase = "train"
            core.recorder.mark("backward", depth=1)
            if core.placement.memory is not None:
                core.placement.memory.unused.begin_backward()
        on_device = local.backward != HOST
        called = core.races.begin_backward()
        strand.depth += 1
        try:
            out = real(outputs, *args, **kwargs)
        finally:
            strand.depth -= 1
            local.backward = before
            core.races.end_backward(called)
        if outermost:
            core.recorder.backward_over(depth=1)
            # Without an optimizer the parameters are updated by hand, once there are gradients.
            if on_device and not core.optimizers_made:
                core.recorder.mark("gradients", depth=1)
        return out

    patches.set_everywhere(*torch_internals.place("run_backward"), run)


def _install_custom_functions(core: EmulationCore, patches: Patches) -> None:
    """Record the nodes of custom autograd functions, which no function mode sees."""
    real = torch.autograd.Function.__dict__["apply"]  # a classmethod, or since torch 2.14 one written in C

    @wraps(torch.autograd.Function.apply)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        before = sequence_number()
        out = real.__get__(None, cls)(*args, **kwargs)
        if core.enabled and sequence_number() != before:
            core.created_nodes(before)
        return out

    patches.set(torch.autograd.Function, "apply", classmethod(apply))


def _install_moves(core: EmulationCore, patches: Patches) -> None:
    """Tell memory recording when a module is moved: its tensors are no batch."""
    real = torch_internals.module_apply

    @wraps(real)
    def _apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        memory = core.placement.memory
        if memory is None:
            return real(self, *args, **kwargs)
        memory.moving += 1
        try:
            return real(self, *args, **kwargs)
        finally:
            memory.moving -= 1
            if not memory.moving:
                memory.note_move(self)

    patches.set(*torch_internals.place("module_apply"), _apply)


def _install_batches(core: EmulationCore, patches: Patches) -> None:
    """Mark each batch that a DataLoader returns."""
    real = LoaderIter.__next__

    @wraps(real)
    def next_batch(self: Any) -> Any:
        batch = real(self)
        if core.enabled:
            core.recorder.mark("batch", depth=1)
            core.batches.add(batch)
            core.origins.note_batch(batch)
        return batch

    patches.set(LoaderIter, "__next__", next_batch)


def _install_profiler(core: EmulationCore, patches: Patches) -> None:
    """Mark each ``profiler.step()``."""
    real = torch.profiler.profile.step

    @wraps(real)
    def step(self: Any) -> Any:
        out = real(self)
        if core.enabled:
            core.recorder.mark("profiler", "profiler.step", depth=1)
        return out

    patches.set(torch.profiler.profile, "step", step)


def _install_phase(core: EmulationCore, patches: Patches) -> None:
    """Track evaluation: ``model.eval()`` begins one, ``model.train()`` or a backward pass ends it.

    Only for a module that is being trained: a frozen teacher or a frozen normalisation layer says nothing
    about the loop.
    """
    real = torch.nn.Module.train
    depth = 0

    @wraps(real)
    def train(self: Any, mode: bool = True) -> Any:
        nonlocal depth
        depth += 1
        try:
            out = real(self, mode)
        finally:
            depth -= 1
        if depth == 0 and core.enabled and core.trained.any_of(self.parameters()):
            core.recorder.phase = "train" if mode else "eval"
            # Before torch 2.5 what `torch.compile` wraps knows its mode, and the wrapper does not.
            evaluated = None if mode else next((m for m in self.modules() if not m.training), None)
            core.recorder.evaluated = (lambda: None) if evaluated is None else weakref.ref(evaluated)
            if not mode and core.recorder.programme is not None:
                core.recorder.programme.note_evaluation()
        return out

    patches.set(torch.nn.Module, "train", train)
    real_add = torch.optim.Optimizer.add_param_group

    @wraps(real_add)
    def add_param_group(self: Any, group: dict[str, Any]) -> None:
        real_add(self, group)
        core.optimizers_made = True
        for parameter in self.param_groups[-1]["params"]:
            core.trained.put(parameter, True)
        core.graphs.add_optimizer(self)

    patches.set(torch.optim.Optimizer, "add_param_group", add_param_group)
