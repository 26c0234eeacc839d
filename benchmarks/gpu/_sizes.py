"""Trainings of real size in plain torch, built at random from their sizes; the same file is checked and run.

gapless check --dry --memory --gpu H100 _sizes.py llama-1b
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch
from _llama import Llama
from _published_models import Gpt, resnet50
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Sizes(NamedTuple):
    """A Llama's sizes, dtype and training; `rank` of the LoRA adapters (0: all weights train)."""

    dim: int
    layers: int
    heads: int
    shared_heads: int
    hidden: int
    vocabulary: int
    dtype: torch.dtype
    length: int
    batch: int
    rank: int = 0
    checkpointed: bool = False


LLAMAS = {
    "llama-1b": Sizes(2048, 16, 32, 8, 8192, 128_256, torch.float32, 1024, 4),
    "llama-7b-lora": Sizes(4096, 32, 32, 32, 11_008, 32_000, torch.bfloat16, 1024, 2, rank=8),
    "llama-7b": Sizes(4096, 32, 32, 32, 11_008, 32_000, torch.bfloat16, 1024, 2, checkpointed=True),
}
CASES = ("resnet50", "gpt2", *LLAMAS)
SMALL = {"dim": 64, "layers": 2, "heads": 4, "shared_heads": 4, "hidden": 128, "vocabulary": 512}


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank product beside it."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        placement = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.linear = linear
        self.down = nn.Parameter(torch.randn(rank, linear.in_features, **placement) / rank)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank, **placement))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + 2 * functional.linear(functional.linear(x, self.down), self.up)


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return checkpoint(self.block, x, by, use_reentrant=False)  # type: ignore[no-any-return]


def llama(sizes: Sizes) -> nn.Module:
    torch.set_default_dtype(sizes.dtype)
    with torch.device("cuda"):
        model = Llama(argparse.Namespace(**sizes._asdict()))
    torch.set_default_dtype(torch.float32)
    if sizes.rank:
        model.requires_grad_(False)
        for block in model.layers:
            for name in ("wq", "wv"):
                setattr(block.attention, name, Adapted(getattr(block.attention, name), sizes.rank))
    if sizes.checkpointed:
        for number, block in enumerate(model.layers):
            model.layers[number] = Checkpointed(block)
    return model


def make_training(case: str, small: bool) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    """Return model, optimizer, inputs and targets on the device."""
    if case == "resnet50":
        model, batch = resnet50().cuda(), 2 if small else 128
        side = 32 if small else 224
        images = torch.randn(batch, 3, side, side, device="cuda")
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, images, torch.randint(1000, (batch,), device="cuda")
    if case == "gpt2":
        model, words, shape = Gpt().cuda(), 50_257, (1 if small else 8, 1024)
    else:
        sizes = LLAMAS[case]
        if small:
            sizes = sizes._replace(**SMALL, length=64)
        model, words, shape = llama(sizes), sizes.vocabulary, (sizes.batch, sizes.length)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tokens = torch.randint(words, shape, device="cuda")
    return model, torch.optim.AdamW(trained, lr=1e-4), tokens, tokens.roll(-1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="few weights, to check the script")
    options = parser.parse_args()
    torch.manual_seed(0)
    model, optimizer, inputs, wanted = make_training(options.case, options.small)
    whole = options.case in LLAMAS and LLAMAS[options.case].dtype == torch.bfloat16
    half = torch.autocast("cuda", torch.bfloat16, enabled=not whole)
    for _ in range(options.steps):
        optimizer.zero_grad()
        with half:
            loss = functional.cross_entropy(model(inputs).flatten(0, -2), wanted.flatten())
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
