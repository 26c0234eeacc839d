"""A recurrent loop over time, and one over a list of tensors: graphs of a size of their own."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)

    def forward(self, x, state=None):
        out = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            out.append(state)
        return torch.stack(out, 1), state


@torch.compile
def joined(parts):
    return torch.cat([part * at for at, part in enumerate(parts)])


net = torch.compile(Recurrent().to(device))
state = None
for length in (3, 3, 5, 4):
    out, state = net(torch.randn(2, length, 4, device=device), state)
    state = state.detach()
for length in (2, 3, 4):
    joined([torch.ones(2, device=device)] * length)
