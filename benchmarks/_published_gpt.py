"""A GPT of 124M parameters, trained in the ways of a published table of what an A100 reserved for that.

gapless check --dry --memory --gpu a100 _published_gpt.py --mask-made --bf16

The operators and their order are those of the source; how its text is cut into batches makes no difference.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, BATCH, DROPPED = 50_257, 1024, 768, 12, 12, 8, 0.1


class Norm(nn.Module):
    """Layer normalization out of single operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        spread = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(spread + 1e-5)) + self.shift


class Gelu(nn.Module):
    """GELU out of single operators."""

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.sqrt(torch.tensor(2.0 / math.pi)) * (x + 0.044715 * torch.pow(x, 3))
        return 0.5 * x * (1 + torch.tanh(inner))


class Attention(nn.Module):
    """Attention with explicit scores; the mask is a buffer, or made in each call."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(DROPPED)
        if kept:
            self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH), diagonal=1))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        parts = [layer(x).unflatten(-1, (HEADS, -1)) for layer in (self.key, self.query, self.value)]
        key, query, value = (part.transpose(1, 2) for part in parts)
        scores = query @ key.transpose(2, 3)
        if hasattr(self, "mask"):
            mask = self.mask.bool()[:length, :length]
        else:
            mask = torch.triu(torch.ones(length, length, dtype=torch.bool, device=x.device), diagonal=1)
        scores.masked_fill_(mask, -torch.inf)
        weights = self.dropout(torch.softmax(scores / key.shape[-1] ** 0.5, dim=-1))
        return self.out((weights @ value).transpose(1, 2).reshape(x.shape))


class Fused(nn.Module):
    """Attention as one operator, with one product for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        dropped = DROPPED if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropped, is_causal=True
        )
        return self.out(mixed.transpose(1, 2).contiguous().view(x.shape))


class Block(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        norm, gelu = (nn.LayerNorm, nn.GELU("tanh")) if options.native else (Norm, Gelu())
        self.attention = Fused() if options.flash else Attention(kept=not options.mask_made)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH))
        self.before, self.between = norm(WIDTH), norm(WIDTH)
        self.dropout = nn.Dropout(DROPPED)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.attention(self.before(x))) + x
        return self.dropout(self.mlp(self.between(x))) + x


class Gpt(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.dropout = nn.Dropout(DROPPED)
        self.blocks = nn.Sequential(*(Block(options) for _ in range(LAYERS)))
        self.norm = (nn.LayerNorm if options.native else Norm)(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.dropout(x))))


def loss_of(model: Gpt) -> Tensor:
    tokens, wanted = torch.randint(VOCABULARY, (2, BATCH, LENGTH)).cuda()
    logits = model(tokens)
    return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mask-made", action="store_true", help="make the mask in each call")
    parser.add_argument("--bf16", action="store_true", help="all of the model in bfloat16, AdamW fused")
    parser.add_argument("--native", action="store_true", help="torch's LayerNorm and GELU")
    parser.add_argument("--flash", action="store_true", help="scaled_dot_product_attention")
    options = parser.parse_args()
    model = Gpt(options).cuda()
    if options.bf16:
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1, fused=options.bf16)
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        if step % 3 == 0:  # the source evaluates every 15 steps
            model.eval()
            with torch.no_grad():
                print(loss_of(model).item(), loss_of(model).item())
            model.train()
    model.eval()
    with torch.no_grad():
        tokens = torch.zeros(1, 4, dtype=torch.long).cuda()
        for _ in range(50):
            tokens = torch.cat((tokens, model(tokens)[:, -1, :].argmax(dim=-1, keepdim=True)), dim=1)
    print(torch.cuda.max_memory_reserved() / 2**30)


if __name__ == "__main__":
    main()
