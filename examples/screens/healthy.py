"""A small language model whose training loop reads the loss once in ten steps."""

import torch
from torch import nn

WORDS, WIDTH = 1000, 128


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        nn.TransformerEncoderLayer(WIDTH, 4, dim_feedforward=256, batch_first=True),
        nn.Linear(WIDTH, WORDS),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(WORDS, (64, 8, 65), device="cuda")
    for step, batch in enumerate(tokens):
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
