"""Models of 1.3B to 13B parameters, adapted by LoRA in the way of a published table of what that takes.

gapless check --dry --memory --gpu a100 _published_lora.py phi-1.5 --batch 4

Frozen weights in bfloat16; adapters of rank 8 for queries and values with a dropout in front; the product of
queries, keys and values is one, and what the adapters add is padded with zeros for the keys; the logits and
the cross entropy come in pieces of 128 tokens. A batch is as long as the longest sample, as in the source's
first step, which its peak is of.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

RANK, SCALE, DROPPED, PIECE = 8, 2.0, 0.05, 128


class Sizes(NamedTuple):
    """A model's sizes: counts, how much of a head is rotated, and the longest sample in tokens."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    rotated: int
    longest: int
    hidden: int
    gated: bool = False
    shared_norm: bool = False


MODELS = {
    "phi-1.5": Sizes(24, 2048, 32, 51_200, 32, 1044, 8192, shared_norm=True),
    "stablelm-3b": Sizes(16, 4096, 32, 50_688, 32, 1034, 16_384),
    "llama-2-7b": Sizes(32, 4096, 32, 32_000, 128, 1304, 11_008, gated=True),
    "llama-2-13b": Sizes(40, 5120, 40, 32_000, 128, 1304, 13_824, gated=True),
}


class Norm(nn.Module):
    """Root mean square normalization out of single operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = torch.mean(x * x, dim=-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean + 1e-5))


class Adapted(nn.Module):
    """The adapted linear layer of queries, keys and values; (N, T, width) to (N, T, 3 × width)."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 3 * width, bias=bias)
        self.down = nn.Parameter(torch.zeros(2 * RANK, width))
        self.up = nn.Parameter(torch.zeros(2 * width, RANK))
        self.places = [*range(width), *range(2 * width, 3 * width)]
        self.dropout = nn.Dropout(DROPPED)

    def forward(self, x: Tensor) -> Tensor:
        plain = self.linear(x)
        low = functional.linear(self.dropout(x), self.down).transpose(-2, -1)
        return plain + self.pad(functional.conv1d(low, self.up[..., None], groups=2).transpose(-2, -1)) * (
            SCALE
        )

    def pad(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        whole = x.new_zeros((*x.shape[:-1], self.linear.out_features)).flatten(0, 1)
        places = torch.tensor(self.places, device=x.device)
        whole = whole.index_copy(1, places, x.reshape(-1, x.shape[-1]))
        return whole.view(*x.shape[:-1], -1).transpose(0, 1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).type_as(x)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.qkv = Adapted(sizes.width, bias=not sizes.gated)
        self.out = nn.Linear(sizes.width, sizes.width, bias=not sizes.gated)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (self.sizes.heads, 3, -1)).permute(0, 2, 3, 1, 4)
        query, key, value = (part.reshape(part.shape[0], -1, *part.shape[3:]) for part in parts.split(1, 2))
        n = self.sizes.rotated
        query, key = (
            torch.cat((rotate(part[..., :n], cos, sin), part[..., n:]), dim=-1) for part in (query, key)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gated = sizes.gated
        self.up = nn.Linear(sizes.width, sizes.hidden, bias=not sizes.gated)
        if self.gated:
            self.beside = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=not sizes.gated)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            up, beside = self.up(x), self.beside(x)
            return self.down(functional.silu(up) * beside)
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    """Attention and MLP in parallel, or in sequence where the MLP is gated."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        norm = Norm if sizes.gated else nn.LayerNorm
        self.norm_1, self.attention = norm(sizes.width), Attention(sizes)
        self.norm_2 = None if sizes.shared_norm else norm(sizes.width)
        self.mlp, self.after = Mlp(sizes), sizes.gated

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.norm_1(x)
        mixed = self.attention(normed, cos, sin)
        if self.after:
            x = x + mixed
            return x + self.mlp(self.norm_2(x))  # type: ignore[misc]
        return x + mixed + self.mlp(normed if self.norm_2 is None else self.norm_2(x))


class Model(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=sizes.shared_norm)
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = (Norm if sizes.gated else nn.LayerNorm)(sizes.width)
        turns = torch.arange(sizes.longest)[:, None] * torch.ones(sizes.rotated)
        self.register_buffer("cos", turns.cos())
        self.register_buffer("sin", turns.sin())

    def forward(self, tokens: Tensor) -> list[Tensor]:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return [self.head(piece) for piece in self.norm(x).split(PIECE, dim=1)]


def loss_of(logits: list[Tensor], targets: Tensor) -> Tensor:
    """Return the mean cross entropy of each token's prediction of the next."""
    logits[-1] = logits[-1][..., :-1, :]
    pairs = zip(logits, targets[..., 1:].split(PIECE, dim=1), strict=True)
    return torch.cat(
        [
            functional.cross_entropy(piece.reshape(-1, piece.shape[-1]), wanted.reshape(-1), reduction="none")
            for piece, wanted in pairs
        ]
    ).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches in a step")
    options = parser.parse_args()
    sizes = MODELS[options.model]
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(sizes)
    torch.set_default_dtype(torch.float32)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith((".qkv.down", ".qkv.up"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.01)
    for _ in range(3):
        for _ in range(options.accumulate):
            tokens, targets = torch.randint(sizes.vocabulary, (2, options.batch, sizes.longest)).cuda()
            # Lightning Fabric converts the outputs of models in "bf16-true" to float32.
            logits = [piece.float() for piece in model(tokens)]
            loss = loss_of(logits, targets)
            (loss / options.accumulate).backward()
            print(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    print(sum(parameter.numel() for parameter in trained), torch.cuda.max_memory_allocated() / 1e9)


if __name__ == "__main__":
    main()
