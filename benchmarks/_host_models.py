"""Ten small training steps, of sizes at which kernels cost nothing: what is left is the host's work."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[], object]
WIDE = 8
BATCH = 2


class Block(nn.Module):
    """A transformer's block, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.up, self.down = nn.Linear(WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, dim=-1)
        weights = (q @ k.transpose(-1, -2) / WIDE**0.5).softmax(-1)
        x = x + self.out(weights @ v)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(16, WIDE), nn.Sequential(*[Block() for _ in range(6)])
        self.norm, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x)))).flatten(0, 1)


class Mixer(nn.Module):
    """Mixes rows and columns in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.across = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.along = nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE))
        self.one, self.two = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.two(x))


class Graph(nn.Module):
    """Sends messages along edges and sums them at nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * WIDE, WIDE) for _ in range(5))
        self.register_buffer("source", torch.arange(12) % 6)
        self.register_buffer("target", torch.arange(12) * 5 % 6)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            sent = x.index_select(0, self.source)
            heard = torch.zeros_like(x).index_add_(0, self.target, sent)
            x = functional.elu(layer(torch.cat([x, heard], 1)))
        return x


class Gated(nn.Module):
    """A recurrent cell, unrolled step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.candidate = nn.Linear(2 * WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), WIDE)
        for at in range(6):
            both = torch.cat([x[:, at], state], 1)
            update, reset = torch.sigmoid(self.gates(both)).chunk(2, 1)
            new = torch.tanh(self.candidate(torch.cat([x[:, at], reset * state], 1)))
            state = update * state + (1 - update) * new
        return state


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Softplus(), nn.Linear(WIDE, 2 * WIDE))
        self.decoder = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Softplus(), nn.Linear(WIDE, WIDE))

    def forward(self, x: Tensor) -> Tensor:
        mean, log = self.encoder(x).chunk(2, 1)
        shape = mean + torch.randn_like(log) * (0.5 * log).exp()
        divergence = (mean.pow(2) + log.exp() - log - 1).sum(1, keepdim=True)
        return self.decoder(shape) - x + 0.1 * divergence


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(16, WIDE, mode="sum") for _ in range(6))
        self.top = nn.Sequential(nn.Linear(36, WIDE), nn.ReLU(), nn.Linear(WIDE, 1))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.stack([table(x) for table in self.tables], 1)
        return self.top(torch.bmm(rows, rows.transpose(1, 2)).flatten(1))


class Experts(nn.Module):
    """A mixture whose experts all run, weighted by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDE, 6)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDE, WIDE), nn.SiLU(), nn.Linear(WIDE, WIDE)) for _ in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return sum(
            (weights[:, n : n + 1] * expert(x) for n, expert in enumerate(self.experts)), torch.zeros_like(x)
        )


class Contrast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Dropout(0.1), nn.Linear(WIDE, WIDE))
        self.two = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Dropout(0.1), nn.Linear(WIDE, WIDE))

    def forward(self, x: Tensor) -> Tensor:
        a, b = functional.normalize(self.one(x)), functional.normalize(self.two(x))
        return a @ b.T * 10.0


def perceptron() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(WIDE, WIDE), nn.ReLU())])


Make = Callable[[], nn.Module]
_ROWS, _SEQUENCE, _WORDS = (BATCH, WIDE), (BATCH, 6, WIDE), (BATCH, 6)


def _square(out: Tensor, x: Tensor) -> Tensor:
    return (out - out.detach().mean()).pow(2).mean()


def _tokens(out: Tensor, x: Tensor) -> Tensor:
    return functional.cross_entropy(out, x.flatten())


def _pairs(out: Tensor, x: Tensor) -> Tensor:
    return functional.cross_entropy(out, torch.arange(len(out), device=out.device))


def _step(
    device: str, make: Make, shape: tuple[int, ...], loss: Callable[[Tensor, Tensor], Tensor], how: str
) -> Step:
    torch.manual_seed(0)
    model = make().to(device)
    words = shape == _WORDS
    x = torch.randint(0, 16, shape, device=device) if words else torch.randn(shape, device=device)
    kinds = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), 1e-3, foreach=True),
        "momentum": lambda: torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, foreach=True),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), 1e-4, foreach=True),
        "adam": lambda: torch.optim.Adam(model.parameters(), 1e-4, foreach=True),
    }
    optimizer = kinds[how]()

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), x).backward()
        optimizer.step()

    return step


def models() -> dict[str, Callable[[str], Step]]:
    """Return for each model a function that makes its training step on a device."""
    settings: dict[str, tuple[Make, tuple[int, ...], Callable[[Tensor, Tensor], Tensor], str]] = {
        "perceptron": (perceptron, _ROWS, _square, "sgd"),
        "transformer": (Language, _WORDS, _tokens, "adamw"),
        "mixer": (lambda: nn.Sequential(*[Mixer() for _ in range(4)]), _SEQUENCE, _square, "momentum"),
        "graph network": (Graph, (6, WIDE), _square, "momentum"),
        "autoencoder": (Variational, _ROWS, _square, "adamw"),
        "recurrent cell": (Gated, _SEQUENCE, _square, "adam"),
        "recommender": (Recommender, _WORDS, _square, "sgd"),
        "mixture of experts": (Experts, _ROWS, _square, "adamw"),
        "contrastive": (Contrast, _ROWS, _pairs, "adam"),
        "torch's encoder": (
            lambda: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(WIDE, 2, 2 * WIDE, batch_first=True), 4, enable_nested_tensor=False
            ),
            _SEQUENCE, _square, "adamw",
        ),
    }  # fmt: skip
    return {
        name: lambda device, setting=setting: _step(device, *setting)  # type: ignore[misc]
        for name, setting in settings.items()
    }
