"""Steps are skipped exactly: parameters and state stay as they were, to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gapless import ops
from gapless.errors import UsageError

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.3, nesterov=False),
    "sgd, fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "sgd, fused, no momentum": lambda p: torch.optim.SGD(p, 0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 0.1, capturable=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "adam, amsgrad, single": lambda p: torch.optim.Adam(p, 0.1, capturable=True, amsgrad=True, foreach=False),
    "nadam": lambda p: torch.optim.NAdam(p, 0.1, capturable=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.1, capturable=True, momentum=0.5),
}
PATTERNS = {"taken": "1111", "first skipped": "0011", "in between": "1010", "none": "0000"}


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2, device="cuda")


def backward(net: nn.Module, step: int, bad: bool = False) -> None:
    net.zero_grad()
    x = torch.full((4, 3), float(step + 1), device="cuda")
    (net(x).square().sum() * (torch.nan if bad else 1.0)).backward()


def state(net: nn.Module, optimizer: Optimizer) -> Any:
    return copy.deepcopy((net.state_dict(), optimizer.state_dict()["state"]))


def assert_same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_an_if_around_the_step(emulation: Any, name: str, pattern: str) -> None:
    ours, theirs = model(), model()
    mine, reference = OPTIMIZERS[name](ours.parameters()), OPTIMIZERS[name](theirs.parameters())
    for step, taken in enumerate(PATTERNS[pattern]):
        backward(ours, step, bad=taken == "0")
        backward(theirs, step)
        had_state = any(value for value in mine.state.values()) or name in ("sgd", "sgd, fused, no momentum")
        before = emulation.waits
        ops.step_if(mine, torch.full((), taken == "1", device="cuda"))
        assert emulation.waits - before <= (0 if had_state else 1), emulation.session.sites
        if taken == "1":
            reference.step()
        assert_same(ours.state_dict(), theirs.state_dict())
        mine_state, their_state = mine.state_dict()["state"], reference.state_dict()["state"]
        assert {k for k in mine_state if mine_state[k]} == {k for k in their_state if their_state[k]}
        assert_same({k: v for k, v in mine_state.items() if v}, {k: v for k, v in their_state.items() if v})


def test_only_finite_gradients_step(emulation: Any) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step, bad in enumerate([False, True, False, True]):
        backward(net, step, bad)
        kept = state(net, optimizer)
        before = emulation.waits
        taken = ops.step_if_finite(optimizer)
        assert emulation.waits == before, emulation.session.sites
        assert bool(taken) == (not bad)
        if bad:
            assert_same(state(net, optimizer), kept)
        else:
            assert not torch.equal(net.weight, kept[0]["weight"])


AS_THEY_COME: dict[str, Callable[..., Optimizer]] = {
    kind.__name__: kind
    for kind in (
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.Adamax,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.ASGD,
        torch.optim.Rprop,
        torch.optim.SGD,
    )
}
if hasattr(torch.optim, "Muon"):  # since torch 2.9
    AS_THEY_COME["Muon"] = lambda p, lr: torch.optim.Muon(
        [parameter for parameter in p if parameter.dim() == 2], lr
    )
STATE_MADE = {"ASGD": 2}
"""Numbers that an optimizer itself copies to the device where it makes its state."""


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("name", sorted(AS_THEY_COME))
def test_optimizers_as_they_come(emulation: Any, name: str, steps_before: int) -> None:
    """A count of steps on the host moves to the device, and a skipped step leaves no trace in the others."""
    ours, theirs = model(), model()
    mine, reference = (AS_THEY_COME[name](net.parameters(), lr=0.1) for net in (ours, theirs))
    for step, taken in enumerate("1" * steps_before + "01101"):
        backward(ours, step, bad=taken == "0")
        backward(theirs, step)
        if step < steps_before:
            mine.step()
        else:
            first = not any(len(value) > 0 for value in mine.state.values())
            before = emulation.waits
            ops.step_if(mine, torch.full((), taken == "1", device="cuda"))
            assert emulation.waits - before <= first * (1 + STATE_MADE.get(name, 0)), emulation.session.sites
        if taken == "1":
            reference.step()
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-6)
    again = AS_THEY_COME[name](ours.parameters(), lr=0.1)
    again.load_state_dict(mine.state_dict())


class Counting(torch.optim.SGD):
    """Counts its steps as a number."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1
        return super().step(closure)


def test_what_cannot_be_taken_back_is_refused(emulation: Any) -> None:
    net = model()
    backward(net, 0)
    decaying = torch.optim.Adagrad(net.parameters(), 0.1, lr_decay=0.5)
    with pytest.raises(UsageError, match=r"Adagrad keeps 'step' on the CPU, .*: use lr_decay=0$"):
        ops.step_if_finite(decaying)
    counting = Counting(net.parameters(), lr=0.1, momentum=0.5)
    counting.step()
    with pytest.raises(UsageError, match=r"Counting keeps 'count' on the CPU, .*`, which syncs$"):
        ops.step_if_finite(counting)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_that_needs_a_closure_is_refused(emulation: Any, device: str) -> None:
    weight = nn.Parameter(torch.ones(2, device=device))
    with pytest.raises(
        UsageError, match=r"LBFGS evaluates a closure .*`if condition: optimizer.step\(closure\)`$"
    ):
        ops.step_if(torch.optim.LBFGS([weight]), torch.ones((), dtype=torch.bool, device=device))


def test_on_the_cpu_it_is_an_if() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], 0.1)
    weight.grad = torch.ones(2)
    ops.step_if(optimizer, torch.tensor(False))
    assert (weight.tolist(), dict(optimizer.state)) == ([1, 1], {})
    ops.step_if(optimizer, torch.tensor([True]))
    assert weight.tolist() != [1, 1]
    with pytest.raises(ValueError, match=r"one bool as condition, but got torch\.float32 of shape \(2,\)"):
        ops.step_if(optimizer, torch.ones(2))


def test_a_skipped_step_leaves_the_attributes_of_a_scaler_alone(emulation: Any) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 0.1, fused=True)
    backward(net, 0)
    optimizer.step()
    ops.step_if(optimizer, torch.full((), True, device="cuda"))
    assert not hasattr(optimizer, "found_inf")
    assert not hasattr(optimizer, "grad_scale")


@pytest.mark.parametrize("bad", [None, torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_finite(emulation: Any, bad: float | None, device: str) -> None:
    tensors = [torch.full((2, 2), 6e4, device=device, dtype=torch.float16), torch.zeros(0, device=device)]
    tensors.append(torch.full((3,), 3e38, device=device))
    if bad is not None:
        tensors[2][1] = bad
    before = emulation.waits
    result = ops.all_finite(tensors)
    each = [ops.all_finite(tensor) for tensor in tensors]
    assert emulation.waits == before
    assert bool(result) == (bad is None)
    assert [bool(answer) for answer in each] == [True, True, bad is None]


def test_nothing_is_finite() -> None:
    assert ops.all_finite([])
    assert ops.all_finite([None, torch.tensor([1, 2])])  # type: ignore[list-item]


@pytest.mark.parametrize("bad", [False, True])
def test_clipping(emulation: Any, bad: bool) -> None:
    ours, theirs = model(), model()
    backward(ours, 1, bad)
    backward(theirs, 1, bad)
    before = emulation.waits
    norm = ops.clip_grad_norm_(ours.parameters(), 0.5, nonfinite="zero")
    assert emulation.waits == before
    wanted = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    assert_same(norm, wanted)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None
        assert_same(mine.grad, torch.zeros_like(mine) if bad else other.grad)
    kept = ops.clip_grad_norm_(theirs.parameters(), 0.25)
    assert isinstance(kept, Tensor)
    with pytest.raises(ValueError, match='nonfinite must be "keep" or "zero", but got \'raise\''):
        ops.clip_grad_norm_([], 1.0, nonfinite="raise")
