"""What docs/journeys/segmentation.md takes for granted."""

import torch
import torch.nn.functional as F  # noqa: F401

from gapless import ops  # noqa: F401

IGNORE, classes = -1, 10
background = classes - 1
logits = torch.randn(2, classes, 8, 8, device="cuda", requires_grad=True)
labels = torch.randint(-1, classes, (2, 8, 8), device="cuda")
