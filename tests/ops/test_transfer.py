"""Batches arrive whole, without a wait."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor

import gapless
from gapless import ops
from gapless.ops import transfer

Pair = namedtuple("Pair", ["images", "labels"])


@dataclasses.dataclass
class Sample:
    image: Tensor
    name: str


class Owned:
    def __init__(self, device: str) -> None:
        self.device = device

    def to(self, device: torch.device, non_blocking: bool = False) -> Owned:
        assert non_blocking
        return Owned(str(device))


def batch() -> Any:
    return {
        "pair": Pair(torch.arange(4.0), torch.arange(4)),
        "list": [torch.ones(2, dtype=torch.float16).pin_memory(), "text", None, 3],
        "sample": Sample(torch.eye(2).t(), "a"),
        "ordered": OrderedDict(first=(torch.zeros(0), torch.tensor(5))),
        "owned": Owned("cpu"),
    }


@pytest.mark.parametrize("streamed", [False, True])
def test_everything_arrives_and_nothing_waits(streamed: bool) -> None:
    with gapless.emulate() as emulation:
        host = batch()
        before = emulation.waits
        moved = ops.to_device(host, "cuda", stream=torch.cuda.Stream() if streamed else None)
        assert emulation.waits == before, emulation.session.sites
        assert isinstance(moved["pair"], Pair)
        assert {moved["pair"].images.device.type, moved["list"][0].device.type} == {"cuda"}
        assert moved["list"][1:] == ["text", None, 3]
        assert (moved["sample"].name, moved["sample"].image.is_cuda) == ("a", True)
        assert isinstance(moved["ordered"], OrderedDict)
        assert moved["owned"].device == "cuda"
        assert host["pair"].images.device.type == "cpu"
        assert torch.equal(moved["pair"].images.cpu(), host["pair"].images)
        assert torch.equal(moved["sample"].image.cpu(), host["sample"].image)
        assert moved["ordered"]["first"][1].item() == 5


def test_tensors_already_on_the_device_are_not_copied() -> None:
    with gapless.emulate():
        x = torch.ones(2, device="cuda")
        assert ops.to_device(x, 0) is x
        assert ops.to_device((x,), "cuda:0")[0] is x
    y = torch.ones(2)
    assert ops.to_device(y, "cpu") is y


def test_floating_point_only_is_converted() -> None:
    with gapless.emulate() as emulation:
        before = emulation.waits
        images, labels = ops.to_device((torch.ones(2), torch.ones(2).long()), "cuda", dtype=torch.bfloat16)
        assert emulation.waits == before
        assert (images.dtype, labels.dtype) == (torch.bfloat16, torch.int64)
    assert ops.to_device(torch.ones(2), "cpu", dtype=torch.float64).dtype == torch.float64


class Event:
    """A copy that is done when it is told."""

    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done


def test_sources_live_until_their_copies_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_pending_copies", transfer.deque())
    events = [Event(), Event()]
    transfer._pending_copies.extend((event, torch.ones(1)) for event in events)
    ops.to_device(None, "cpu")
    assert len(transfer._pending_copies) == 2
    events[1].done = True
    ops.to_device(None, "cpu")
    assert len(transfer._pending_copies) == 2
    events[0].done = True
    ops.to_device(None, "cpu")
    assert not transfer._pending_copies


def test_gradients_reach_the_host() -> None:
    with gapless.emulate():
        x = torch.ones(3, requires_grad=True)
        ops.to_device(x, "cuda").sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [1, 1, 1]
