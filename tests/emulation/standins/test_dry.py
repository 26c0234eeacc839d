"""Stand-ins without values: results and gradients look as with values, and nothing is computed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gapless import trees
from gapless.emulation.emulator import Emulator
from gapless.emulation.options import EmulatorOptions
from gapless.emulation.standins import launch

Tensor = torch.Tensor
TOKENS, HEADS, WIDTH = 512, 4, 64


def large(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, device="cuda", dtype=dtype).requires_grad_()


def starts(*ends: int) -> Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32, device="cuda")


def of(module: str, name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def attended(*more: Any, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    q, k, v = (large(2, TOKENS, heads, WIDTH, dtype=dtype) for heads in (HEADS, HEADS // 2, HEADS // 2))
    return of("flash_attn", "flash_attn_func")(q, k, v, *more, **options), (q, k, v)


def attended_apart() -> Any:
    q, k, v = (large(TOKENS, HEADS, WIDTH, dtype=torch.float16) for _ in range(3))
    bounds = starts(200, 201, TOKENS)
    apart = of("flash_attn", "flash_attn_varlen_func")
    return apart(q, k, v, bounds, bounds, 311, 311, causal=True), (q, k, v)


def normed() -> Any:
    x, weight = large(TOKENS, 1024), large(1024)
    return of("flash_attn.ops.triton.layer_norm", "rms_norm_fn")(x, weight, None), (x, weight)


def entropy() -> Any:
    scores, labels = large(TOKENS, 1000), torch.randint(0, 1000, (TOKENS,), device="cuda")
    return of("flash_attn.losses.cross_entropy", "CrossEntropyLoss")()(scores, labels), (scores,)


def memory_efficient() -> Any:
    q, k, v = (large(2, TOKENS, HEADS, WIDTH) for _ in range(3))
    return of("xformers.ops", "memory_efficient_attention")(q, k, v), (q, k, v)


def fused_norm() -> Any:
    norm, x = of("apex.normalization", "FusedLayerNorm")(1024).cuda(), large(TOKENS, 1024)
    return norm(x), (x, *norm.parameters())


def convolved() -> Any:
    x, weight = large(2, 512, TOKENS), large(512, 4)
    return of("causal_conv1d", "causal_conv1d_fn")(x, weight, activation="silu"), (x, weight)


def scanned() -> Any:
    u, delta = large(4, 256, 256), large(4, 256, 256)
    a, b, c = large(256, 16), large(4, 16, 256), large(4, 16, 256)
    return of("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn")(u, delta, a, b, c), (u, delta, a)


def scanned_in_chunks() -> Any:
    x, dt = large(2, 256, 8, 128), large(2, 256, 8)
    a, b, c = large(8), large(2, 256, 1, 64), large(2, 256, 1, 64)
    scan = of("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined")
    return scan(x, dt, a, b, c, 64, return_final_states=True), (x, dt)


def turned() -> Any:
    x, cos, sin = large(2, TOKENS, HEADS, WIDTH), torch.rand(TOKENS, 32).cuda(), torch.rand(TOKENS, 32).cuda()
    return of("flash_attn.layers.rotary", "apply_rotary_emb")(x, cos, sin), (x,)


CASES = [
    attended,
    lambda: attended(return_attn_probs=True, causal=True),
    lambda: attended(window_size=(128, 0), softcap=30.0),
    attended_apart, normed, entropy, memory_efficient, fused_norm, convolved, scanned, scanned_in_chunks,
    turned,
]  # fmt: skip


def looks(case: Callable[[], Any], dry: bool) -> list[Any]:
    """Shape, strides, type and device of all results and gradients, and the peak of memory."""
    with Emulator(EmulatorOptions(dry=dry, memory=True)):
        out, leaves = case()
        first = next(trees.tensors(out))
        first.sum().backward()
        tensors = [*trees.tensors(out), *(leaf.grad for leaf in leaves)]
        shown = [(tuple(t.shape), t.stride(), t.dtype, str(t.device), t.requires_grad) for t in tensors]
        return [*shown, torch.cuda.max_memory_allocated()]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_results_look_as_with_values(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_values = looks(CASES[number], False)
    computed: list[str] = []
    body = launch.without_values

    def record_shapes(table: Any, name: str, shaped: Any, compute: Any, *rest: Any) -> Any:
        return body(table, name, shaped, lambda *args: computed.append(name) or compute(*args), *rest)

    monkeypatch.setattr(launch, "without_values", record_shapes)
    assert looks(CASES[number], True) == with_values
    assert not computed
