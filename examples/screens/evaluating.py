"""A classifier that is evaluated every twenty steps, one `.item()` at a time."""

import torch
from torch import nn

CLASSES = 10


def evaluate(model, batches):
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for inputs, labels in batches:
            predicted = model(inputs).argmax(dim=1)
            right += (predicted == labels).sum().item()
            seen += len(labels)
    model.train()
    return right / seen


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, CLASSES)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(100, 64, 64, device="cuda")
    labels = torch.randint(CLASSES, (100, 64), device="cuda")
    held_out = list(zip(inputs[60:], labels[60:], strict=True))
    for step in range(60):
        loss = nn.functional.cross_entropy(model(inputs[step]), labels[step])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}: {evaluate(model, held_out):.1%} right")


if __name__ == "__main__":
    main()
