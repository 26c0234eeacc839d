"""Values arrive later, complete and in order."""

from __future__ import annotations

import pytest
import torch

import gapless
from gapless import ops


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_values_are_those_of_the_steps(device: str) -> None:
    with gapless.emulate() as emulation:
        log = ops.LogBuffer(capacity=2)
        weight = torch.ones(3, device=device, requires_grad=True)
        before = emulation.waits
        for step in range(5):
            loss = (weight * step).sum()
            log.add(loss=loss, rate=0.1 * step, half=loss.half(), seen=torch.full((1,), step, device=device))
        first = log.read()
        log.add(loss=torch.full((), 7.0, device=device), rate=1.0)
        second = log.read(reset=False)
        third = log.read()
        weight.detach().zero_()
        assert emulation.waits == before, emulation.session.sites
        results = first.result()
        assert first.ready()
        assert results["loss"].tolist() == [0, 3, 6, 9, 12]
        assert results["half"].dtype == torch.float32
        assert results["seen"].tolist() == [0, 1, 2, 3, 4]
        torch.testing.assert_close(results["rate"], torch.arange(5) * 0.1)
        assert {value.device.type for value in results.values()} == {"cpu"}
        for reading in (second, third):
            assert reading.result()["loss"].tolist() == [7]
            assert reading.result()["half"].tolist() == []
        assert log.read().result()["rate"].tolist() == []


def test_numbers_and_tensors_in_turn() -> None:
    log = ops.LogBuffer(1)
    log.add(loss=1.0)
    log.add(loss=torch.tensor(2.0))
    log.add(loss=3)
    assert log.read().result()["loss"].tolist() == [1, 2, 3]
    log.add(loss=4)
    assert log.read().result()["loss"].tolist() == [4]


def test_a_reading_is_of_its_moment() -> None:
    with gapless.emulate() as emulation:
        value = torch.ones(2, device="cuda", requires_grad=True)
        before = emulation.waits
        reading = ops.read_later(value=value, double=value * 2)
        with torch.no_grad():
            value += 5
        assert emulation.waits == before
        assert reading.result()["value"].tolist() == [1, 1]
        assert reading.result()["double"].tolist() == [2, 2]
        assert not reading.result()["value"].requires_grad


def test_values_of_the_host_and_of_the_device_in_turn() -> None:
    with gapless.emulate() as emulation:
        log = ops.LogBuffer(2)
        values = [torch.tensor(0.0), 1, torch.full((), 2.0, device="cuda"), torch.tensor(3.0), 4]
        before = emulation.waits
        for value in values:
            log.add(loss=value)
        reading = log.read()
        assert emulation.waits == before, emulation.session.sites
        assert reading.result()["loss"].tolist() == [0, 1, 2, 3, 4]


def test_in_inference_and_outside() -> None:
    log = ops.LogBuffer(1)
    for number in range(4):
        with torch.inference_mode(number % 2 == 0):
            log.add(loss=torch.full((), float(number)))
    assert log.read().result()["loss"].tolist() == [0, 1, 2, 3]


def test_nothing_of_the_graph_is_kept() -> None:
    log = ops.LogBuffer()
    x = torch.ones(3, requires_grad=True)
    log.add(loss=x.sum())
    assert not log.read().result()["loss"].requires_grad


def test_mistakes_are_reported() -> None:
    with pytest.raises(ValueError, match=r"one element for 'loss', but got shape \(2,\)"):
        ops.LogBuffer().add(step=1, loss=torch.ones(2))
    with pytest.raises(ValueError, match="room for at least one step, but got 0"):
        ops.LogBuffer(0)
