"""A policy in a graph: observations copied in, actions copied out to pinned memory, a buffer on the GPU."""

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
obs = torch.zeros(16, 4, device="cuda")
buffer = torch.zeros(10, 16, 4, device="cuda")
action_host = torch.zeros(16, dtype=torch.long).pin_memory()
with torch.no_grad():
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        policy(obs)
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        logits = policy(obs)
        noise = -torch.empty_like(logits).exponential_().log()
        action = (logits + noise).argmax(-1)
done = torch.cuda.Event()
state = torch.randn(16, 4)
for t in range(10):
    obs.copy_(state.pin_memory(), non_blocking=True)
    buffer[t].copy_(obs)
    g.replay()
    action_host.copy_(action, non_blocking=True)
    done.record()
    done.synchronize()
    state = state + 0.1 * (action_host.float()[:, None] - 0.5)
