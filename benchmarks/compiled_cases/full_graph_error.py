"""`fullgraph=True` where the graph breaks: the error is caught, and the plain function used instead."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def clipped(x):
    if x.abs().max() > 1:
        return x / 2
    return x


def fine(x):
    return torch.where(x > 0, x, 0.1 * x)


strict, also = torch.compile(clipped, fullgraph=True), torch.compile(fine, fullgraph=True)
x = torch.randn(8, device=device)
for _ in range(2):
    try:
        y = strict(x)
    except torch._dynamo.exc.Unsupported:
        y = clipped(x)
    also(y)
