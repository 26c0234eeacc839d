"""What the stages share: rows of data that take time to make, a small model, and the training loop."""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

FEATURES, CLASSES, ROWS, BATCH = 4096, 10, 4096, 32


def make_row(index: int) -> tuple[Tensor, int]:
    """Row `index`: (FEATURES,) numbers, smoothed and scaled on the CPU, and a label."""
    values = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index))
    for _ in range(4):
        values = nn.functional.avg_pool1d(values[None], 9, stride=1, padding=4)[0]
        values = (values - values.mean()) / values.std()
    return values, index % CLASSES


def train(loader: DataLoader) -> None:
    """Train a small model on the device on what `loader` gives."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    model = nn.Sequential(nn.Linear(FEATURES, 2048), nn.ReLU(), nn.Linear(2048, CLASSES)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (rows, labels) in enumerate(loader, start=1):
        rows = rows.to("cuda", non_blocking=True)
        labels = labels.to("cuda", non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
        if step == steps:
            break
