"""xformers' stand-in: its attention beside torch's, its biases beside masks written out."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import gapless
from gapless.emulation.standins.packages.xformers import attention, biases, layers


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, scale: float | None = None
) -> torch.Tensor:
    """torch's own, for ``[batch, length, heads, width]``."""
    return functional.scaled_dot_product_attention(
        *(tensor.transpose(1, 2) for tensor in (q, k, v)), attn_mask=mask, scale=scale
    ).transpose(1, 2)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(5, 8), st.sampled_from([3, 4, 5]))
def test_attention_is_torchs_in_all_its_forms(queries: int, keys: int, dims: int) -> None:
    torch.manual_seed(queries)
    q, k, v = torch.randn(2, queries, 4, 8), torch.randn(2, keys, 4, 8), torch.randn(2, keys, 4, 8)
    expected = plain(q, k, v, scale=0.2)
    inputs = {4: (q, k, v), 5: tuple(tensor.unflatten(2, (2, 2)) for tensor in (q, k, v))}
    inputs[3] = tuple(tensor.transpose(1, 2).flatten(0, 1) for tensor in (q, k, v))
    out = attention.memory_efficient_attention(*inputs[dims], scale=0.2)
    assert out.shape == inputs[dims][0].shape
    same = out.flatten(2, 3) if dims == 5 else out if dims == 4 else out.unflatten(0, (2, 4)).transpose(1, 2)
    torch.testing.assert_close(same, expected, atol=1e-5, rtol=1e-4)


def test_gradients_and_biases_of_numbers(gradients: Callable[..., Any]) -> None:
    q, k, v = (torch.randn(2, 5, 3, 4) for _ in range(3))
    bias = torch.randn(2, 3, 5, 5)
    for actual, other in zip(
        gradients(lambda *a: attention.memory_efficient_attention(*a), q, k, v, bias),
        gradients(lambda *a: plain(*a), q, k, v, bias),
        strict=True,
    ):
        torch.testing.assert_close(actual, other, atol=1e-5, rtol=1e-4)


def test_biases_are_masks() -> None:
    full = torch.ones(3, 5, dtype=torch.bool)
    cases = (
        (biases.LowerTriangularMask(), full.tril()),
        (biases.LowerTriangularFromBottomRightMask(), full.tril(2)),
        (biases.LowerTriangularFromBottomRightMask().make_local_attention(2), full.tril(2) & ~full.tril(0)),
        (biases.LocalAttentionFromBottomRightMask(1, 1), full.tril(3) & ~full.tril(0)),
    )
    for bias, expected in cases:
        assert torch.equal(bias.materialize((1, 2, 3, 5)) == 0, expected.expand(1, 2, 3, 5))
    added = biases.LowerTriangularMask().add_bias(torch.full((3, 5), 2.0)).materialize((3, 5))
    assert added[2, 0] == 2
    assert added[0, 2] == -torch.inf


@pytest.mark.parametrize("kind", ["make_causal", "make_causal_from_bottomright", None])
def test_blocks_see_themselves(kind: str | None) -> None:
    bias = biases.BlockDiagonalMask.from_seqlens([2, 3], [4, 3])
    bias = getattr(bias, kind)() if kind else bias
    q, k, v = torch.randn(1, 5, 2, 4), torch.randn(1, 7, 2, 4), torch.randn(1, 7, 2, 4)
    out = attention.memory_efficient_attention(q, k, v, bias)
    shift = 2 if kind == "make_causal_from_bottomright" else 0
    first = torch.ones(2, 4, dtype=torch.bool).tril(shift) if kind else None
    second = torch.ones(3, 3, dtype=torch.bool).tril() if kind else None
    torch.testing.assert_close(out[:, :2], plain(q[:, :2], k[:, :4], v[:, :4], first), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out[:, 2:], plain(q[:, 2:], k[:, 4:], v[:, 4:], second), atol=1e-5, rtol=1e-4)


def test_lists_of_tensors_are_joined_and_split() -> None:
    parts = [torch.randn(2, 3, 4), torch.randn(1, 5, 4)]
    bias, joined = biases.BlockDiagonalMask.from_tensor_list(parts)
    assert joined.shape == (1, 11, 4)
    for actual, other in zip(bias.split(joined), parts, strict=True):
        assert torch.equal(actual, other)


def test_a_bias_copies_where_sequences_begin(recorded: Any) -> None:
    before = recorded.waits()
    bias = biases.BlockDiagonalMask.from_seqlens([2, 3])
    assert bias.q_seqinfo.seqstart.is_cuda
    assert recorded.waits() - before == 1
    q = torch.randn(1, 5, 2, 4, device="cuda", requires_grad=True)
    with recorded.launching() as launches:
        attention.memory_efficient_attention(q, q, q, bias).sum().backward()
    assert [launch.name for launch in launches if "xformers" in launch.name] == [
        "xformers::efficient_attention_forward",
        "xformers::efficient_attention_backward",
    ]
    assert recorded.waits() - before == 1


def test_other_operators() -> None:
    x = torch.randn(3, 4)
    module = layers.SwiGLU(4, 6)
    w1, w2 = module.w12.weight.chunk(2)  # type: ignore[union-attr]
    b1, b2 = module.w12.bias.chunk(2)  # type: ignore[union-attr]
    torch.testing.assert_close(module(x), layers.swiglu(x, w1, b1, w2, b2, module.w3.weight, module.w3.bias))
    torch.testing.assert_close(layers.RMSNorm(4)(x), functional.rms_norm(x, (4,), eps=1e-6))
    index = torch.tensor([2, 0])
    expected = x.clone()
    expected[index] += 0.5 * x[:2] * 3
    torch.testing.assert_close(layers.scaled_index_add(x, index, x[:2], torch.full((4,), 3.0), 0.5), expected)
    assert torch.equal(
        layers.index_select_cat([x, x], [index, index[:1]]), torch.cat((x[index].flatten(), x[2]))
    )


def test_the_real_packages_attention_is_computed_here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "xformers"
    (package / "ops" / "fmha").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "ops" / "fmha" / "__init__.py").write_text(
        "def memory_efficient_attention(*a, **k): raise NotImplementedError('No operator found')\n"
    )
    (package / "ops" / "__init__.py").write_text("from .fmha import memory_efficient_attention\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with gapless.emulate():
        ops = importlib.import_module("xformers.ops")
        q = torch.randn(1, 3, 2, 4, device="cuda")
        assert ops.memory_efficient_attention(q, q, q).is_cuda
        assert ops.fmha.memory_efficient_attention is ops.memory_efficient_attention
    with pytest.raises(NotImplementedError):
        ops.memory_efficient_attention(q, q, q)
    for name in ("xformers", "xformers.ops", "xformers.ops.fmha"):
        monkeypatch.delitem(importlib.import_module("sys").modules, name)
