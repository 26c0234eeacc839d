"""Per-sample gradients with torch.func, and an average of weights, both compiled."""

import copy

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Linear(8, 3).to(device)
mean = copy.deepcopy(net)


def loss(params, x, y):
    return nn.functional.cross_entropy(functional_call(net, params, (x[None],)), y[None])


@torch.compile
def per_sample(params, x, y):
    return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)


@torch.compile
@torch.no_grad()
def average(decay):
    for averaged, other in zip(mean.parameters(), net.parameters(), strict=True):
        averaged.lerp_(other, 1 - decay)


params = {name: parameter.detach() for name, parameter in net.named_parameters()}
for step, batch in enumerate((4, 4, 6)):
    per_sample(
        params, torch.randn(batch, 8, device=device), torch.zeros(batch, dtype=torch.long, device=device)
    )
    average(1 - 1 / (step + 2))
