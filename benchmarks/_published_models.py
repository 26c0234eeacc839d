"""Models whose steps others have timed, in plain torch, as they built them.

gapless check --dry --gpu rtx3090 _published_models.py resnet50 --batch 512 --train --half
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.nn import functional

import gapless

Tensor = torch.Tensor


class Bottleneck(nn.Module):
    """A block of ResNet-50 v1.5, with the stride in its 3×3 convolution."""

    def __init__(self, taken: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.narrow = _conv_norm(taken, width, 1)
        self.across = _conv_norm(width, width, 3, stride)
        self.wide = _conv_norm(width, outputs, 1)
        self.beside = (
            _conv_norm(taken, outputs, 1, stride) if stride > 1 or taken != outputs else nn.Identity()
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.wide(self.relu(self.across(self.relu(self.narrow(x)))))
        return self.relu(mixed + self.beside(x))  # type: ignore[no-any-return]


def _conv_norm(taken: int, outputs: int, side: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(taken, outputs, side, stride, side // 2, bias=False), nn.BatchNorm2d(outputs)
    )


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [_conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    taken = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(count):
            layers.append(Bottleneck(taken, width, 2 if stage and not block else 1))
            taken = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(taken, 1000))


class Encoder(nn.Module):
    """A layer of a vision transformer, or with `causal` of a GPT; attention in single operators."""

    def __init__(self, width: int, heads: int, length: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        if causal:
            self.register_buffer("seen", torch.tril(torch.ones(length, length))[None, None])

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.first(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]))
        if self.causal:
            scores = scores.masked_fill(self.seen == 0, -math.inf)
        mixed = scores.softmax(-1) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        wide = self.up(self.second(x))
        if self.causal:  # GELU in its parts
            cubed = 0.044715 * torch.pow(wide, 3.0)
            wide = 0.5 * wide * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (wide + cubed)))
        else:
            wide = functional.gelu(wide)
        return x + self.down(wide)  # type: ignore[no-any-return]


class Vision(nn.Module):
    """ViT-S with patches of 16×16 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 384, 16, 16)
        self.kind = nn.Parameter(torch.zeros(1, 1, 384))
        self.places = nn.Parameter(torch.zeros(1, 197, 384))
        self.body = nn.Sequential(*(Encoder(384, 6, 197, causal=False) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.kind.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.body(x))[:, 0])  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """GPT-2 with 124 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50_257, 768), nn.Embedding(1024, 768)
        self.body = nn.Sequential(*(Encoder(768, 12, 1024, causal=True) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 50_257, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.body(x)))  # type: ignore[no-any-return]


MODELS = {"resnet50": resnet50, "vit_small": Vision, "gpt2": Gpt}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--half", action="store_true", help="autocast to float16")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--adam", action="store_true", help="parameter by parameter, as until torch 2.0")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    words = options.model == "gpt2"
    order = torch.channels_last if options.channels_last else torch.contiguous_format
    model = MODELS[options.model]().cuda().train(options.train)
    model = model.to(memory_format=order)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if options.adam:
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    if words:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if words:
        inputs, wanted = torch.randint(50_257, (2, options.batch, 1024), device="cuda")
    else:
        inputs = torch.randn(options.batch, 3, 224, 224, device="cuda").to(memory_format=order)
        wanted = torch.randint(1000, (options.batch,), device="cuda")
    for _ in range(options.steps):
        with (
            torch.set_grad_enabled(options.train),
            torch.autocast("cuda", torch.float16, enabled=options.half),
        ):
            logits = model(inputs)
            loss = (
                functional.cross_entropy(logits.flatten(0, -2), wanted.flatten()) if options.train else None
            )
        if loss is not None:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        gapless.step()


if __name__ == "__main__":
    main()
