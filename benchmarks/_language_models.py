"""The language models of NeuSight's runs, built in torch as their libraries of then built them: attention in
its parts, in fp32."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """A layer with a product of its own for each of queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)


class Bert(Layer):
    """A layer with norms behind; queries, keys and values each by a product of their own."""

    def forward(self, x: Tensor) -> Tensor:
        drop = partial(functional.dropout, p=0.1, training=self.training)
        query, key, value = (_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        scores = scores + torch.zeros(x.shape[0], 1, 1, x.shape[1], device=x.device)
        attended = drop(scores.softmax(-1)) @ value
        x = self.first(drop(self.out(attended.transpose(1, 2).contiguous().view_as(x))) + x)
        return self.second(drop(self.down(functional.gelu(self.up(x)))) + x)


class Gpt(nn.Module):
    """A layer with norms before; one product for queries, keys and values, GELU in its parts."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        drop = partial(functional.dropout, p=0.1, training=self.training)
        query, key, value = (
            _heads(part, self.heads) for part in self.attend(self.first(x)).split(x.shape[-1], 2)
        )
        scores = query @ key.transpose(-1, -2)
        scores = scores / torch.full((), math.sqrt(query.shape[-1]), device=x.device)
        visible = torch.ones(1, 1, *scores.shape[2:], dtype=torch.bool, device=x.device)
        scores = torch.where(visible, scores, torch.full((), -1e30, device=x.device))
        attended = drop(scores.softmax(-1)) @ value
        x = drop(self.out(attended.transpose(1, 2).contiguous().view_as(x))) + x
        wide = self.up(self.second(x))
        wide = 0.5 * wide * (1 + torch.tanh(0.8 * (wide + 0.045 * torch.pow(wide, 3))))
        return x + drop(self.down(wide))


class Opt(Layer):
    """A layer with norms before and no dropout in attention, whose mask is added and cut off below."""

    def forward(self, x: Tensor) -> Tensor:
        drop = partial(functional.dropout, p=0.1, training=self.training)
        normed, (batch, length, width) = self.first(x), x.shape
        projections = (self.query(normed) * 0.125, self.key(normed), self.value(normed))
        query, key, value = (
            _heads(projection, self.heads).contiguous().view(batch * self.heads, length, -1)
            for projection in projections
        )
        scores = torch.bmm(query, key.transpose(1, 2)).view(batch, self.heads, length, length)
        scores = scores + torch.zeros(batch, 1, length, length, device=x.device)
        scores = torch.maximum(scores, torch.full((), -1e30, device=x.device))
        attended = torch.bmm(scores.view(-1, length, length).softmax(-1), value)
        attended = attended.view(batch, self.heads, length, -1).transpose(1, 2).reshape(batch, length, width)
        x = (drop(self.out(attended)) + x).view(-1, width)
        return (drop(self.down(functional.relu(self.up(self.second(x))))) + x).view(batch, length, width)


class Model(nn.Module):
    """Embeddings, layers, a head; `words` for each place, or two classes for the first."""

    def __init__(
        self, layer: Callable[[int, int], nn.Module], width: int, heads: int, layers: int, words: int,
        bert: bool = False, classes: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(2050, width)
        self.kinds = nn.Embedding(2, width) if bert else None
        self.body = nn.Sequential(*(layer(width, heads) for _ in range(layers)))
        self.norm, self.classes = nn.LayerNorm(width), classes
        self.pool = nn.Linear(width, width) if bert else None
        self.head = nn.Linear(width, 2 if classes else words, bias=bert)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if self.kinds is not None:
            x = x + self.kinds(torch.zeros_like(ids))
        x = x + self.places(torch.arange(ids.shape[1], device=ids.device)[None])
        x = functional.dropout(x if self.kinds is None else self.norm(x), 0.1, self.training)
        x = self.body(x)
        if self.pool is None:
            return self.head(self.norm(x))  # type: ignore[no-any-return]
        x = torch.tanh(self.pool(x[:, 0])) if self.classes else self.norm(functional.gelu(self.pool(x)))
        return self.head(x)  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "bert_large": lambda trains: Model(Bert, 1024, 16, 24, 30_522, bert=True, classes=not trains),
    "gpt2_large": lambda trains: Model(Gpt, 1280, 20, 36, 50_257),
    "gpt3_xl": lambda trains: Model(Gpt, 3072, 24, 24, 50_257),
    "gpt3_27": lambda trains: Model(Gpt, 2560, 32, 32, 50_257),
    "opt_13": lambda trains: Model(Opt, 2048, 32, 24, 50_272),
}
"""By the names of the runs; whether it is trained."""
