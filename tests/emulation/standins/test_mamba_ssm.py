"""mamba's stand-in beside its recurrence, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gapless.emulation.standins.packages.mamba_ssm import chunks, layers, norms, scan


def recurrence(
    u: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, first: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[batch, length, heads, width]``, step by step; `A` by head, `B` and `C` by head and state."""
    batch, length, heads, width = u.shape
    state = torch.zeros(batch, heads, width, B.shape[-1]) if first is None else first
    out = []
    for at in range(length):
        decay = torch.exp(dt[:, at] * A)[..., None, None]
        added = (dt[:, at, :, None] * u[:, at])[..., None] * B[:, at, :, None]
        state = decay * state + added
        out.append((state * C[:, at, :, None]).sum(-1))
    return torch.stack(out, 1), state


def case(length: int, heads: int = 2, groups: int = 1, seed: int = 0) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    u, dt = torch.randn(2, length, heads, 4), torch.rand(2, length, heads)
    A = -torch.rand(heads) * 3
    B, C = (torch.randn(2, length, groups, 3) for _ in range(2))
    return u, dt, A, B, C


def spread(grouped_tensor: torch.Tensor, heads: int) -> torch.Tensor:
    return grouped_tensor.repeat_interleave(heads // grouped_tensor.shape[2], 2)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 140), st.sampled_from([(2, 1), (4, 2)]))
def test_chunks_are_the_recurrence(length: int, shape: tuple[int, int]) -> None:
    heads, groups = shape
    u, dt, A, B, C = case(length, heads, groups, length)
    out, last = chunks.mamba_chunk_scan_combined(u, dt, A, B, C, 64, return_final_states=True)
    expected, state = recurrence(u, dt, A, spread(B, heads), spread(C, heads))
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(last, state, atol=1e-4, rtol=1e-4)


def test_chunks_of_sequences_do_not_mix() -> None:
    u, dt, A, B, C = case(100)
    sizes = [10, 60, 30]
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))[None].expand(2, -1)
    out = chunks.mamba_chunk_scan_combined(u, dt, A, B, C, 64, seq_idx=ids)
    parts = zip(*(tensor.split(sizes, 1) for tensor in (u, dt, spread(B, 2), spread(C, 2))), strict=True)
    expected = torch.cat([recurrence(a, b, A, c, d)[0] for a, b, c, d in parts], 1)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_what_rides_along_with_a_scan() -> None:
    u, dt, A, B, C = case(9)
    first, z, D, bias = torch.randn(2, 2, 4, 3), torch.randn_like(u), torch.randn(2), torch.randn(2)
    out = chunks.mamba_chunk_scan_combined(u, dt, A, B, C, 4, D, z, bias, first, dt_softplus=True)
    plain, _ = recurrence(u, functional.softplus(dt + bias), A, spread(B, 2), spread(C, 2), first)
    torch.testing.assert_close(out, (plain + u * D[:, None]) * functional.silu(z), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("grouped", [False, True])
def test_the_selective_scan_is_the_recurrence(grouped: bool, gradients: Callable[..., Any]) -> None:
    u, dt, A, B, C = case(7, heads=4, groups=2 if grouped else 1)
    rates = A[:, None].expand(-1, 3).contiguous()

    def ours(u: Any, dt: Any, B: Any, C: Any) -> Any:
        flat = [
            tensor.permute(0, 2, 3, 1) if grouped else tensor[:, :, 0].transpose(1, 2) for tensor in (B, C)
        ]
        return scan.selective_scan_fn(
            u[..., 0].transpose(1, 2), dt.transpose(1, 2), rates, *flat, delta_softplus=True
        )

    def theirs(u: Any, dt: Any, B: Any, C: Any) -> Any:
        plain, _ = recurrence(u[..., :1], functional.softplus(dt), A, spread(B, 4), spread(C, 4))
        return plain[..., 0].transpose(1, 2)

    torch.testing.assert_close(ours(u, dt, B, C), theirs(u, dt, B, C), atol=1e-5, rtol=1e-4)
    for actual, other in zip(gradients(ours, u, dt, B, C), gradients(theirs, u, dt, B, C), strict=True):
        torch.testing.assert_close(actual, other, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("heads", [False, True])
def test_a_step_continues_a_scan(heads: bool) -> None:
    u, dt, A, B, C = case(5)
    expected, last = recurrence(u, dt, A, spread(B, 2), spread(C, 2))
    state = torch.zeros(2, 2, 4, 3)
    rates = A[:, None, None].expand(2, 4, 3)
    for at in range(5):
        args = u[:, at], dt[:, at, :, None].expand(-1, -1, 4), rates, B[:, at], C[:, at]
        if heads:
            out = scan.selective_state_update(state, *args)
        else:
            flat = state.flatten(1, 2)
            out = scan.selective_state_update(
                flat, args[0].flatten(1), args[1].flatten(1), rates.flatten(0, 1), B[:, at, 0], C[:, at, 0]
            ).unflatten(1, (2, 4))
            state = flat.unflatten(1, (2, 4))
        torch.testing.assert_close(out, expected[:, at], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state, last, atol=1e-5, rtol=1e-4)


def test_gated_norms() -> None:
    x, z, weight = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8)
    plain = functional.rms_norm(x * functional.silu(z), (8,), weight, 1e-6)
    torch.testing.assert_close(norms.rmsnorm_fn(x, weight, None, z, norm_before_gate=False), plain)
    grouped = (
        functional.layer_norm(x.unflatten(-1, (2, 4)), (4,), eps=1e-6).flatten(-2)
        * weight
        * functional.silu(z)
    )
    torch.testing.assert_close(norms.layernorm_fn(x, weight, None, z, group_size=4), grouped)


@pytest.mark.parametrize("kind", ["Mamba", "Mamba2"])
def test_layers_train_and_are_causal(kind: str, recorded: Any) -> None:
    torch.manual_seed(0)
    more = {"headdim": 8, "d_state": 4} if kind == "Mamba2" else {}
    layer = getattr(layers, kind)(16, **more).to("cuda")
    x = torch.randn(2, 6, 16, device="cuda")
    before = recorded.waits()
    out = layer(x)
    out.sum().backward()
    assert recorded.waits() == before
    missing = [name for name, param in layer.named_parameters() if param.grad is None]
    assert not missing
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(layer(changed)[:, :4].cpu(), out[:, :4].cpu())
