"""torch's own asynchronous checkpoint: its staging thread copies while training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint

import gapless
from gapless.emulation.races import thread_order

staging = pytest.importorskip("torch.distributed.checkpoint.staging")
pytestmark = pytest.mark.skipif(not hasattr(staging, "DefaultStager"), reason="this torch stages otherwise")


def saved(folder: Path, waits: bool) -> list[Any]:
    """The races of two steps, before the update of each of which a checkpoint is begun."""
    options = staging.StagingOptions(
        use_pinned_memory=True, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=True
    )
    try:
        with gapless.emulate(world_size=2) as emulation:
            dist.init_process_group("cpu:gloo,cuda:nccl")
            model, stager = nn.Linear(8, 8).cuda(), staging.DefaultStager(options)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                model(torch.randn(4, 8, device="cuda")).sum().backward()
                begun: Any = checkpoint.async_save(
                    {"model": model.state_dict()}, checkpoint_id=folder / str(step), async_stager=stager
                )
                if waits:
                    begun.staging_completion.result()
                optimizer.step()
                optimizer.zero_grad()
                begun.upload_completion.result()
            stager.close()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return list(emulation.races)


def test_weights_that_are_updated_when_they_are_staged(tmp_path: Path) -> None:
    assert saved(tmp_path, waits=True) == []


def test_weights_that_are_updated_while_they_are_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in {"MAX_HOLD_SECONDS": 1.0, "LOOKS_UNCHANGED": 50, "_MAX_TOTAL_HOLD": 60.0}.items():
        monkeypatch.setattr(thread_order, limit, value)
    races = saved(tmp_path, waits=False)
    assert races
    assert {race.kind for race in races} == {"unordered"}
