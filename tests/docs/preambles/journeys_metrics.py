"""What docs/journeys/metrics.md takes for granted."""

import torch

device = "cuda"
logits = torch.randn(64, 10, device=device)
labels = torch.randint(10, (64,), device=device)
