"""Gapless's own asynchronous code: no race, and each of its guards is needed."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

import gapless
from gapless import loading, ops, transfer
from gapless.emulation.support.patches import Patches

PREFETCH = "gapless.loading.prefetch"
TRANSFER = "gapless.transfer"
MOVING = "gapless.ops.transfer"
NESTED = "gapless.loading.nested"


def readings() -> None:
    for _ in range(4):
        reading = ops.read_later(
            loss=torch.randn(1000, device="cuda").mean(), more=torch.ones(1000, device="cuda")
        )
        torch.randn(1000, device="cuda")
        reading.result()["loss"].item()


def readings_of_several() -> None:
    for _ in range(3):
        parts = [torch.randn(1000, device="cuda") for _ in range(2)]
        reading = transfer.Reading(parts)
        del parts
        torch.zeros(2000, device="cuda")
        reading.result()[0].sum()


def polled() -> None:
    reading = ops.read_later(loss=torch.randn(1000, device="cuda").mean())
    if reading.ready():
        reading.result()["loss"].item()


def logged() -> None:
    log = ops.LogBuffer(capacity=4)
    readings = []
    for step in range(12):
        log.add(loss=torch.randn(8, device="cuda").mean(), step=float(step))
        if step % 4 == 3:
            readings.append(log.read())
    for reading in readings:
        reading.result()["loss"].sum().item()


def prefetched() -> None:
    model = torch.nn.Linear(32, 8).cuda()
    for batch in loading.DevicePrefetcher([{"x": torch.randn(64, 32)} for _ in range(4)], "cuda"):
        model(batch["x"]).sum().backward()


def moved() -> None:
    side, model = torch.cuda.Stream(), torch.nn.Linear(32, 8).cuda()
    for _ in range(4):
        batch = ops.to_device(torch.randn(64, 32), "cuda", stream=side)
        model(batch).sum().backward()
        del batch


SCENES: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (readings, readings_of_several, polled, logged, prefetched, moved)
}


def raced(scene: Callable[[], None], late: bool = False) -> list[str]:
    transfer._streams.clear()
    with gapless.emulate(late_copies=late) as emulation:
        scene()
    return [race.kind for race in emulation.races]


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_own_code_has_no_race(scene: str) -> None:
    assert raced(SCENES[scene]) == []


@contextmanager
def without(name: str, line: str, instead: str) -> Iterator[None]:
    """The functions and classes of a module with one line of its source replaced, wherever they are used."""
    module: Any = importlib.import_module(name)
    source = inspect.getsource(module)
    assert source.count(line) == 1, f"{source.count(line)} times in {name}: {line}"
    changed = ModuleType(name)
    exec(compile(source.replace(line, instead), module.__file__, "exec"), vars(changed))
    patches = Patches()
    try:
        for key, value in vars(changed).items():
            if getattr(value, "__module__", "") == name:
                patches.set_everywhere(module, key, value, "gapless")
        yield
    finally:
        patches.undo()


GUARDS = {
    "reading begins behind the values": (
        TRANSFER, "        stream.wait_stream(torch.cuda.current_stream(value.device))\n", "", "readings",
    ),
    "reading keeps the source": (TRANSFER, "        value.record_stream(stream)\n", "", "readings"),
    "result waits": (TRANSFER, "            event.synchronize()", "            pass", "readings"),
    "result asks or waits": (TRANSFER, "        if not self.ready():\n", "        if False:\n", "readings"),
    "ready asks": (TRANSFER, "all(event.query() for event in self._events)", "True", "polled"),
    "the event is behind the copy": (
        TRANSFER,
        "            host.copy_(value, non_blocking=True)\n            event = torch.cuda.Event()\n"
        "            event.record(stream)\n",
        "            event = torch.cuda.Event()\n            event.record(stream)\n"
        "            host.copy_(value, non_blocking=True)\n",
        "readings",
    ),
    "the loop waits for the batch": (PREFETCH, "    current.wait_event(sent.copied)\n", "", "prefetched"),
    "the batch is kept for the loop": (
        PREFETCH, "    record_stream(sent.batch, current)\n", "", "prefetched",
    ),
    "the batch's event is behind its copy": (PREFETCH, "        copied.record(side)\n", "", "prefetched"),
    "every tensor is kept": (NESTED, "tensor.record_stream(stream)", "pass", "prefetched"),
    "the current stream waits": (MOVING, "    current.wait_stream(stream)\n", "", "moved"),
    "the moved are kept": (MOVING, "tensor.record_stream(current)", "pass", "moved"),
}  # fmt: skip
NOT_YET = {"result waits"}
"""Guards for what `query()`, asked first, says to be under way: it says so where copies are late."""


@pytest.mark.parametrize("guard", sorted(GUARDS))
def test_a_guard_that_is_removed_is_missed(guard: str) -> None:
    name, line, instead, scene = GUARDS[guard]
    with without(name, line, instead):
        assert raced(SCENES[scene], late=guard in NOT_YET)


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_own_code_has_no_race_where_copies_are_late(scene: str) -> None:
    assert raced(SCENES[scene], late=True) == []
