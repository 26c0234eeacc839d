"""The limit on recompilations, set low, and reached by names that change."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch._dynamo.config.cache_size_limit = 3


@torch.compile
def augmented(x, names):
    for name in names:
        if name == "flip":
            x = x.flip(0)
        elif name == "shift":
            x = x + 1
        else:
            x = x * 2
    return x


@torch.compile
def spread(x, by):
    return x.repeat_interleave(by)


x = torch.randn(8, device=device)
for names in (["flip"], ["shift"], ["double"], ["flip", "shift"], ["shift", "double"], ["flip", "double"]):
    augmented(x, names)
for by in range(2, 8):
    spread(x, by)
