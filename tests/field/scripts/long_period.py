"""Evaluation and checkpoints that recur less often than a short run has steps."""

import argparse
import os
import tempfile

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--max-iters", type=int, default=100)
parser.add_argument("--eval-interval", type=int, default=25)
args = parser.parse_args()
save_every = 40
device = "cuda"
path = os.path.join(tempfile.mkdtemp(), "model.pt")
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)  # waits: set-up
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(8)
    for k in range(8):
        losses[k] = model(torch.randn(8, 16, device=device)).square().mean().item()  # waits: 8 each evaluation
    model.train()
    return losses.mean()


for step in range(1, args.max_iters + 1):
    x = torch.randn(8, 16, device=device)
    loss = model(x).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % args.eval_interval == 0:
        print("step", step, "loss", estimate_loss())
    if step % save_every == 0:
        torch.save(model.state_dict(), path)  # waits: 4 each checkpoint
