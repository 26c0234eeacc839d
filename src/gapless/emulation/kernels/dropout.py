"""Fused dropout, and random numbers determined by a key."""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.kernels import kernel, philox

Tensor = torch.Tensor


@kernel("_fused_dropout")
def _fused_dropout(self: Tensor, p: float, generator: Any = None) -> tuple[Tensor, Tensor]:
    """Drop out; `p` is the probability to keep an element."""
    kept = torch.empty_like(self).bernoulli_(p, generator=generator)
    return self * kept / p, kept.to(torch.uint8)


@kernel("_masked_scale")
def _masked_scale(self: Tensor, mask: Tensor, scale: float) -> Tensor:
    return self * mask.to(self.dtype) * scale


@kernel("_fill_mem_eff_dropout_mask_")
def _mem_eff_mask(self: Tensor, dropout_p: float, seed: int, offset: int) -> Tensor:
    """Fill `self` with the uniform numbers that the kernel compares with `dropout_p`."""
    return self.uniform_(generator=philox.generator(seed, offset))


@kernel("_philox_key_split")
def _key_split(key: Tensor, num_splits: int) -> Tensor:
    """Derive new keys, shape (`num_splits`, …): independent of each other, but not CUDA's values."""
    return torch.stack([_key_fold_in(key, number) for number in range(num_splits)])


@kernel("_philox_key_fold_in")
def _key_fold_in(key: Tensor, data: int) -> Tensor:
    flat = key.reshape(-1, 2).view(torch.int64)
    folded = [[philox.mix(seed, offset ^ (data << 2)), 0] for seed, offset in flat.tolist()]
    signed = [[seed - (1 << 64) if seed >> 63 else seed, offset] for seed, offset in folded]
    return torch.tensor(signed, dtype=torch.int64).view(key.dtype).reshape(key.shape)


@kernel("_philox_uniform_")
def _philox_uniform(self: Tensor, key: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return _draw_by_key(self, key, lambda part, generator: part.uniform_(low, high, generator=generator))


@kernel("_philox_normal_")
def _philox_normal(self: Tensor, key: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return _draw_by_key(self, key, lambda part, generator: part.normal_(mean, std, generator=generator))


def _draw_by_key(self: Tensor, key: Tensor, draw: Any) -> Tensor:
    """Fill `self` by `draw`: with one key for all of it, or a key per entry of its leading dimensions."""
    pairs = key.reshape(-1, 2).view(torch.int64).tolist()
    parts = self.reshape(len(pairs), -1)
    for part, (seed, offset) in zip(parts, pairs, strict=True):
        draw(part, philox.generator(seed, offset))
    return self if parts.data_ptr() == self.data_ptr() else self.copy_(parts.reshape(self.shape))
