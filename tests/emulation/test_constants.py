"""What compiled code makes on the host for the GPU: inductor makes it there, so that no copy waits.

Which of these inductor moves was read from the code that it generates for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gapless  # noqa: E402

OUTSIDE = torch.ones(8)
MOVED = {
    "arange": lambda x: x + torch.arange(8).to(x.device),
    "zeros": lambda x: x + torch.zeros(8).to(x.device),
    "cuda": lambda x: x + torch.full((8,), 2.0).cuda(),
    "derived": lambda x: x + (torch.arange(8) * 2 + 1).float().to(x.device),
    "a mask": lambda x: x * torch.tril(torch.ones(8, 8)).to(x.device),
}
STAYS = {
    "random": lambda x: x + torch.randn(8).to(x.device),
    "computed from an input": lambda x: x + (torch.arange(8) + OUTSIDE).to(x.device),
    "filled from an input": lambda x: x + torch.zeros(8).copy_(OUTSIDE).to(x.device),
}


def waits(function: Callable[[Any], Any], **options: Any) -> int:
    with gapless.emulate() as record:
        torch.compile(function, **options)(torch.rand(8, 8, device="cuda"))
        return sum(event.waits for event in record.session.events)


@pytest.mark.parametrize("function", MOVED.values(), ids=MOVED)
def test_a_constant_of_compiled_code_is_not_copied(function: Callable[[Any], Any]) -> None:
    assert waits(function) == 0
    assert waits(function, backend="aot_eager") == 1  # which generates no code
    with gapless.emulate() as record:
        function(torch.rand(8, 8, device="cuda"))
        assert sum(event.waits for event in record.session.events) == 1


@pytest.mark.parametrize("function", STAYS.values(), ids=STAYS)
def test_what_is_no_constant_is(function: Callable[[Any], Any]) -> None:
    assert waits(function) == 1
