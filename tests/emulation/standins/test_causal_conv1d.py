"""causal-conv1d's stand-in beside torch's convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gapless.emulation.standins.packages.causal_conv1d import causal_conv1d_fn, causal_conv1d_update


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    width = weight.shape[1]
    out = functional.conv1d(functional.pad(x, (width - 1, 0)), weight[:, None], bias, groups=x.shape[1])
    return functional.silu(out)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(2, 4))
def test_the_stand_in_computes_torchs_convolution(batch: int, channels: int, length: int, width: int) -> None:
    torch.manual_seed(length)
    x, weight, bias = (
        torch.randn(batch, channels, length),
        torch.randn(channels, width),
        torch.randn(channels),
    )
    out, last = causal_conv1d_fn(x, weight, bias, return_final_states=True, activation="silu")
    torch.testing.assert_close(out, reference(x, weight, bias))
    torch.testing.assert_close(last, functional.pad(x, (width - 1, 0))[..., -(width - 1) :])
    whole = causal_conv1d_fn(torch.cat((x, x), -1), weight, bias, activation="silu")
    torch.testing.assert_close(
        causal_conv1d_fn(x, weight, bias, None, last, activation="silu"), whole[..., length:]
    )


def test_gradients_are_torchs(gradients: Callable[..., Any]) -> None:
    args = torch.randn(2, 3, 6), torch.randn(3, 4), torch.randn(3)
    torch.testing.assert_close(
        gradients(lambda *a: causal_conv1d_fn(*a, activation="silu"), *args),
        gradients(reference, *args),
        atol=1e-5,
        rtol=1e-4,
    )


def test_sequences_do_not_mix() -> None:
    x, weight, bias = torch.randn(1, 2, 7), torch.randn(2, 4), torch.randn(2)
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2]], dtype=torch.int32)
    out = causal_conv1d_fn(x, weight, bias, ids, activation="silu")
    parts = [reference(sequence, weight, bias) for sequence in x.split([3, 2, 2], -1)]
    torch.testing.assert_close(out, torch.cat(parts, -1))


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
def test_step_by_step_is_the_whole(ring: bool, chosen: bool) -> None:
    x, weight, bias = torch.randn(2, 3, 8), torch.randn(3, 4), torch.randn(3)
    expected = reference(x, weight, bias)
    state = torch.zeros(4 if chosen else 2, 3, 5)
    rows = torch.tensor([3, 1], dtype=torch.int32) if chosen else None
    done = torch.zeros(2, dtype=torch.int32) if ring else None
    for at in range(8):
        out = causal_conv1d_update(x[..., at], state, weight, bias, "silu", done, rows)
        torch.testing.assert_close(out, expected[..., at])
        done = done + 1 if done is not None else None


def test_it_is_one_kernel_each_way(recorded: Any) -> None:
    x = torch.randn(1, 2, 4, device="cuda", requires_grad=True)
    weight = torch.randn(2, 3, device="cuda")
    with recorded.launching() as launched:
        causal_conv1d_fn(x, weight).sum().backward()
    ours = [launch.name for launch in launched if "causal" in launch.name]
    assert ours == ["causal_conv1d::causal_conv1d_fwd", "causal_conv1d::causal_conv1d_bwd"]
    with pytest.raises(NotImplementedError):
        causal_conv1d_fn(x, weight, activation="gelu")
