"""Patches for parts of torch.distributed that use other ranks' data: pipelines, checkpoints, ZeRO."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch.distributed as dist

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.distributed import objects
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches
from gapless.errors import NotEmulated
from gapless.torch_internals import path


def install(core: EmulationCore, patches: Patches) -> None:
    """Make these parts run without the other ranks until `patches` are undone, each once imported."""

    def change(target: str, make: Callable[[ModuleType, Any], Any]) -> None:
        """Replace the attribute at `target` by ``make(module, original)`` once its module is imported."""
        module, _, attribute = target.rpartition(".")
        module, owner = _split_class(module)

        def patch_module(loaded_module: ModuleType) -> None:
            holder = getattr(loaded_module, owner, None) if owner else loaded_module
            real = getattr(holder, attribute, None)
            if real is not None:
                patches.set(holder, attribute, make(loaded_module, real))

        when_imported(module, patch_module, patches)

    change(path("validate_global_plan"), lambda module, real: _accept_partial(core, real))
    change(path("dedup_save_plans"), _keep_own_plan)
    change(path("CheckpointWrapper"), _coordinate_here)
    change(path("broadcast_state"), _refuse_unknown_state)
    change(path("receive_stage_meta"), _receive_stage_meta)


def _accept_partial(core: EmulationCore, real: Any) -> Any:
    """Accept a checkpoint that has only this rank's shards."""

    @wraps(real)
    def validate(global_plan: Any, metadata: Any) -> Any:
        core.note("a checkpoint was written with this rank's shards alone")
        problems = real([], metadata)
        return True if isinstance(problems, bool) else []

    return validate


def _keep_own_plan(module: ModuleType, real: Any) -> Any:
    """Treat the other ranks' plans as copies of this one's with nothing left to write."""

    @wraps(real)
    def dedup(all_plans: Any, *args: Any, **kwargs: Any) -> Any:
        mine = dist.get_rank() % len(all_plans)
        return [
            plan if number == mine else dataclasses.replace(plan, items=[])
            for number, plan in enumerate(real(all_plans[mine : mine + 1], *args, **kwargs) * len(all_plans))
        ]

    return dedup


def _coordinate_here(module: ModuleType, real: Any) -> Any:
    """Make this rank a checkpoint's coordinator."""

    @wraps(real)
    def init(self: Any, group: Any, use_dist: bool, *args: Any, **kwargs: Any) -> None:
        real(self, group, use_dist, dist.get_rank(group) if use_dist else 0)

    return init


def _refuse_unknown_state(module: ModuleType, real: Any) -> Any:
    """Refuse to receive optimizer state from another rank."""

    @wraps(real)
    def broadcast(obj: Any, src_rank: int, *args: Any, **kwargs: Any) -> Any:
        if src_rank != dist.get_rank():
            raise NotEmulated(
                f"ZeroRedundancyOptimizer gathers the state that rank {src_rank} has, and only rank "
                f"{dist.get_rank()} is there: what comes after is not checked"
            )
        return real(obj, src_rank, *args, **kwargs)

    return broadcast


def _receive_stage_meta(module: ModuleType, real: Any) -> Any:
    """Derive what a neighbouring stage would say of the tensors that it passes on."""
    stages: Any = module

    @wraps(real)
    def receive(stage: Any, src_stage: int) -> Any:
        if src_stage > stage.stage_index:
            gradients = stages._derive_grad_metas(stage._stage_meta.outputs)
            objects.known_objects.append(stages._StageBackwardMeta(backward_metas=gradients))
        else:
            inputs = stage._user_meta.inputs
            if inputs is None:
                raise NotEmulated(
                    f"what stage {src_stage} hands to stage {stage.stage_index} is not known "
                    "where it does not run: give PipelineStage(input_args=..., output_args=...), or check "
                    "the first rank"
                )
            objects.known_objects.append(stages._StageForwardMeta(forward_metas=inputs))
        return real(stage, src_stage)

    return receive


def _split_class(dotted: str) -> tuple[str, str]:
    """Split ``torch.a.B`` into ``("torch.a", "B")``; no class if the last part is a module's name."""
    module, _, last = dotted.rpartition(".")
    return (module, last) if last.lower() != last else (dotted, "")
