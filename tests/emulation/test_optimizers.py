"""Which optimizers a run has: groups, different settings, and the way torch goes through them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.model.optimizer import RATE_IN_A_TENSOR

Parameter = torch.nn.Parameter


def parameters(count: int, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    tensors = [Parameter(torch.zeros(8, device="cuda", dtype=dtype)) for _ in range(count)]
    for parameter in tensors:
        parameter.grad = torch.ones_like(parameter)
    return tensors


def uses(make: Any, steps: int = 3) -> Any:
    """Return the recorded optimizers of a run in which those that `make` returns step `steps` times."""
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        optimizers = make()
        for _ in range(steps):
            for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
                optimizer.step()
        return emulator.session().optimizers


def test_groups_of_equal_settings_are_counted_once():
    def make():
        groups = [
            {"params": [parameter], "lr": 0.1 * (n % 3), "name": n}
            for n, parameter in enumerate(parameters(9))
        ]
        return torch.optim.AdamW(groups)

    (use,) = uses(make)
    assert (use.name, use.groups, use.settings, use.parameters, use.way) == ("AdamW", 9, 3, 9, "foreach")
    assert use.joins
    assert use.line.file == __file__


def one_group_each(number: int) -> list[dict[str, Any]]:
    return [{"params": [parameter]} for parameter in parameters(number)]


class Trainer:
    def groups(self) -> list[dict[str, Any]]:
        return one_group_each(2)

    @staticmethod
    def more_groups() -> list[dict[str, Any]]:
        return one_group_each(3)

    def from_a_method(self) -> torch.optim.Optimizer:
        groups = self.groups()
        return torch.optim.AdamW(groups)

    def from_a_static_method(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params=self.more_groups(), lr=0.1)

    def from_a_function(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            one_group_each(4),
            lr=0.1,
        )

    def in_place(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([{"params": [parameter]} for parameter in parameters(2)])

    def of_one_group(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters(2))


@pytest.mark.parametrize(
    ("make", "maker"),
    [
        (Trainer().from_a_method, Trainer.groups),
        (Trainer().from_a_static_method, Trainer.more_groups),
        (Trainer().from_a_function, one_group_each),
        (Trainer().in_place, None),
        (Trainer().of_one_group, None),
    ],
)
def test_the_function_that_makes_the_groups_is_known(make: Any, maker: Any):
    (use,) = uses(make)
    if maker is None:
        assert use.maker is None
    else:
        code = maker.__code__
        assert (use.maker.file, use.maker.line) == (code.co_filename, code.co_firstlineno)


def test_rates_that_part_later_are_different_settings():
    def make():
        optimizer = torch.optim.SGD([{"params": [parameter], "lr": 0.5} for parameter in parameters(4)])
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, [lambda step, n=n: n * step for n in range(4)]
        )
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    (use,) = uses(make)
    assert (use.groups, use.settings) == (4, 4)
    assert not use.joins


def test_groups_without_gradients_are_left_out():
    def make():
        all_parameters = parameters(4)
        for parameter in all_parameters[:2]:
            parameter.grad = None
        return torch.optim.SGD([{"params": [parameter]} for parameter in all_parameters])

    (use,) = uses(make)
    assert (use.groups, use.parameters) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "way", "turned_off"),
    [
        ({}, "foreach", ""),
        ({"foreach": True}, "foreach", ""),
        ({"fused": True}, "fused", ""),
        ({"foreach": False}, "single", "foreach=False"),
        ({"fused": False}, "single", "fused=False"),
        ({"capturable": True}, "foreach", ""),
        ({"lr": torch.tensor(0.1)}, "single", RATE_IN_A_TENSOR),
        ({"lr": torch.tensor(0.1), "capturable": True}, "foreach", ""),
        ({"lr": torch.tensor(0.1), "fused": True}, "fused", ""),
    ],
    ids=str,
)
def test_the_way_is_that_of_the_arguments(arguments, way, turned_off):
    (use,) = uses(lambda: torch.optim.AdamW(parameters(2), **arguments))
    assert (use.way, use.turned_off) == (way, turned_off)


@pytest.mark.parametrize(
    ("name", "arguments", "fused"),
    [
        ("RMSprop", {"foreach": False}, "no fused kernel"),
        ("Adagrad", {"foreach": False}, "Adagrad"),
        ("Adam", {"foreach": False}, ""),
    ],
)
def test_what_cannot_be_had_is_said(name, arguments, fused):
    (use,) = uses(lambda: getattr(torch.optim, name)(parameters(2), lr=0.1, **arguments))
    assert fused in use.refuses_fused
    assert bool(use.refuses_fused) is bool(fused)
    assert use.refuses_foreach == ""


def test_a_rate_in_a_tensor_is_no_matter_to_optimizers_but_adam():
    (use,) = uses(lambda: torch.optim.SGD(parameters(2), lr=torch.tensor(0.1)))
    assert use.way == "foreach"


def test_groups_say_which_settings_they_have_and_how_many_parameters():
    def make():
        first, *rest = parameters(4)
        return torch.optim.SGD(
            [{"params": [first], "lr": 0.1}, {"params": rest[:2], "lr": 0.2}, {"params": rest[2:], "lr": 0.1}]
        )

    assert uses(make)[0].members == ((0, 1), (1, 2), (0, 1))


def test_sparse_gradients_and_the_cpu_refuse_both():
    def sparse():
        table = torch.nn.Embedding(4, 2, sparse=True).cuda()
        table(torch.tensor([1], device="cuda")).sum().backward()
        return torch.optim.SGD(table.parameters(), lr=0.1, foreach=False)

    assert uses(sparse)[0].refuses_fused == "sparse gradients"

    def on_the_cpu():
        parameter = Parameter(torch.zeros(2))
        parameter.grad = torch.ones(2)
        return torch.optim.SGD([parameter], lr=0.1)

    assert uses(on_the_cpu)[0].refuses_foreach == "parameters on the CPU"


def test_one_optimizer_per_parameter_is_one_use():
    (use,) = uses(lambda: [torch.optim.SGD([parameter], lr=0.1) for parameter in parameters(5)])
    assert (use.instances, use.groups, use.settings, use.parameters) == (5, 5, 1, 5)


def test_optimizers_of_the_same_parameters_are_not_to_be_merged():
    def make() -> list[torch.optim.Optimizer]:
        shared, own = parameters(2)
        return [torch.optim.SGD(each, lr=0.1) for each in ([shared], [shared, own])]

    (use,) = uses(make)
    assert (use.instances, use.turns, use.settings, use.joins) == (2, 2, 2, False)


def test_optimizers_that_step_in_backward_are_distinguished():
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        parameter = Parameter(torch.zeros(8, device="cuda"))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _: optimizer.step())
        parameter.sum().backward()
        (use,) = emulator.session().optimizers
    assert use.in_backward


def test_an_optimizer_of_another_library_has_its_own_way():
    class Mine(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.add_(parameter.grad, alpha=-group["lr"])

    (use,) = uses(lambda: Mine(parameters(2)))
    assert use.way == "own"


def test_an_update_is_in_the_programme_before_its_operators():
    with Emulator(EmulatorOptions(programme=True)) as emulator:
        optimizer = torch.optim.SGD(parameters(3), lr=0.1)
        optimizer.step()
        optimizer.step()
        kept = emulator.session().programme
    step = [kept.entries[at] for at in kept.bodies[kept.segments[-1].body]]
    update, *operators = step
    assert (update.kind, update.site, update.number, update.tensors) == ("update", 0, 1, 3)
    assert operators
    assert all(entry.kind == "operator" and entry.optimizer for entry in operators)
