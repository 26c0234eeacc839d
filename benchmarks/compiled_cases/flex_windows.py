"""Flex attention whose mask changes: windows that grow, and documents of other lengths."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def windowed(window):
    def mask(b, h, q, k):
        return (q >= k) & (q - k <= window)

    return mask


def of_documents(ends):
    def mask(b, h, q, k):
        return (ends[q] == ends[k]) & (q >= k)

    return mask


class Attention(nn.Module):
    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return flex_attention(q, k, v, block_mask=mask).transpose(1, 2).reshape(b, t, c)


net = torch.compile(Attention().to(device))
x = torch.randn(2, 128, 32, device=device)
with torch.no_grad():
    for window in (16, 32, 64):
        net(x, create_block_mask(windowed(window), None, None, 128, 128, device=device))
    for cut in (40, 90):
        ends = (torch.arange(128, device=device) >= cut).long()
        net(x, create_block_mask(of_documents(ends), None, None, 128, 128, device=device))
