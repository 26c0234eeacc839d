"""Conditions that were the same in every case are said to be untested."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapless.prove import compare
from gapless.prove.conditions import Conditions

pytestmark = pytest.mark.usefixtures("nothing_counted")


LIMIT = 3


def branches(x: int, y: int = 0) -> Any:
    if x > LIMIT:
        y += 1
    while y > 10:
        y -= 1
    if x == 7 and not y:
        return [one for one in range(x) if one % 2]
    if x < 0:
        raise ValueError("none are")
    return helper(x) if x else -1


def helper(x: int) -> int:
    return 1 if x else 0


def told(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """What was untested in calls with each of the arguments."""
    conditions = Conditions()
    code = getattr(function, "__code__", None)
    with conditions.watched(function):
        for one in arguments:
            function(one)
    assert getattr(function, "__code__", None) is code
    return conditions.untested()


def test_what_was_always_the_same_is_told() -> None:
    line = branches.__code__.co_firstlineno
    assert told(branches, 5, 4) == [
        f"untested: `x > LIMIT` (test_conditions.py:{line + 1}) was true in every case",
        f"untested: `y > 10` (test_conditions.py:{line + 3}) was false in every case",
        f"untested: `x == 7` (test_conditions.py:{line + 5}) was false in every case",
        "untested: 2 more conditions had the same value in every case",
    ]


def test_what_was_both_and_what_only_raises_is_not() -> None:
    found = told(branches, 0, 5, 7)
    assert not any("LIMIT" in one or "x < 0" in one or "x == 7" in one for one in found)


def test_choices_on_the_device_are_conditions() -> None:
    def chosen(x: Tensor) -> Tensor:
        y = torch.where(x > 0, x, 0.0)
        return y.masked_fill(x.isnan(), 0.0)

    line = chosen.__code__.co_firstlineno + 2
    told_of = "`return y.masked_fill(x.isnan(), 0.0)`"
    assert told(chosen, torch.ones(3), torch.zeros(3)) == [
        f"untested: {told_of} (test_conditions.py:{line}) was false in every case"
    ]
    assert told(chosen, torch.tensor([1.0, -1.0, float("nan")])) == []


def test_of_methods_and_modules() -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.training else x

    assert [one.split("`")[1] for one in told(Layer(), torch.ones(1))] == ["self.training"]


def test_what_has_no_source_or_another_one_is_left_alone() -> None:
    assert told(eval("lambda x: 1 if x else 2"), 1) == []
    other = types.FunctionType(helper.__code__.replace(co_firstlineno=1), globals())
    assert told(other, 1) == []


def test_functions_of_one_line_are_told_apart() -> None:
    first, second = (lambda x: 1 if x > 0 else 2), (lambda x: 1 if x > 0 else 3)
    conditions = Conditions()
    with conditions.watched(second):
        assert (first(-1), second(-1)) == (2, 3)
    assert len(conditions.untested()) == 1


def test_what_torch_compiles_is_left_alone() -> None:
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def compiled(x: Tensor) -> Tensor:
        return x + 1 if x.dim() == 1 else x

    assert told(compiled, torch.ones(2)) == []
    assert calls


def test_a_hook_that_is_made_in_a_call_runs_later() -> None:
    def hooked(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad if grad.dim() else 2 * grad)
        return y

    given = torch.ones(3, requires_grad=True)
    for _ in range(2):  # each comparison with conditions of its own
        made = compare(hooked, hooked, given, only="as given")
        assert made.same
        assert made.gradients


def test_a_proof_says_so() -> None:
    def original(x: Tensor) -> Tensor:
        return x.sum() if x.sum() < 1e6 else x.mean()

    made = compare(original, lambda x: x.sum(), torch.ones(4, 3), seconds=0)
    assert made.same or made.failed
    made = compare(original, lambda x: x.sum(), torch.ones(4, 3), seconds=0, edge_cases=False)
    assert made.same
    assert any(one.startswith("untested: `x.sum() < 1000000.0`") for one in made.notes)
