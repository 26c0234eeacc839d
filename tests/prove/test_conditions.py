"""Conditions that were the same in every case are said to be untested."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapless.prove import compare
from gapless.prove.conditions import ConditionRecorder

pytestmark = pytest.mark.usefixtures("nothing_counted")


LIMIT = 3


def branches(x: int, y: int = 0) -> Any:
    if x > LIMIT:
        y += 1
    while y > 10:
        y -= 1
    if x == 7 and not y:
        return [number for number in range(x) if number % 2]
    if x < 0:
        raise ValueError("none are")
    return helper(x) if x else -1


def helper(x: int) -> int:
    return 1 if x else 0


def untested_of(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """What was untested in calls with each of the arguments."""
    conditions = ConditionRecorder()
    code = getattr(function, "__code__", None)
    with conditions.record(function):
        for argument in arguments:
            function(argument)
    assert getattr(function, "__code__", None) is code
    return conditions.untested_conditions()


def test_constant_values_are_reported() -> None:
    line = branches.__code__.co_firstlineno
    assert untested_of(branches, 5, 4) == [
        f"untested: `x > LIMIT` (test_conditions.py:{line + 1}) was true in every case",
        f"untested: `y > 10` (test_conditions.py:{line + 3}) was false in every case",
        f"untested: `x == 7` (test_conditions.py:{line + 5}) was false in every case",
        "untested: 2 more conditions had the same value in every case",
    ]


def test_what_was_both_and_what_only_raises_is_not() -> None:
    messages = untested_of(branches, 0, 5, 7)
    assert not any(
        "LIMIT" in sentence or "x < 0" in sentence or "x == 7" in sentence for sentence in messages
    )


def test_choices_on_the_device_are_conditions() -> None:
    def chosen(x: Tensor) -> Tensor:
        y = torch.where(x > 0, x, 0.0)
        return y.masked_fill(x.isnan(), 0.0)

    line = chosen.__code__.co_firstlineno + 2
    told_of = "`return y.masked_fill(x.isnan(), 0.0)`"
    assert untested_of(chosen, torch.ones(3), torch.zeros(3)) == [
        f"untested: {told_of} (test_conditions.py:{line}) was false in every case"
    ]
    assert untested_of(chosen, torch.tensor([1.0, -1.0, float("nan")])) == []


def test_of_methods_and_modules() -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.training else x

    assert [sentence.split("`")[1] for sentence in untested_of(Layer(), torch.ones(1))] == ["self.training"]


def test_conditions_without_matching_source_are_left_alone() -> None:
    assert untested_of(eval("lambda x: 1 if x else 2"), 1) == []
    other = types.FunctionType(helper.__code__.replace(co_firstlineno=1), globals())
    assert untested_of(other, 1) == []


def test_functions_on_one_line_are_distinguished() -> None:
    first, second = (lambda x: 1 if x > 0 else 2), (lambda x: 1 if x > 0 else 3)
    conditions = ConditionRecorder()
    with conditions.record(second):
        assert (first(-1), second(-1)) == (2, 3)
    assert len(conditions.untested_conditions()) == 1


def test_what_torch_compiles_is_left_alone() -> None:
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def compiled(x: Tensor) -> Tensor:
        return x + 1 if x.dim() == 1 else x

    assert untested_of(compiled, torch.ones(2)) == []
    assert calls


def test_a_hook_that_is_made_in_a_call_runs_later() -> None:
    def hooked(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad if grad.dim() else 2 * grad)
        return y

    leaf = torch.ones(3, requires_grad=True)
    for _ in range(2):  # each comparison with conditions of its own
        result = compare(hooked, hooked, leaf, only="as given")
        assert result.same
        assert result.gradients


def test_a_proof_says_so() -> None:
    def original(x: Tensor) -> Tensor:
        return x.sum() if x.sum() < 1e6 else x.mean()

    result = compare(original, lambda x: x.sum(), torch.ones(4, 3), seconds=0)
    assert result.same or result.failed
    result = compare(original, lambda x: x.sum(), torch.ones(4, 3), seconds=0, edge_cases=False)
    assert result.same
    assert any(note.startswith("untested: `x.sum() < 1000000.0`") for note in result.notes)
