"""A compiled function that calls compiled functions, one of them from behind a break."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@torch.compile
def inner(x, scale):
    return (x * scale).sigmoid()


@torch.compile(dynamic=True)
def rows(x):
    return x.softmax(-1)


@torch.compile
def outer(x, scale):
    y = inner(x, scale) + 1
    print("between")
    return rows(y) * 2


for size, scale in ((4, 1.0), (4, 2.0), (6, 2.0)):
    outer(torch.randn(size, 8, device=device), scale)
inner(torch.randn(3, 8, device=device), 0.5)
rows(torch.randn(5, 3, device=device))
