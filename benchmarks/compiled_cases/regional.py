"""Regional compilation: each block compiled by itself, the model around them not."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.scale = scale
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return x + self.scale * self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(16, 1.0 if at < 3 else 0.5) for at in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


net = Net().to(device)
for block in net.blocks:
    block.compile()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.randn(4, 16, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
