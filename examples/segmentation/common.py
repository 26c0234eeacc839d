"""What every stage of this example shares: network, data, training. The stage files hold the loss."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

IGNORE = -1


class Network(nn.Module):
    """A plain stack of convolutions: images (N, 3, H, W) to logits (N, classes, H, W)."""

    def __init__(self, classes: int, width: int = 10, depth: int = 10) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding="same")
        self.hidden = nn.ModuleList(nn.Conv2d(width, width, 3, padding="same") for _ in range(depth))
        self.leave = nn.Conv2d(width, classes, 3, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.enter(x))
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.leave(x)


class RandomScenes(Dataset):
    """Random images (3, size, size) with a label, or `IGNORE`, for each pixel (size, size)."""

    def __init__(self, size: int, classes: int, length: int) -> None:
        self.size, self.classes, self.length = size, classes, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = torch.randn(3, self.size, self.size)
        labels = torch.randint(IGNORE, self.classes, (self.size, self.size))
        return image, labels


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options of every stage. The defaults are small: they take seconds where the device is emulated."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images")
    parser.add_argument("--batch", type=int, default=8, help="images per step")
    parser.add_argument("--classes", type=int, default=10, help="labels; the last one is the background")
    parser.add_argument("--steps", type=int, default=20, help="training steps")
    parser.add_argument("--workers", type=int, default=2, help="processes that prepare batches")
    return parser


def train(args: argparse.Namespace, criterion: nn.Module) -> None:
    """Train the network on random scenes with the loss `criterion(logits, labels)`."""
    device = torch.device("cuda:0")
    scenes = RandomScenes(args.size, args.classes, args.batch * args.steps)
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader = DataLoader(scenes, args.batch, shuffle=True, pin_memory=True, **workers)
    model = Network(args.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    model.train()
    for images, labels in loader:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"last loss: {loss.item():.4f}")
