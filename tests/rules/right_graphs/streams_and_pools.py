"""Two graphs in one pool, in their order; two streams in one capture."""

import torch

g1, g2 = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
static_in_1 = torch.randn(32, 32, device="cuda")
w1, w2 = torch.randn(32, 32, device="cuda"), torch.randn(32, 32, device="cuda")
s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        (static_in_1 @ w1).relu() @ w2
torch.cuda.current_stream().wait_stream(s)
with torch.cuda.graph(g1):
    static_out_1 = (static_in_1 @ w1).relu()
with torch.cuda.graph(g2, pool=g1.pool()):
    static_out_2 = static_out_1 @ w2
outs = []
for _ in range(5):
    static_in_1.copy_(torch.randn(32, 32, device="cuda"))
    g1.replay()
    g2.replay()
    outs.append(static_out_2.clone())
# branches of streams in a capture
g = torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
a = torch.randn(32, 32, device="cuda")
with torch.cuda.graph(g):
    initial = torch.cuda.current_stream()
    side.wait_stream(initial)
    with torch.cuda.stream(side):
        b = a @ w1
    c = a @ w2
    initial.wait_stream(side)
    d = b + c
for _ in range(5):
    a.copy_(torch.randn(32, 32, device="cuda"))
    g.replay()
print(d.sum().item(), torch.stack(outs).sum().item())
