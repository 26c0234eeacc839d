"""Parameters that are updated by hand: no optimizer tells where a step ends."""

import torch

device = "cuda"
torch.manual_seed(0)
w = torch.randn(16, 4, device=device, requires_grad=True)
b = torch.zeros(4, device=device, requires_grad=True)
for step in range(30):
    x = torch.randn(8, 16).to(device)  # waits: 1 every step
    loss = ((x @ w + b) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in (w, b):
            p -= 0.1 * p.grad
            p.grad = None
    if step % 5 == 0:
        print("step", step, "loss", loss.item())  # waits: 1 every 5 steps
print("weights", w.abs().mean().item())  # waits: after
