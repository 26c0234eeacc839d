"""A loss over the labelled foreground only, written with indices, unique values and masks.

It waits six times a step. Background and ignored pixels do not count, and a batch whose labels are all
the same has no loss.
"""

from __future__ import annotations

import torch
from common import IGNORE, arguments, train
from torch import Tensor, nn


class ForegroundLoss(nn.Module):
    """Mean cross entropy of logits (N, classes, H, W) and labels (N, H, W); background is the last class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.cross_entropy = nn.CrossEntropyLoss()

    def drop_background(self, labels: Tensor) -> Tensor:
        background = torch.nonzero(labels == self.classes - 1, as_tuple=True)
        labels[background] = IGNORE
        return labels

    def over_foreground(self, logits: Tensor, labels: Tensor) -> Tensor:
        foreground = labels != IGNORE
        chosen_labels = labels[foreground]
        chosen_logits = logits.permute(0, 2, 3, 1)[foreground]
        return self.cross_entropy(chosen_logits, chosen_labels)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        labels = self.drop_background(labels)
        values = torch.unique(labels)
        loss = self.over_foreground(logits, labels)
        if values.numel() < 2:
            loss = 0 * loss
        return loss


if __name__ == "__main__":
    args = arguments(__doc__).parse_args()
    train(args, ForegroundLoss(args.classes))
