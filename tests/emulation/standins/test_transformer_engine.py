"""Transformer Engine's stand-in beside torch's layers."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

import gapless
from gapless.emulation.standins.packages.transformer_engine import attention, layers
from gapless.errors import NotEmulated


def test_layers_are_torchs() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    linear = layers.LayerNormLinear(8, 4, device="cpu", return_layernorm_output=True)
    torch.nn.init.normal_(linear.layer_norm_weight)
    normed = functional.layer_norm(x, (8,), linear.layer_norm_weight, linear.layer_norm_bias)
    out, between = linear(x)
    torch.testing.assert_close(between, normed)
    torch.testing.assert_close(out, functional.linear(normed, linear.weight, linear.bias))
    mlp = layers.LayerNormMLP(8, 16, normalization="RMSNorm", activation="swiglu", device="cpu")
    normed = functional.rms_norm(x, (8,), mlp.layer_norm_weight, 1e-5)
    gate, value = functional.linear(normed, mlp.fc1_weight, mlp.fc1_bias).chunk(2, -1)
    expected = functional.linear(functional.silu(gate) * value, mlp.fc2_weight, mlp.fc2_bias)
    torch.testing.assert_close(mlp(x), expected)
    apart, bias = layers.Linear(8, 2, device="cpu", return_bias=True)(x)
    assert apart.shape == (3, 2)
    assert bias.shape == (2,)
    centered = layers.RMSNorm(8, device="cpu", zero_centered_gamma=True)
    torch.testing.assert_close(centered(x), functional.rms_norm(x, (8,), eps=1e-5))
    with pytest.raises(NotImplementedError, match="tp_size"):
        layers.Linear(8, 2, tp_size=2)


def test_a_model_trains_and_fp8_is_reported_to_have_no_effect() -> None:
    with gapless.emulate("H100") as emulation:
        te = importlib.import_module("transformer_engine.pytorch")
        recipe = importlib.import_module("transformer_engine.common.recipe")
        optimizers = importlib.import_module("transformer_engine.pytorch.optimizers")
        model = torch.nn.Sequential(te.LayerNormMLP(8, 16), te.Linear(8, 2))
        assert next(model.parameters()).is_cuda
        optimizer = optimizers.FusedAdam(model.parameters(), lr=0.01)
        x = torch.randn(4, 8, device="cuda")
        before, losses = emulation.waits, []
        for _ in range(5):
            with te.fp8_autocast(enabled=te.is_fp8_available(), fp8_recipe=recipe.DelayedScaling(margin=0)):
                loss = (model(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        assert emulation.waits == before
        assert losses[-1].item() < losses[0].item()
        notes = emulation.session.notes
    assert [note for note in notes if "fp8 has no effect" in note]


@pytest.mark.parametrize(("gpu", "fp8", "mxfp8"), [("A100", False, False), ("H100", True, False)])
def test_what_the_gpu_can_do(gpu: str, fp8: bool, mxfp8: bool) -> None:
    with gapless.emulate(gpu):
        te = importlib.import_module("transformer_engine.pytorch")
        assert te.is_fp8_available() is fp8
        can, reason = te.is_mxfp8_available(return_reason=True)
        assert can is mxfp8
        assert "10.0" in reason


def test_the_launches_of_a_layer(recorded: Any) -> None:
    layer = layers.LayerNormLinear(8, 4)
    x = torch.randn(3, 8, device="cuda", requires_grad=True)
    with recorded.launching() as launches:
        layer(x)
    names = [launch.name for launch in launches]
    assert names[0] == "transformer_engine::layernorm_fwd"
    assert sum(name.startswith("aten::") for name in names) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_torchs_in_every_layout(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    near = partial(torch.testing.assert_close, atol=1e-5 if dtype is torch.float32 else 1e-2, rtol=1e-2)
    query = torch.randn(2, 5, 4, 8, dtype=dtype, requires_grad=True)
    key, value = (torch.randn(2, 5, 2, 8, dtype=dtype) for _ in range(2))
    attend = attention.DotProductAttention(4, 8, 2)
    expected = functional.scaled_dot_product_attention(
        *(part.transpose(1, 2) for part in (query, key, value)), is_causal=True, enable_gqa=True
    )
    expected = expected.transpose(1, 2).flatten(-2)
    near(attend(query, key, value, qkv_format="bshd"), expected)
    turned = attend(*(part.transpose(0, 1) for part in (query, key, value)))
    near(turned, expected.transpose(0, 1))
    turned.sum().backward()
    assert query.grad is not None
    hidden = torch.zeros(2, 1, 1, 5, dtype=torch.bool)
    hidden[..., -1] = True
    shorter = attend(
        query, key, value, hidden, qkv_format="bshd", attn_mask_type="padding_causal"
    )  # which is as if the last key were not there
    near(shorter[:, :4], expected[:, :4])
    assert not torch.equal(shorter[:, 4], expected[:, 4])
    if dtype is torch.bfloat16:
        starts = torch.tensor([0, 5, 10], dtype=torch.int32)
        packed = (part.flatten(0, 1) for part in (query, key, value))
        out = attend(*packed, qkv_format="thd", cu_seqlens_q=starts, cu_seqlens_kv=starts)
        near(out, expected.flatten(0, 1))


def test_grouped_layers_take_their_own_rows() -> None:
    layer = layers.GroupedLinear(2, 3, 4, device="cpu")
    x = torch.randn(5, 3)
    out = layer(x, [2, 3])
    torch.testing.assert_close(out[:2], functional.linear(x[:2], layer.weight0, layer.bias0))
    torch.testing.assert_close(out[2:], functional.linear(x[2:], layer.weight1, layer.bias1))


def test_fused_operations_can_be_named_and_are_refused_when_made() -> None:
    with gapless.emulate("H100"):
        te = importlib.import_module("transformer_engine.pytorch")
        with pytest.raises(NotEmulated, match=r"transformer_engine\.pytorch\.ops\.Sequential"):
            te.ops.Sequential()
        assert not te.fp8.FP8GlobalStateManager.is_fp8_enabled()
        tracker = te.distributed.CudaRNGStatesTracker()
        tracker.add("one", 3)
        with tracker.fork("one"):
            first = torch.rand(2, device="cuda")
        tracker.reset()
        tracker.add("one", 3)
        with tracker.fork("one"):
            assert torch.equal(torch.rand(2, device="cuda"), first)
