import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=45)
parser.add_argument("--save-every", type=int, default=10)
args = parser.parse_args()

device = torch.device("cuda:0")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, dim)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(F.gelu(self.fc(self.norm(x))))


class Model(nn.Module):
    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def save(path, model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path)  # waits: many each checkpoint; may wait: set-up


def resume(path, model, optimizer):
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])  # waits: set-up
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


path = os.path.join(tempfile.mkdtemp(), "last.pt")

first = Model().to(device)  # waits: set-up
save(path, first, torch.optim.AdamW(first.parameters(), lr=1e-3), 0)

model = Model().to(device)  # waits: set-up
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
start = resume(path, model, optimizer)

ema = torch.zeros((), device=device)
for step in range(start, args.steps):
    x = torch.randn(16, 32, device=device)
    y = torch.randint(0, 10, (16,), device=device)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.lerp_(loss.detach(), 0.1)
    if (step + 1) % args.save_every == 0:
        save(path, model, optimizer, step + 1)

again = torch.load(path, map_location=device, weights_only=True)  # waits: after
print("resumed at", again["step"], "on", again["model"]["head.weight"].device)
print(f"ema {ema.item():.3f}")  # waits: after
