"""Inputs that may be missing, dictionaries of other keys, and tensors of other types."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@torch.compile
def attended(q, k, mask=None, bias=None, *, scale=None):
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1)


@torch.compile
def summed(losses):
    return sum(losses.values())


q, k = torch.randn(2, 4, 8, device=device), torch.randn(2, 4, 8, device=device)
mask = torch.ones(4, 4, dtype=torch.bool, device=device).tril()
attended(q, k)
attended(q, k, mask)
attended(q, k, mask, torch.zeros(4, 4, device=device))
attended(q.half().float(), k, scale=0.5)
attended(q.double(), k.double(), mask)
default = torch.ones((), device=device)
summed({"a": default, "b": default})
summed({"a": default, "b": default, "c": default})
summed({"a": default, "b": default})
