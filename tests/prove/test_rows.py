"""Calls in a row: a step that is skipped is no step with zeroed gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapless import ops
from gapless.model.proof import Proof
from gapless.prove import compare
from gapless.prove.proving import BAD_NAME, PLAIN_NAME

pytestmark = pytest.mark.usefixtures("nothing_counted")

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "SGD with weight decay": lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1),
}
ROWS = (PLAIN_NAME, BAD_NAME)


def batches() -> Tensor:
    return torch.randn(6, 4)


def training(step: Callable[[nn.Module, Any, Tensor], None], optimizer: str) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    own = OPTIMIZERS[optimizer](model.parameters())

    def train(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        own.zero_grad()
        loss.backward()
        step(model, own, loss)
        return loss.detach()

    return train


def skipped(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    if torch.isfinite(loss):
        optimizer.step()


def zeroed(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    finite = torch.isfinite(loss)
    for parameter in model.parameters():
        parameter.grad = torch.where(finite, parameter.grad, 0.0)  # type: ignore[arg-type]
    optimizer.step()


def conditional(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    ops.step_if(optimizer, torch.isfinite(loss))


def failed(result: Proof) -> list[str]:
    return [case.name for case in result.failed]


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_zeroed_gradients_are_no_skipped_step(optimizer: str) -> None:
    result = compare(training(skipped, optimizer), training(zeroed, optimizer), batches, only=ROWS)
    assert BAD_NAME in failed(result)
    assert PLAIN_NAME not in failed(result)
    bad = next(case for case in result.failed if case.name == BAD_NAME)
    assert bad.differences[0].call == 3
    assert "model.weight after the call" in [difference.where for difference in bad.differences]


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_a_step_that_is_skipped_on_the_device_is_the_same(optimizer: str) -> None:
    result = compare(training(skipped, optimizer), training(conditional, optimizer), batches, only=ROWS)
    assert result.same, result
    assert BAD_NAME in [case.name for case in result.cases]


class Trained:
    """A model and its optimizer, given to each call."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = OPTIMIZERS["Adam"](self.model.parameters())

    def __call__(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, torch.randn(6, 4)


def taking(step: Callable[[nn.Module, Any, Tensor], None]) -> Callable[..., None]:
    def train(model: nn.Module, optimizer: Any, x: Tensor) -> None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        step(model, optimizer, loss)

    return train


def test_what_is_given_to_the_calls_is_kept_from_one_to_the_next() -> None:
    inputs = Trained()
    result = compare(taking(skipped), taking(zeroed), inputs, only=ROWS)
    assert BAD_NAME in failed(result)
    bad = next(case for case in result.failed if case.name == BAD_NAME)
    assert {"input model.weight after the call", "input optimizer.state[0]['exp_avg'] after the call"} <= {
        difference.where for difference in bad.differences if difference.call == 3
    }
    assert compare(taking(skipped), taking(conditional), inputs, only=ROWS).same
    assert inputs.optimizer.state == {}


def test_an_optimizer_of_the_module_steps_the_copy_of_its_model() -> None:
    before = MODEL.weight.clone()
    assert compare(globally, globally, batches, only=ROWS).same
    assert torch.equal(MODEL.weight, before)
    assert OPTIMIZER.state == {}
    result = compare(globally, globally_zeroed, batches, only=ROWS)
    assert failed(result) == [BAD_NAME]


MODEL = nn.Linear(4, 2)
OPTIMIZER = OPTIMIZERS["Adam"](MODEL.parameters())


def globally(x: Tensor) -> None:
    taking(skipped)(MODEL, OPTIMIZER, x)


def globally_zeroed(x: Tensor) -> None:
    taking(zeroed)(MODEL, OPTIMIZER, x)


def test_each_of_several_values_is_bad_once() -> None:
    def pairs() -> tuple[Tensor, Tensor]:
        return batches(), batches()

    result = compare(lambda x, y: x.sum() + y.sum(), lambda x, y: y.sum() + x.sum(), pairs, seconds=0)
    assert {f"{BAD_NAME} (NaN in x)", f"{BAD_NAME} (NaN in y)"} <= {case.name for case in result.cases}


def test_a_missing_gradient_instead_of_zeros_is_reported() -> None:
    layer, other = nn.Linear(4, 2), nn.Linear(4, 2)
    other.load_state_dict(layer.state_dict())

    def both(x: Tensor) -> Tensor:
        return layer(x).sum() + 0 * other(x).sum()

    result = compare(lambda x: layer(x).sum() + 0 * other(x).sum().detach(), both, batches, seconds=0,
                   edge_cases=False)  # fmt: skip
    assert result.same
    assert any(
        "only the second gives other.weight a gradient: a zero gradient still takes a step" in note
        for note in result.notes
    )
