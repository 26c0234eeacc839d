"""Lists and dictionaries as inputs and outputs, of changing length."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@torch.compile
def joined(batch, extras):
    features = net(batch["x"]) + batch["bias"]
    for extra in extras:
        features = features + extra.mean()
    return {"features": features, "parts": [features.sum(), features.mean()]}


for count in (1, 1, 2, 3):
    batch = {"x": torch.randn(4, 8, device=device), "bias": torch.ones(8, device=device)}
    out = joined(batch, [torch.ones(3, device=device) for _ in range(count)])
    out["parts"][0].backward()
    optimizer.step()
    optimizer.zero_grad()
