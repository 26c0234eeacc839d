"""How much a run computes before it goes on without values: the same in each run, by sizes alone."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from torch import nn

from gapless.emulation.dry import budget
from gapless.emulation.dry.budget import count_operations
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model.assumption import Switch


def meta(*size: int) -> torch.Tensor:
    return torch.empty(size, device="meta")


IMAGE = meta(2, 3, 8, 8)


def train(width: int, steps: int, batch: int = 8) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(batch, width, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses(dry: bool | None, **sizes: int) -> tuple[list[float], list[Switch]]:
    switches: list[Switch] = []
    with Emulator(EmulatorOptions(dry=dry), on_switch=switches.append) as emulator:
        losses_seen = train(**sizes)
    assert emulator.session().environment.dry is bool(switches or dry)
    assert emulator.session().switch == (switches[0] if switches else None)
    return losses_seen, switches


def test_what_is_quickly_computed_is_computed_bit_for_bit() -> None:
    computed, switches = losses(None, width=64, steps=6)
    assert not switches
    assert computed == losses(False, width=64, steps=6)[0]


def test_one_operator_that_takes_long_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_OPERATOR_SECONDS", 1e-6)
    _, (switch,) = losses(None, width=256, steps=4)
    assert switch.alone
    assert switch.line is not None
    assert switch.line.file == __file__


def test_many_between_two_steps_are_enough_until_the_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, none = losses(None, width=256, steps=4)
    assert not none
    monkeypatch.setattr(budget, "MAX_STEP_SECONDS", 1e-5)
    _, (switch,) = losses(None, width=256, steps=4)
    assert not switch.alone
    assert switch.seconds > 1e-5
    monkeypatch.setattr(budget, "WATCHED_STEPS", 0)
    assert not losses(None, width=256, steps=4)[1]


def test_what_the_script_computes_on_the_host_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_OPERATOR_SECONDS", 1e-6)
    monkeypatch.setattr(budget, "MAX_STEP_SECONDS", 1e-6)
    switches: list[Switch] = []
    data = torch.ones(300, 300)
    with Emulator(EmulatorOptions(dry=None), on_switch=switches.append):
        assert (data @ data).sum().item() == 300**3
        assert not switches


def _draw(results: Any) -> None:
    results.put(torch.randn(3000).square().sum().item())


@pytest.mark.parametrize("dry", [None, True])
def test_a_forked_child_computes_what_it_hands_on(dry: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_STEP_SECONDS", 0.0)
    monkeypatch.setattr("gapless.emulation.dry.values.MAX_HOST_ELEMENTS", 1)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with Emulator(EmulatorOptions(dry=dry)) as emulator:
        torch.zeros(2, device="cuda")
        process = context.Process(target=_draw, args=(results,))
        process.start()
        assert 2000 < results.get() < 4000
        process.join()
        assert emulator.session().switch is None


@pytest.mark.parametrize(
    ("base", "args", "expected"),
    [
        ("addmm", (meta(7), meta(2, 3), meta(3, 7)), 2 * 2 * 3 * 7),
        ("bmm", (meta(4, 2, 3), meta(4, 3, 5)), 4 * 2 * 2 * 3 * 5),
        ("convolution", (IMAGE, meta(6, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], False), 2 * 2 * 16 * 162),
        ("convolution", (IMAGE, meta(3, 6, 2, 2), None, [2, 2], [0, 0], [1, 1], True), 2 * 128 * 72),
        ("_scaled_dot_product_flash_attention", (meta(1, 2, 8, 4),) * 3, 4 * 64 * 8),
    ],
)  # fmt: skip
def test_operations_are_those_of_the_definition(base: str, args: Any, expected: float) -> None:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    assert count_operations(base, args, tensors) == expected
