"""What docs/trace.md takes for granted."""

import torch

import gapless  # noqa: F401
from gapless.metrics import MulticlassAccuracy


def dice_loss(score: torch.Tensor) -> torch.Tensor:
    return 1 - score.mean()


metrics = {"accuracy": MulticlassAccuracy(3)}


def train_step() -> None:
    dice_loss(torch.ones(3))
