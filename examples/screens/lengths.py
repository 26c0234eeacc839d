"""A language model whose batches are as long as their longest text: no two of them ask for the same sizes."""

import torch
from torch import nn

WORDS, WIDTH, BATCH = 2000, 64, 8


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WORDS)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(14):
        length = int(torch.randint(100, 500, ()))
        tokens = torch.randint(WORDS, (BATCH, length)).pin_memory().to("cuda", non_blocking=True)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
