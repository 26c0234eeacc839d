"""Parts of torch.distributed that look into what the other ranks send: pipelines, checkpoints, ZeRO."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch.distributed as dist

from gapless.emulation.core.core import Core
from gapless.emulation.distributed import objects
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches
from gapless.errors import NotEmulated
from gapless.torch_internals import path


def install(core: Core, patches: Patches) -> None:
    """Have them run without the other ranks until `patches` are undone, each once it is imported."""

    def change(where: str, made: Callable[[ModuleType, Any], Any]) -> None:
        module, _, attribute = where.rpartition(".")
        module, owner = _class_in(module)

        def when_there(loaded: ModuleType) -> None:
            holder = getattr(loaded, owner, None) if owner else loaded
            real = getattr(holder, attribute, None)
            if real is not None:
                patches.set(holder, attribute, made(loaded, real))

        when_imported(module, when_there, patches)

    change(path("validate_global_plan"), lambda module, real: _incomplete(core, real))
    change(path("dedup_save_plans"), _own_plan)
    change(path("CheckpointWrapper"), _coordinating)
    change(path("broadcast_state"), _unknown_state)
    change(path("receive_stage_meta"), _stage_meta)


def _incomplete(core: Core, real: Any) -> Any:
    """A checkpoint that has the shards of one rank is whole for it."""

    @wraps(real)
    def validate(global_plan: Any, metadata: Any) -> Any:
        core.note("a checkpoint was written with this rank's shards alone")
        found = real([], metadata)
        return True if isinstance(found, bool) else []

    return validate


def _own_plan(module: ModuleType, real: Any) -> Any:
    """The other ranks' plans are copies of this one's, and have nothing left to write."""

    @wraps(real)
    def dedup(all_plans: Any, *args: Any, **kwargs: Any) -> Any:
        mine = dist.get_rank() % len(all_plans)
        return [
            plan if number == mine else dataclasses.replace(plan, items=[])
            for number, plan in enumerate(real(all_plans[mine : mine + 1], *args, **kwargs) * len(all_plans))
        ]

    return dedup


def _coordinating(module: ModuleType, real: Any) -> Any:
    """A checkpoint's coordinator is the rank that is there."""

    @wraps(real)
    def init(self: Any, group: Any, use_dist: bool, *args: Any, **kwargs: Any) -> None:
        real(self, group, use_dist, dist.get_rank(group) if use_dist else 0)

    return init


def _unknown_state(module: ModuleType, real: Any) -> Any:
    @wraps(real)
    def broadcast(obj: Any, src_rank: int, *args: Any, **kwargs: Any) -> Any:
        if src_rank != dist.get_rank():
            raise NotEmulated(
                f"ZeroRedundancyOptimizer gathers the state that rank {src_rank} has, and only rank "
                f"{dist.get_rank()} is there: what comes after is not checked"
            )
        return real(obj, src_rank, *args, **kwargs)

    return broadcast


def _stage_meta(module: ModuleType, real: Any) -> Any:
    """What a neighbouring stage says of the tensors that it hands over."""
    stages: Any = module

    @wraps(real)
    def receive(stage: Any, src_stage: int) -> Any:
        if src_stage > stage.stage_index:
            gradients = stages._derive_grad_metas(stage._stage_meta.outputs)
            objects.known.append(stages._StageBackwardMeta(backward_metas=gradients))
        else:
            inputs = stage._user_meta.inputs
            if inputs is None:
                raise NotEmulated(
                    f"what stage {src_stage} hands to stage {stage.stage_index} is not known "
                    "where it does not run: give PipelineStage(input_args=..., output_args=...), or check "
                    "the first rank"
                )
            objects.known.append(stages._StageForwardMeta(forward_metas=inputs))
        return real(stage, src_stage)

    return receive


def _class_in(dotted: str) -> tuple[str, str]:
    """``("torch.a", "B")`` of ``torch.a.B``; no class where the last part is a module's name."""
    module, _, last = dotted.rpartition(".")
    return (module, last) if last.lower() != last else (dotted, "")
