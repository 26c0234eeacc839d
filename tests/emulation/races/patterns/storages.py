"""Storages that are copied without a tensor."""

from __future__ import annotations

from typing import Any

import torch
from emulation.races.patterns.scaffold import beside, current, gpu, nothing, pinned, versions


@versions(
    storage_refilled_wrong_802=(nothing,),
    storage_refilled_behind_its_copy=(torch.cuda.synchronize,),
)
def storage_refilled(waits: Any) -> None:
    staging = pinned()
    staging.untyped_storage().cuda(non_blocking=True)
    waits()
    staging.fill_(1)


@versions(
    storage_made_there_used_here_wrong_803=(nothing,),
    storage_made_there_waiting=(lambda side: current().wait_stream(side),),
)
def storage_made_there(waits: Any) -> None:
    staging = pinned()
    with beside() as side:
        held = staging.untyped_storage().to(device="cuda", non_blocking=True)
        values = torch.empty(0, device="cuda").set_(held)
    waits(side)
    values.record_stream(current())
    values.sum()


@versions(storage_read_on_another_stream_wrong_803=(False,), storage_read_behind=(True,))
def storage_copied_to_the_cpu(waits: bool) -> None:
    values = gpu()
    with beside(waits=waits):
        values.untyped_storage().cpu()
