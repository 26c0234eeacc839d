"""Flex attention with a mask of its own, inside a compiled model."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def causal(b, h, q, k):
    return q >= k


class Attention(nn.Module):
    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = flex_attention(q, k, v, block_mask=mask)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


net = torch.compile(Attention().to(device))
mask = create_block_mask(causal, None, None, 128, 128, device=device)
with torch.no_grad():
    for batch in (2, 2, 3):
        net(torch.randn(batch, 128, 32, device=device), mask)
