"""What ``--with`` changes of a script: checkpointed classes, and gradients that are set to None."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from gapless.emulation.changes import install, parse  # noqa: E402
from gapless.errors import UsageError  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x, *, scale=1.0):
        self.calls += 1
        return torch.relu(self.inner(x)) * scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=2.0)
        return self.head(x)


def train(changes: tuple[str, ...]) -> tuple[list[torch.Tensor], list[int]]:
    """Return gradients of a model that is built under `changes`, and how often each block ran."""
    undo = install(changes)
    try:
        torch.manual_seed(0)
        model = Model()
        model(torch.ones(4, 8)).sum().backward()
        return [item.grad for item in model.parameters()], [item.calls for item in model.blocks]
    finally:
        undo()


def test_a_checkpointed_class_runs_again_in_backward_and_computes_the_same() -> None:
    plain, once = train(())
    checkpointed, twice = train(("checkpoint=Block",))
    assert (once, twice) == ([1, 1, 1], [2, 2, 2])
    for first, other in zip(plain, checkpointed, strict=True):
        torch.testing.assert_close(first, other)


def test_in_evaluation_nothing_is_checkpointed() -> None:
    undo = install(("checkpoint=Block",))
    try:
        model = Model()
        with torch.no_grad():
            model(torch.ones(4, 8))
        model.eval()
        model(torch.ones(4, 8)).sum().backward()
        assert [block.calls for block in model.blocks] == [2, 2, 2]
    finally:
        undo()


def test_gradients_are_set_to_none_whatever_the_script_says() -> None:
    undo = install(("set_to_none",))
    try:
        layer = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for owner in (optimizer, layer):
            layer(torch.ones(1, 2)).sum().backward()
            owner.zero_grad(set_to_none=False)
            assert layer.weight.grad is None
    finally:
        undo()
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert layer.weight.grad is not None


def test_afterwards_nothing_is_left() -> None:
    train(("checkpoint=Block",))
    assert "forward" not in vars(Model().blocks[0])


@given(st.text(max_size=20))
def test_malformed_changes_are_refused(text: str) -> None:
    try:
        classes, none = parse([text])
    except UsageError:
        return
    assert none != bool(classes)
