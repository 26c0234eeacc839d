"""`torch.cond` and its like on the emulated device: values and gradients as on the CPU, and their waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gapless  # noqa: E402
from gapless.analyze import report  # noqa: E402

Tensor = Any


def chosen(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos() * 2, (x,))


def repeated(x: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    begin = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 0.5), (begin, x))[1]


def mapped(x: Tensor) -> Tensor:
    from torch._higher_order_ops.map import map

    return map(lambda row, by: row.sin() * by, x, torch.ones(8, device=x.device))


def scanned(x: Tensor) -> Tensor:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(8, device=x.device), x)[1]


def result(function: Callable[[Tensor], Tensor], x: Tensor, device: str) -> tuple[Tensor, Tensor]:
    x = x.to(device).requires_grad_()
    y = function(x)
    y.sum().backward()
    return y.detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("function", [chosen, repeated, mapped, scanned])
def test_gradients_go_through_control_flow_on_the_device(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    # Torch's own way on the CPU compiles for seconds: what is computed is the operators of the dense form.
    plain = {
        chosen: lambda y: y.sin() if y.sum() > 0 else y.cos() * 2,
        repeated: lambda y: y * 0.125,
        mapped: lambda y: y.sin(),
        scanned: lambda y: (y.cumsum(0) - y) * y,
    }[function]
    with gapless.emulate():
        output, gradient = result(function, x, "cuda")
    expected, expected_gradient = result(plain, x, "cpu")
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize(("function", "waits"), [(chosen, 1), (repeated, 5), (mapped, 0)])
def test_control_flow_waits_as_often_as_it_asks(function: Callable[[Tensor], Tensor], waits: int) -> None:
    # A loop of three rounds asks four times, and torch's own asks for the first answer twice.
    with gapless.emulate() as emulation:
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        before = sum(event.waits for event in emulation.session.events)
        function(x)
        assert sum(event.waits for event in emulation.session.events) - before == waits


def test_a_loop_that_asks_at_two_lines_of_torch_is_one_finding() -> None:
    with gapless.emulate() as emulation:
        repeated(torch.randn(4, 8, device="cuda"))
    (finding,) = (item for item in report(emulation.session).findings if item.code == "GAP149")
    assert finding.frequency.total == 5
    assert "while_loop.py (while_loop_dense): `while_loop` reads its condition" in finding.remedy
