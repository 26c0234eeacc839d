"""Whether what is copied to the device came with a batch of a DataLoader."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader

from gapless.emulation.core.core import Batches


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Hidden:
    """Holds its tensor where nobody knows to look."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


COLLATES: dict[str, tuple[Callable[[list[torch.Tensor]], Any], Callable[[Any], torch.Tensor]]] = {
    "tensor": (torch.stack, lambda batch: batch),
    "tuple": (lambda items: Pair(torch.stack(items), torch.zeros(1)), lambda batch: batch.x),
    "dict": (lambda items: {"deep": [torch.stack(items)]}, lambda batch: batch["deep"][0]),
}


@pytest.mark.parametrize("name", COLLATES)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_loader_hands_out_is_a_batch(name: str, workers: int, machine: Any) -> None:
    collate, part = COLLATES[name]
    loader = DataLoader(list(torch.ones(4, 3)), batch_size=2, collate_fn=collate, num_workers=workers)
    for batch in loader:
        own = part(batch)
        for each in (own, own[:1], own.view(-1), own + 1, torch.cat([own, own])):
            each.to("cuda")
    torch.ones(3).to("cuda")
    session = machine.emulator.session()
    counted = [(session.sites[each.site].batch, each.waits) for each in session.events]
    assert sum(waits for batch, waits in counted if batch is True) == 6
    assert sum(waits for batch, waits in counted if batch is False) == 5


def test_of_a_batch_that_hides_its_tensors_nothing_is_said(machine: Any) -> None:
    for batch in DataLoader(list(torch.ones(2, 3)), collate_fn=lambda items: Hidden(torch.stack(items))):
        batch.x.to("cuda")
    session = machine.emulator.session()
    assert {session.sites[event.site].batch for event in session.events} == {None}


def test_an_address_that_is_used_again_is_no_batch() -> None:
    batches = Batches()
    for _ in range(50):
        batches.add(torch.ones(1000))
        gc.collect()
        assert batches.holds(torch.ones(1000)) is False


def test_only_the_last_are_kept() -> None:
    batches, first = Batches(), torch.ones(1)
    batches.add(first)
    assert batches.holds(first[:1]) is True
    later = [torch.ones(1) for _ in range(1000)]
    batches.add(later)
    assert batches.holds(first) is False
    assert batches.holds(later[-1]) is True
