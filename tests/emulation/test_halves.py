"""Products in half precision are computed in float32 and rounded; nothing else of them changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import gapless
from gapless.emulation.kernels import halves

HALVES = (torch.float16, torch.bfloat16)
CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": lambda a, b: a[0] @ b[0],
    "bmm": lambda a, b: a @ b,
    "addmm": lambda a, b: torch.addmm(a[0], a[0], b[0], beta=0.5),
    "baddbmm": lambda a, b: torch.baddbmm(a, a, b, alpha=2),
    "linear": lambda a, b: F.linear(a, b[0], b[0, 0]),
    "matmul": lambda a, b: torch.matmul(a, b[0, 0]),
    "einsum": lambda a, b: torch.einsum("bij,bjk->ik", a, b),
    "conv1d": lambda a, b: F.conv1d(a, b, padding=1),
    "conv2d": lambda a, b: F.conv2d(a[:, None], b[:1, None, :3, :3], padding=1),
    "conv_transpose2d": lambda a, b: F.conv_transpose2d(a[:, None], b[:1, None, :2, :2], stride=2),
    "attention": lambda a, b: F.scaled_dot_product_attention(a, b, a),
    "attention of blocks": lambda a, b: F.scaled_dot_product_attention(
        a[None], b[None], a[None], is_causal=True
    ),
}


@pytest.fixture(autouse=True)
def slow_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU that has no instructions for either."""
    monkeypatch.setattr(halves, "slow_dtypes", lambda: frozenset(HALVES))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_float32_rounded(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    data = [torch.randn(8, 8, 8).to(dtype) for _ in range(2)]
    wide = [tensor.float().requires_grad_() for tensor in data]
    expected = CALLS[name](*wide)
    expected.sum().backward()
    with gapless.emulate() as emulation:
        inputs = [tensor.cuda().requires_grad_() for tensor in data]
        out = CALLS[name](*inputs)
        out.sum().backward()
        assert out.dtype is dtype
        assert out.device == inputs[0].grad.device == torch.device("cuda", 0)
        results = [out.detach().cpu(), *(tensor.grad.cpu() for tensor in inputs)]
    one_rounding = {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float16 else {"rtol": 1e-2, "atol": 1e-2}
    for value, reference in zip(results, (expected.detach(), *(tensor.grad for tensor in wide)), strict=True):
        assert value.dtype is dtype
        # What one operator leaves rounded, the next one takes up: a few roundings for a chain of them.
        torch.testing.assert_close(value.float(), reference, rtol=4 * one_rounding["rtol"], atol=8e-2)
    assert not [site for site in emulation.session.sites if site.mechanism == "read"]


def test_one_product_is_rounded_once() -> None:
    a, b = (torch.randn(16, 16).half() for _ in range(2))
    with gapless.emulate():
        results = (a.cuda() @ b.cuda()).cpu()
    assert torch.equal(results, (a.float() @ b.float()).half())


def test_what_writes_into_a_tensor_does_so() -> None:
    a, b = (torch.randn(4, 4).half() for _ in range(2))
    expected = torch.addmm(a.float(), a.float(), b.float()).half()
    with gapless.emulate():
        x, y = a.cuda(), b.cuda()
        out = torch.empty(0, dtype=torch.half, device="cuda")
        assert torch.mm(x, y, out=out) is out
        kept = x.clone()
        view = kept[:]
        assert kept.addmm_(x, y) is kept
        assert torch.equal(view.cpu(), expected)
        assert torch.equal(out.cpu(), (a.float() @ b.float()).half())


def test_nothing_that_is_made_on_the_way_counts_as_memory() -> None:
    peaks = []
    for slow in (frozenset(), frozenset(HALVES)):
        with gapless.emulate(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(halves, "slow_dtypes", lambda slow=slow: slow)
            layer = torch.nn.Linear(256, 256, device="cuda", dtype=torch.bfloat16)
            x = torch.ones(512, 256, device="cuda", dtype=torch.bfloat16)
            for _ in range(3):
                layer(x).sum().backward()
            peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))
    assert peaks[0] == peaks[1]


def test_tensors_on_the_host_are_left_alone() -> None:
    a = torch.randn(8, 8).half()
    expected = a @ a
    with gapless.emulate():
        torch.ones(1, device="cuda")
        assert torch.equal(a @ a, expected)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "einsum"])
def test_factors_of_different_precision_are_refused_as_ever(name: str, dtype: torch.dtype) -> None:
    with gapless.emulate():
        half, single = torch.ones(8, 8, 8, device="cuda", dtype=dtype), torch.ones(8, 8, 8, device="cuda")
        with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
            CALLS[name](half, single)
