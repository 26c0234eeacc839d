"""Two networks that take turns, each step a graph, in one pool."""

import torch
from torch import nn

G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)).cuda()
D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).cuda()
og = torch.optim.Adam(G.parameters(), lr=1e-3, capturable=True)
od = torch.optim.Adam(D.parameters(), lr=1e-3, capturable=True)
z, real = torch.randn(8, 4, device="cuda"), torch.randn(8, 8, device="cuda")
bce = nn.functional.binary_cross_entropy_with_logits
ones, zeros = torch.ones(8, 1, device="cuda"), torch.zeros(8, 1, device="cuda")


def d_step():
    od.zero_grad(set_to_none=True)
    loss = bce(D(real), ones) + bce(D(G(z).detach()), zeros)
    loss.backward()
    od.step()
    return loss.detach()


def g_step():
    og.zero_grad(set_to_none=True)
    loss = bce(D(G(z)), ones)
    loss.backward()
    og.step()
    return loss.detach()


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        d_step()
        g_step()
torch.cuda.current_stream().wait_stream(s)
gd, gg = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(gd):
    loss_d = d_step()
with torch.cuda.graph(gg, pool=gd.pool()):
    loss_g = g_step()
log = torch.zeros(2, device="cuda")
for _step in range(8):
    z.normal_()
    real.normal_()
    gd.replay()
    z.normal_()
    gg.replay()
    log += torch.stack([loss_d, loss_g])
print((log / 8).tolist())
