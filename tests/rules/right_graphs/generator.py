"""Noise from a registered generator, and gradients of two replays added up."""

import torch
from torch import nn

gen = torch.Generator(device="cuda")
gen.manual_seed(1)
net = nn.Linear(8, 8).cuda()
for p in net.parameters():
    p.grad = torch.zeros_like(p)
x = torch.zeros(4, 8, device="cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def forward_backward():
    noise = torch.randn(4, 8, device="cuda", generator=gen)
    loss = net(x + 0.1 * noise).square().mean() / 2
    loss.backward()
    return loss.detach()


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(2):
        forward_backward()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
g.register_generator_state(gen)
with torch.cuda.graph(g):
    loss = forward_backward()
for _step in range(6):
    for p in net.parameters():
        p.grad.zero_()
    for _ in range(2):
        x.copy_(torch.randn(4, 8, device="cuda"))
        g.replay()
    opt.step()
print(loss.item())
