"""Sequences of any length on a GPU that is nearly full: the allocator gives memory back, and asks again."""

from __future__ import annotations

import argparse

import torch
from torch import nn

WIDTH, VOCABULARY, BATCH = 64, 4000, 8
MEMORY = 448 * 2**20
"""Bytes that the process may have: a small part of a GPU stands for a model that fills a whole one."""


def length_of(step: int, pad_to: int) -> int:
    """How long the sequences of a step are: from 100 to 500, rounded up to a multiple of `pad_to`."""
    length = int(torch.randint(100, 500, (), generator=torch.Generator().manual_seed(step)))
    return -(-length // pad_to) * pad_to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pad-to", type=int, default=1, help="round lengths up to a multiple of this")
    options = parser.parse_args()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(MEMORY / total)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, VOCABULARY)
    ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(options.steps):
        length = length_of(step, options.pad_to)
        tokens = torch.randint(VOCABULARY, (BATCH, length + 1)).pin_memory().to("cuda", non_blocking=True)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
