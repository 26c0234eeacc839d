"""Step time and throughput follow the device's clock, whenever the host comes to know of it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import gapless
import gapless.metrics as metrics
from gapless.metrics.training import mark


class Clock:
    """A device that has come to `now`, and to which the host sends work that ends at `ends`."""

    def __init__(self) -> None:
        self.now, self.ends = 0.0, 0.0

    def __call__(self, device: torch.device) -> FakeMark:
        return FakeMark(self, self.ends)

    def __deepcopy__(self, memo: Any) -> Clock:
        return self


class FakeMark:
    def __init__(self, clock: Clock, at: float) -> None:
        self.clock, self.at = clock, at

    def passed(self) -> bool:
        return self.clock.now >= self.at

    def since(self, other: FakeMark) -> float:
        assert self.passed()
        return self.at - other.at


def test_steps_count_once_the_device_has_ended_them():
    clock = Clock()
    time, speed = metrics.StepTime(clock), metrics.Throughput(clock)
    for seconds, items in ((0.0, 1000), (2.0, 8), (4.0, 10), (6.0, 3)):
        clock.ends += seconds
        time.update()
        speed.update(items)
    assert time.pace.state["steps"].item() == 0
    clock.now = 6.5
    clock.ends = 12.5
    time.update()
    speed.update(torch.tensor([1, 2]))
    assert (time.compute().item(), speed.compute().item()) == (3.0, 3.0)
    clock.now = 13.0
    clock.ends = 13.0
    time.update()
    speed.update(0)
    assert time.compute().item() == pytest.approx(13 / 5)
    assert speed.compute().item() == pytest.approx(24 / 13)


def test_a_reset_starts_the_clock_anew():
    clock = Clock()
    time = metrics.StepTime(clock)
    for at in (0.0, 1.0):
        clock.now = clock.ends = at
        time.update()
    time.reset()
    for at in (50.0, 53.0):
        clock.now = clock.ends = at
        time.update()
    assert time.compute().item() == 3.0


def test_in_a_collection_and_of_one_batch():
    clock = Clock()
    both = metrics.MetricCollection(
        {"accuracy": metrics.MulticlassAccuracy(2, average="micro"), "time": metrics.StepTime(clock)}
    )
    times = []
    for at in (1.0, 2.0, 5.0):
        clock.now = clock.ends = at
        times.append(both(torch.tensor([1]), torch.tensor([1]))["time"].item())
    assert times[1:] == [1.0, 3.0]
    assert times[0] != times[0]
    assert {name: value.item() for name, value in both.compute().items()} == {"accuracy": 1.0, "time": 2.0}


def test_items_by_name_in_a_collection():
    clock = Clock()
    both = metrics.MetricCollection({"speed": metrics.Throughput(clock), "mean": metrics.MeanMetric()})
    for at in (1.0, 3.0):
        clock.now = clock.ends = at
        both.update(value=2.0, items=6)
    assert {name: value.item() for name, value in both.compute().items()} == {"speed": 3.0, "mean": 2.0}


def test_copies_keep_what_was_counted_and_no_moment():
    clock = Clock()
    time = metrics.StepTime(clock)
    for at in (0.0, 4.0):
        clock.now = clock.ends = at
        time.update()
    twin = copy.deepcopy(time)
    clock.now = clock.ends = 100.0
    twin.update()
    assert twin.compute().item() == 4.0
    time.update()
    assert time.compute().item() == 50.0
    speed = metrics.Throughput()
    speed.update(1)
    speed.update(1)
    sent = pickle.loads(pickle.dumps(speed))
    assert sent.compute().item() == speed.compute().item() > 0


def test_the_host_clock_goes_forward():
    first = mark(torch.device("cpu"))
    second = mark(torch.device("cpu"))
    assert second.passed()
    assert second.since(first) >= 0


def test_nothing_waits_on_a_device():
    with gapless.emulate() as emulation:
        time, speed = metrics.StepTime().to("cuda"), metrics.Throughput().to("cuda")
        for step in range(4):
            time.update()
            speed.update(32 if step % 2 else torch.ones(3, device="cuda"))
        readings = [time.read(), speed.read()]
        assert emulation.waits == 0
        assert all(reading.result() > 0 for reading in readings)
