"""Eight kinds of compiled code, small: what each launches depends on its operators, not on sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDE, LONG, BATCH = 64, 16, 4


class Block(nn.Module):
    """A transformer's block, with attention as one operator or written out."""

    def __init__(self, written_out: bool = False) -> None:
        super().__init__()
        self.written_out = written_out
        self.first, self.second = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if self.written_out:
            mask = torch.ones(LONG, LONG, dtype=torch.bool, device=x.device).tril()
            scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~mask, float("-inf"))
            mixed = scores.softmax(-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first(x))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Language(nn.Module):
    """A small GPT, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(128, WIDE), nn.Embedding(LONG, WIDE)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(LONG, device=x.device))
        return functional.cross_entropy(self.head(self.norm(self.blocks(h))).flatten(0, 1), x.flatten())


class Residual(nn.Module):
    """Convolutions with batch norm, around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.first, self.second = nn.BatchNorm2d(16), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.second(self.two(self.first(self.one(x)).relu()))).relu()


class RMSNorm(nn.Module):
    """Root-mean-square norm, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDE))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Gated(nn.Module):
    """Gated products with a norm before and behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind, self.last = RMSNorm(), nn.LayerNorm(WIDE), RMSNorm()
        self.gate, self.up, self.down = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        y = self.behind(self.down(functional.silu(self.gate(y)) * self.up(y)))
        return self.last(x + y)


class Reduced(nn.Module):
    """Reduces the output of `inner` to a scalar to differentiate."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean()


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDE, WIDE), nn.GELU(), nn.LayerNorm(WIDE), nn.Linear(WIDE, WIDE), nn.ReLU(),
        nn.Linear(WIDE, 10),
    )  # fmt: skip


def _cnn() -> nn.Module:
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Residual(), nn.MaxPool2d(2), Residual(), *head)


def _words() -> Tensor:
    return torch.randint(0, 128, (BATCH, LONG))


def _rows() -> Tensor:
    return torch.randn(BATCH, LONG, WIDE)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "small GPT": (Language, _words),
    "CNN with residuals": (lambda: Reduced(_cnn()), lambda: torch.randn(BATCH, 3, 16, 16)),
    "MLP": (lambda: Reduced(_mlp()), _rows),
    "norm-heavy": (lambda: Reduced(nn.Sequential(Gated(), Gated())), _rows),
    "attention": (lambda: Reduced(Block()), _rows),
    "attention written out": (lambda: Reduced(Block(written_out=True)), _rows),
    "dropout": (lambda: Reduced(nn.Sequential(_mlp(), nn.Dropout(0.1))), _rows),
}
"""Each returns its loss, so forward and backward pass are counted."""


def adam(parameters: list[Any], gradients: list[Any], first: list[Any], second: list[Any]) -> None:
    """A step of Adam over lists, as a compiled optimizer makes it."""
    torch._foreach_lerp_(first, gradients, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, gradients, gradients, 0.001)
    roots = torch._foreach_sqrt(second)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(parameters, first, roots, -1e-3)
